"""The plugin as a stranger's package: installed into an environment, found by its entry point, and run on a model."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from toy_codegen.plugin import PLUGIN

import fxloom
from fxloom.config import cache_root
from fxloom_testing import CodegenContract


class TestToy(CodegenContract):
    entry_point = "toy_codegen.plugin:PLUGIN"

    @pytest.fixture
    def plugin(self) -> Any:
        return PLUGIN


def test_it_is_installed_like_any_other() -> None:
    (entry,) = [point for point in importlib.metadata.entry_points(group="fxloom.codegen") if point.name == "toy"]
    assert entry.dist is not None
    assert entry.dist.name == "toy-codegen"
    assert any(found.name == "toy" for found in fxloom.plugins())
    assert cache_root().name


def test_beside_fxlooms_own_plugin_it_is_used_when_it_is_named() -> None:
    for options, name in (({}, "cpp"), ({"codegen": "toy"}, "toy")):
        fxloom.reset()
        assert fxloom.compile(lambda x: x + 1, options=options)(torch.ones(2)).tolist() == [2.0, 2.0]
        assert list(fxloom.stats().kernels) == [name]


def test_a_model_runs_on_it() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu").eval()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), layer, torch.nn.LayerNorm(32)).eval()
    fxloom.reset()
    compiled = fxloom.compile(model, options={"codegen": "toy"})
    x = torch.randn(2, 10, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    counts = fxloom.stats()
    assert counts.graphs >= 1
    assert counts.kernels["toy"] > 0
    assert not counts.kernels["cpp"]
