"""`with torch.device(...)` and `with torch.inference_mode()` in graphs, and where they can't be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom_dynamo


def test_regions_of_a_device() -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            y = torch.zeros(3)
            with torch.device("cpu"):
                z = torch.ones(3)
            where = torch.get_default_device()
        return x + z, y.device.type, where, torch.zeros(1).device, torch.get_default_device()

    report = fxloom_dynamo.explain(fn, torch.ones(3))
    assert len(report.graphs) == 1 and not report.breaks
    got = fxloom_dynamo.optimize("eager", fullgraph=True)(fn)(torch.ones(3))
    assert got[0].tolist() == [2, 2, 2]
    assert got[1:] == ("meta", torch.device("meta"), torch.device("cpu"), torch.device("cpu"))


def test_a_break_in_the_region_of_a_device() -> None:
    """The region is entered and left for real then."""

    def fn(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            y = torch.zeros(3)
            total = x.sum().item()
            z = torch.zeros(3)
        return x + total, y.device.type, z.device.type, torch.zeros(1).device.type

    got = fxloom_dynamo.optimize("eager")(fn)(torch.ones(3))
    assert got[0].tolist() == [4, 4, 4] and got[1:] == ("meta", "meta", "cpu")
    assert [found.key for found in fxloom_dynamo.explain(fn, torch.ones(3)).breaks].count("data_dependent") >= 1


_LINEAR = torch.nn.Linear(3, 3)


@torch.inference_mode()
def decorated(x: torch.Tensor) -> Any:
    return _LINEAR(x).relu()


def whole(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        with torch.inference_mode():
            y = _LINEAR(x)
        x.mul_(2)
        asked = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with torch.enable_grad():
            z = y * x
    return y, z, asked, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def off(x: torch.Tensor) -> Any:
    with torch.inference_mode(False):
        return _LINEAR(x)


def operators_behind(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
    return y * 2, y


def operators_before(x: torch.Tensor) -> Any:
    x = x * 2
    with torch.inference_mode():
        y = x + 1
    return y, x


def break_within(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x + x.sum().item()
    return y


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_described, value))
    return (value.tolist(), value.is_inference(), value.requires_grad) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("fn", [decorated, whole, off])
def test_inference_mode_over_a_whole_graph(fn: Callable[..., Any]) -> None:
    mine, theirs = torch.ones(2, 3), torch.ones(2, 3)
    assert _described(fxloom_dynamo.optimize("eager", fullgraph=True)(fn)(mine)) == _described(fn(theirs))
    assert torch.equal(mine, theirs) and mine._version == theirs._version


@pytest.mark.parametrize("fn", [operators_behind, operators_before, break_within])
def test_inference_mode_over_a_part_is_a_break(fn: Callable[..., Any]) -> None:
    assert _described(fxloom_dynamo.optimize("eager")(fn)(torch.ones(2, 3))) == _described(fn(torch.ones(2, 3)))
    assert fxloom_dynamo.explain(fn, torch.ones(2, 3)).breaks
