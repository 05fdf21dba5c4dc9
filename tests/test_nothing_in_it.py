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
