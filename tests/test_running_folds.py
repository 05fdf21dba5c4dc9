"""Running folds through the whole stack, in generated C++: values, positions and gradients are eager's, in one kernel each."""

from __future__ import annotations

import math

import pytest
import torch

import fxloom


def folds(x: torch.Tensor) -> list[torch.Tensor]:
    results: list[torch.Tensor] = []
    for dim in (0, 1):
        results += [*torch.cummax(x, dim), *torch.cummin(x, dim), torch.cumsum(x, dim), torch.cumprod(x, dim)]
        results += [torch.logcumsumexp(x, dim)] if x.is_floating_point() else []
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_values_and_positions(dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (37, 41)).to(dtype)
    if dtype.is_floating_point:
        x[3, 4], x[5, :7], x[:, 11], x[20, 20] = math.nan, math.inf, -math.inf, -1000
    fxloom.reset()
    results = fxloom.compile(folds, fullgraph=True)(x)
    assert fxloom.stats().fallbacks == {}
    assert fxloom.stats().library_calls == {}
    for mine, eager in zip(results, folds(x), strict=True):
        assert (mine.dtype, mine.stride()) == (eager.dtype, eager.stride())
        torch.testing.assert_close(mine, eager, rtol=1e-6, atol=0, equal_nan=True)


def test_gradients_and_dynamic_lengths() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cummax(x, 1).values * torch.logcumsumexp(x, 1) + torch.cummin(x * 2, 1).values

    compiled = fxloom.compile(program, fullgraph=True, dynamic=True)
    for length in (5, 9, 300):
        x = torch.randn(3, length, requires_grad=True)
        expected = torch.autograd.grad(program(x).sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], expected, rtol=1e-4, atol=1e-4)
