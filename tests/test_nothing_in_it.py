"""Tensors without elements: results and exceptions are eager's, also where places are computed by division by what is empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "repeated and shuffled": lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    "repeated and added": lambda x: x.repeat(2, 1, 3, 1).sum(2),
    "unshuffled": lambda x: F.pixel_unshuffle(x, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive average of lines": lambda x: F.adaptive_avg_pool1d(x[..., 0], 3),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 2),
}


def outcome(program: Callable[[Tensor], Tensor], x: Tensor) -> object:
    try:
        result = program(x)
    except Exception as error:
        return type(error), str(error)
    return result.dtype, result.shape, result.stride()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_without_elements(program: Callable[[Tensor], Tensor]) -> None:
    fxloom.reset()
    for size in ((2, 3, 0, 6), (2, 3, 6, 0), (0, 3, 6, 6), (2, 0, 6, 6)):
        x = torch.randn(size)
        assert outcome(fxloom.compile(program), x) == outcome(program, x)
    assert all("adaptive" in name for name in fxloom.stats().fallbacks)  # most of those raise


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("size", [(0, 10_000), (0, 100_000)])
def test_folds_of_many_elements_for_no_points(size: tuple[int, int]) -> None:
    """As many chunks as points divide among processors."""
    fxloom.reset()
    x = torch.randn(size)
    for program in (lambda x: x.var(1), lambda x: x.std(1, keepdim=True), lambda x: F.layer_norm(x, size[1:]), lambda x: x.amax(1)):
        assert outcome(fxloom.compile(program, fullgraph=True), x) == outcome(program, x)
    assert set(fxloom.stats().fallbacks) <= {"aten.native_layer_norm", "aten.amax"}
