"""Max pooling against eager, on the reference interpreter: values and positions to the bit, ties and NaNs, layouts, nothing falls back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_graphs import check

from fxloom_inductor_core.lowering import max_pooling

aten = torch.ops.aten
torch.manual_seed(0)
PLANES, VOLUMES = torch.randn(2, 3, 11, 9), torch.randn(2, 3, 7, 6, 8)


@pytest.fixture(autouse=True)
def whatever_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that are left to the library on the CPU are tested there all the same."""
    monkeypatch.setattr(max_pooling, "_library_is_faster", lambda device: False)


def with_ties(x: torch.Tensor) -> torch.Tensor:
    return x.round()


def with_odd_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 1, torch.nan, torch.where(x > 0.2, x.round(), -torch.inf))


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ties": with_ties,
    "infinities and NaNs": with_odd_numbers,
    "channels last": lambda x: channels_last(with_ties(x)),
    "transposed": lambda x: with_ties(x).transpose(2, -1),
    "without a batch": lambda x: x[0],
    "expanded": lambda x: x[:, :1].expand(2, 3, *x.shape[2:]),
    "nothing": lambda x: x[:0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", INPUTS)
def test_windows_at_fixed_distances(name: str, dtype: torch.dtype) -> None:
    planes, volumes = INPUTS[name](PLANES).to(dtype), INPUTS[name](VOLUMES).to(dtype)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            aten.max_pool2d_with_indices(x, [7, 6], [2, 2], [3, 3], 1, True),
            aten.max_pool2d_with_indices(x, 5, 3, [1], [2, 1], True),
            aten.max_pool3d_with_indices(y, 2),
            aten.max_pool3d_with_indices(y, [3, 2, 2], [2, 1, 2], [1, 0, 1]),
            aten.max_pool3d_with_indices(y, 3, 2, 1, 2),
            aten.max_pool3d_with_indices(y, 4, 1, 2),
            aten.max_pool3d_with_indices(y, 2, [], 0, 2, True),
        )

    graph = check(program, planes, volumes, rtol=0)
    assert graph.fallbacks == () and graph.library_calls == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in INPUTS if name != "nothing"])
def test_windows_that_share_an_axis(name: str, dtype: torch.dtype) -> None:
    planes, volumes = INPUTS[name](PLANES).to(dtype), INPUTS[name](VOLUMES).to(dtype)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            [aten.adaptive_max_pool2d(x, size) for size in ([3, 4], [1, 1], [5, 9], [2, 1], [13, 10])],
            [aten.adaptive_max_pool3d(y, size) for size in ([3, 4, 2], [1, 1, 1], [5, 6, 8], [2, 1, 3])],
        )

    graph = check(program, planes, volumes, rtol=0)
    assert graph.fallbacks == () and graph.library_calls == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in INPUTS if name not in ("nothing", "transposed")])
def test_windows_at_random_distances(name: str, dtype: torch.dtype) -> None:
    planes, volumes = INPUTS[name](PLANES).to(dtype), INPUTS[name](VOLUMES).to(dtype)
    batch = 1 if planes.dim() == 3 else 2
    two, three = torch.rand(batch, planes.shape[-3], 2).to(dtype), torch.rand(batch, volumes.shape[-4], 3).to(dtype)

    def program(x: torch.Tensor, y: torch.Tensor, two: torch.Tensor, three: torch.Tensor) -> Any:
        return (
            [aten.fractional_max_pool2d(x, k, o, two) for k, o in (([2, 2], [5, 4]), ([2, 3], [4, 1]), ([3, 3], [9, 7]), ([6, 6], [3, 2]))],
            [aten.fractional_max_pool3d(y, k, o, three) for k, o in (([2, 2, 2], [5, 4, 3]), ([2, 3, 2], [4, 1, 3]), ([4, 4, 4], [2, 2, 2]))],
        )

    assert check(program, planes, volumes, two, three, rtol=0).fallbacks == ()


def test_a_maximum_and_its_position_are_two_loops_at_most() -> None:
    graph = check(lambda x: aten.max_pool3d_with_indices(x, 2), VOLUMES)
    assert len(graph.program.kernels) <= 2
    graph = check(lambda x: aten.max_pool3d_with_indices(x, 2)[0], VOLUMES)
    assert len(graph.program.kernels) == 1
