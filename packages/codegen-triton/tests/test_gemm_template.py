"""The GEMM template in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from fxloom_codegen_triton import PLUGIN
from fxloom_codegen_triton.templates.gemm import MatmulConfig, build_matmul, matmul_source
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.errors import PluginError, UserError

SMALL = MatmulConfig(16, 32, 16, 2, 4, 2)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 16), (50, 70, 33), (1, 5, 40), (40, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_template_equals_torch(
    m: int, n: int, k: int, bias: bool, activation: Literal["relu"] | None, tmp_path: Path, device: str
) -> None:
    a, b, c = torch.randn(m, k, device=device), torch.randn(n, k, device=device).t(), torch.randn(n, device=device)
    source = matmul_source("mm_0", dtype="float32", bias=bias, activation=activation, config=SMALL)
    out = torch.full((m, n), float("nan"), device=device)
    build_matmul(source, FileStore(tmp_path))(a, b, *([c] if bias else []), out)
    expected = a @ b + (c if bias else 0)
    torch.testing.assert_close(out, expected.relu() if activation else expected, rtol=1e-5, atol=1e-5)


def test_half_precision_sums_in_float32(tmp_path: Path, device: str) -> None:
    a, b = torch.randn(20, 500, device=device).half(), torch.randn(500, 20, device=device).half()
    out = torch.empty(20, 20, dtype=torch.float16, device=device)
    build_matmul(matmul_source("mm_0", dtype="float16", config=SMALL), FileStore(tmp_path))(a, b, out)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2)


def test_wrong_shapes_are_refused(tmp_path: Path) -> None:
    matmul = build_matmul(matmul_source("mm_0", dtype="float32", config=SMALL), FileStore(tmp_path))
    with pytest.raises(UserError, match="matmul of"):
        matmul(torch.zeros(2, 3), torch.zeros(4, 5), torch.zeros(2, 5))


@pytest.mark.parametrize("bias", [False, True])
def test_the_plugin_builds_the_template_with_the_kernels(bias: bool, tmp_path: Path, device: str) -> None:
    source = PLUGIN.template("mm", "mm_0", {"dtype": "float16", "bias": bias})
    tuned = PLUGIN.build([source], FileStore(tmp_path)).callables["mm_0"]
    operands = [torch.randn(64, 48, device=device).half(), torch.randn(80, 48, device=device).half().t()]
    operands += [torch.randn(80, device=device).half()] if bias else []
    out = torch.empty(64, 80, dtype=torch.float16, device=device)
    exact = operands[0].double() @ operands[1].double() + (operands[2].double() if bias else 0)
    for name, candidate in tuned.candidates.items():
        out.fill_(float("nan"))
        candidate(*operands, out)
        torch.testing.assert_close(out.double(), exact, rtol=2e-3, atol=2e-2, msg=name)
    out.fill_(float("nan"))
    tuned(*operands, out=out)
    torch.testing.assert_close(out.double(), exact, rtol=2e-3, atol=2e-2)
    assert len(tuned.milliseconds) == (1 if device == "cuda" else 0)


def test_other_templates_are_refused() -> None:
    with pytest.raises(PluginError, match="no template 'conv'"):
        PLUGIN.template("conv", "c", {})
