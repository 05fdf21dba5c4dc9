"""Upsampling and sampling at the points of a grid, forward and backward, beside eager's kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_against_eager import Compare

from fxloom_decomp import grids, resampling

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.fixture(autouse=True)
def whatever_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that leave the CPU to the library are tested there all the same."""
    for family in (grids, resampling):
        monkeypatch.setattr(family, "_library_is_faster", lambda x: False)
    torch.manual_seed(0)


def compare(programs: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]], reached: int) -> None:
    """Run each program and its gradients; rules for `reached` operators are checked on the way."""
    mode = Compare()
    for function, tensors in programs:
        leaves = [t.detach().requires_grad_() for t in tensors]
        with mode:
            result = function(*leaves)
            torch.autograd.backward([result], [torch.randn_like(result)])
    assert not mode.faults + mode.failures
    assert len(mode.checked) == reached


def resize(mode: str, **how: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.interpolate(x, mode=mode, **how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_upsampling(dtype: torch.dtype) -> None:
    programs: list[Any] = []
    for shape, sizes in (
        ((2, 3, 7), [(14,), (3,), (50,)]),
        ((2, 3, 7, 6), [(14, 12), (3, 4), (1, 13), (40, 6)]),
        ((1, 2, 4, 5, 3), [(8, 10, 6), (3, 2, 5)]),
    ):
        axes = len(shape) - 2
        x = torch.randn(shape).to(dtype)
        for mode in ("nearest", "nearest-exact", LINEAR[axes], *(("bicubic",) if axes == 2 else ())):
            for corners in (None,) if "nearest" in mode else (False, True):
                programs += [(resize(mode, size=size, align_corners=corners), (x,)) for size in sizes]
            programs += [(resize(mode, scale_factor=factor), (x,)) for factor in (1.7, 0.6)]
            if axes == 2:
                programs.append((resize(mode, scale_factor=2.0), (x.to(memory_format=torch.channels_last),)))
    compare(programs, 2 * 10)


def test_antialiased_upsampling() -> None:
    x = torch.randn(2, 3, 7, 6)
    hows: list[dict[str, Any]] = [{"size": (14, 3)}, {"size": (3, 4), "align_corners": True}, {"size": (1, 1)}, {"scale_factor": 0.6}]
    modes = ["bilinear", "bicubic", *(["lanczos"] if hasattr(torch.ops.aten, "_upsample_lanczos2d_aa") else [])]
    programs = [(resize(mode, antialias=True, **how), (x,)) for mode in modes for how in hows if mode != "lanczos" or len(how) == 1]
    compare(programs, 2 * len(modes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_points_of_a_grid(dtype: torch.dtype) -> None:
    images = {2: torch.randn(2, 3, 5, 6).to(dtype), 3: torch.randn(2, 3, 4, 5, 3).to(dtype)}
    points = {2: (torch.rand(2, 4, 7, 2) * 3 - 1.5).to(dtype), 3: (torch.rand(2, 3, 4, 2, 3) * 3 - 1.5).to(dtype)}
    programs: list[Any] = []
    for axes, mode, padding, corners in itertools.product(
        (2, 3), ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (True, False)
    ):
        if (axes, mode) != (3, "bicubic"):
            sample = lambda x, grid, mode=mode, padding=padding, corners=corners: F.grid_sample(x, grid, mode, padding, corners)  # noqa: E731
            programs.append((sample, (images[axes], points[axes])))
    compare(programs, 4)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
def test_grids_of_affine_maps() -> None:
    """Of float32: eager's CPU kernels take no narrower numbers."""
    mode = Compare()
    for axes, size in ((2, [2, 3, 4, 5]), (2, [2, 3, 1, 6]), (3, [2, 3, 4, 5, 6]), (3, [2, 1, 1, 2, 1])):
        for corners in (True, False):
            with mode:
                F.affine_grid(torch.randn(2, axes, axes + 1), size, corners)
    assert not mode.faults + mode.failures
    assert mode.checked[torch.ops.aten.affine_grid_generator.default] == 8
