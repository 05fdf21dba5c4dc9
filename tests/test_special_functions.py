"""Special functions through the whole stack: generated C++ is as exact as eager, forward and backward, and nothing falls back."""

from __future__ import annotations

import math

import pytest
import torch

import fxloom

S = torch.special
#: of all numbers, of positive ones, of probabilities
EVERYWHERE = ("i0", "i0e", "i1", "i1e", "erfcx", "log_ndtr", "digamma", "spherical_bessel_j0", "modified_bessel_i0", "modified_bessel_i1")
POSITIVE = ("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1")
PROBABILITY = ("ndtri", "erfinv")
#: what is called on float64
CALLED = {"aten.erfinv", "aten.special_ndtri", "aten.special_erfcx", "aten.special_log_ndtr", "aten.digamma", "aten.polygamma"}


def program(x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
    results = [getattr(S, name)(x) for name in EVERYWHERE] + [getattr(S, name)(y) for name in POSITIVE]
    return [*results, *(getattr(S, name)(p) for name in PROBABILITY), S.polygamma(1, y), torch.lgamma(y), S.polygamma(0, y)]


def differentiable(x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
    names = ("i0", "i0e", "i1", "i1e", "erfcx", "log_ndtr")
    results = [getattr(S, name)(x) for name in names] + [S.digamma(y), torch.lgamma(y), S.polygamma(0, y)]
    return [*results, *(getattr(S, name)(p) for name in PROBABILITY)]


def compare(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Where eager gives a number, an error of at most twice its largest one, with a floor of 4 ulp."""
    assert (mine.dtype, mine.shape, mine.stride()) == (eager.dtype, eager.shape, eager.stride())
    finite = eager.isfinite() & exact.isfinite()
    assert torch.equal(mine.isfinite(), eager.isfinite())
    assert torch.equal(mine[~finite].nan_to_num(7.0), eager[~finite].nan_to_num(7.0))
    a, b, c = (t[finite].double() for t in (mine, eager, exact))
    size = c.abs() + torch.finfo(mine.dtype).tiny
    own = ((b - c).abs() / size).max()
    assert bool((((a - c).abs() / size) <= 2 * own + 4 * torch.finfo(mine.dtype).eps).all())


def inputs(dtype: torch.dtype, count: int = 999) -> tuple[torch.Tensor, ...]:
    special = torch.tensor([0.0, 1.0, math.inf, math.nan, 0.5, 1e-30])
    y = torch.cat([torch.linspace(1e-3, 30, count), special]).to(dtype)
    x = torch.cat([torch.linspace(-8.97, 30, count), special, -special]).to(dtype)
    return x, y, torch.cat([torch.linspace(1e-4, 0.9999, count), special]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values(dtype: torch.dtype) -> None:
    fxloom.reset()
    given = inputs(dtype)
    results = fxloom.compile(program, fullgraph=True)(*given)
    counts = fxloom.stats()
    assert counts.fallbacks == {}
    assert set(counts.library_calls) == (set() if dtype == torch.float32 else CALLED)
    exact = program(*(t.double() for t in given))
    for mine, eager, true in zip(results, program(*given), exact, strict=True):
        if dtype == torch.float64:  # there is nothing better to judge by
            torch.testing.assert_close(mine, eager, rtol=3e-14, atol=3e-14, equal_nan=True)
        else:
            compare(mine, eager, true)


def test_gradients() -> None:
    fxloom.reset()
    wanted = []
    for function, dtype in ((fxloom.compile(differentiable, fullgraph=True), torch.float32), (differentiable, torch.float32), (differentiable, torch.float64)):
        leaves = [torch.linspace(low, high, 501).to(dtype).requires_grad_() for low, high in ((-5, 5), (0.05, 9), (0.01, 0.99))]
        sum(result.sum() for result in function(*leaves)).backward()
        wanted.append([leaf.grad for leaf in leaves])
    assert fxloom.stats().fallbacks == {}
    for mine, eager, exact in zip(*wanted, strict=True):
        compare(mine, eager, exact)


@pytest.mark.parametrize("name", ["modified_bessel_k0", "ndtri", "erfcx", "log_ndtr"])
def test_half_types_that_eager_refuses(name: str) -> None:
    x = torch.rand(4, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError):
        getattr(S, name)(x)
    with pytest.raises(NotImplementedError):
        fxloom.compile(lambda x: getattr(S, name)(x))(x)
