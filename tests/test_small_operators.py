"""Small families of operators through the whole stack, in generated C++: they equal eager, and nothing falls back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import fxloom

ODD = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 3e38, 1e-45, -1e-40, 1.1754944e-38, -2.5e-39, 123.456])
POWERS = torch.tensor([0, 1, -1, 300, -300, 127, -149, 10, 5, 100, -5, 2, -10, 1000000])


def check(function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 1e-6) -> None:
    """One compilation: values, dtypes, strides, and gradients where inputs have them."""
    fxloom.reset()
    mine, eager = fxloom.compile(function, fullgraph=True)(*inputs), function(*inputs)
    assert fxloom.stats().fallbacks == {}
    for a, b in zip(tree_leaves(mine), tree_leaves(eager), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, equal_nan=True)
    leaves = [t for t in inputs if t.requires_grad]
    if leaves:
        totals = [sum(t.square().sum() for t in tree_leaves(result) if t.requires_grad) for result in (mine, eager)]
        for a, b in zip(*(torch.autograd.grad(total, leaves) for total in totals), strict=True):
            torch.testing.assert_close(a, b, rtol=20 * rtol, atol=20 * rtol)
        assert fxloom.stats().fallbacks == {}


def test_parts_of_floats() -> None:
    tensors = [ODD, ODD.double(), ODD.half(), ODD.bfloat16(), torch.tensor([5e-324, -1e-310], dtype=torch.float64), ODD[7], ODD[:0], ODD.view(7, 2).t()]
    check(lambda *values: [torch.frexp(value) for value in values], *tensors, rtol=0)
    check(lambda x, e: [torch.ldexp(x, e), torch.ldexp(x, e.clamp(-100, 100).to(torch.int8)), torch.ldexp(x, e[3])], ODD, POWERS, rtol=0)
    check(lambda x, e: [torch.ldexp(x, e / 300), torch.ldexp(e, e), torch.ldexp(x.half(), e), torch.ldexp(x.double(), e)], ODD, POWERS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bfloat16])
def test_lines(dtype: torch.dtype) -> None:
    def lines(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        ends = ((0, 10, 5), (-3.7, 9.2, 7), (5, -5, 1), (1, 2, 0), (0, 10, 11), (3, 3, 4), (a, b, 5), (1, b, 6), (a, 7.9, 1))
        spaced = [torch.linspace(*end, dtype=dtype) for end in ends]
        return [*spaced, torch.logspace(-2, 1, 6, dtype=dtype), torch.logspace(0, b, 6, base=2, dtype=dtype)]

    check(lines, torch.tensor(1.7), torch.tensor(5.3), rtol=1e-6 if dtype != torch.bfloat16 else 1e-2)


def test_sums_and_norms() -> None:
    x = torch.randn(4, 5, 6)
    x[0, 0, 0], x[1, :, 2] = math.nan, math.nan

    def sums(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nansum(x), torch.nansum(x, (0, 2), keepdim=True), torch.nansum(x, 1, dtype=torch.float64), torch.nansum(n, 0), torch.nanmean(x, -1)]

    check(sums, x.requires_grad_(), torch.arange(6))

    def norms(x: torch.Tensor) -> list[torch.Tensor]:
        held = [torch.renorm(x, p, dim, 1.0) for p in (1, 2, 0.5, math.inf) for dim in (0, -1)]
        return [*held, *(torch.ops.aten.norm.ScalarOpt_dim(x, p, [1], True) for p in (1, 2, 3, math.inf)), torch.ops.aten.norm.Scalar(x, 2)]

    check(norms, torch.randn(3, 4, 5).requires_grad_(), rtol=1e-5)
    check(lambda x: torch.renorm(x, 2, 1, 1.0), torch.randn(5, 4, 3).permute(2, 0, 1))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_distances(p: float) -> None:
    x, y = torch.randn(2, 5, 3), torch.randn(2, 7, 3)
    y[:, 2] = x[:, 1]  # of length 0

    def distances(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.cdist(x, y, p=p, compute_mode="donot_use_mm_for_euclid_dist"), torch.cdist(x[0], y, p=p)]

    check(distances, x.requires_grad_(), y.requires_grad_(), rtol=1e-5)


def test_distances_by_products() -> None:
    check(lambda x, y: torch.cdist(x, y), torch.randn(40, 6).requires_grad_(), torch.randn(30, 6).requires_grad_(), rtol=1e-4)


def test_margins() -> None:
    x, weight, target = torch.randn(6, 5).requires_grad_(), torch.rand(5), torch.tensor([0, 4, 2, 2, 1, 3])

    def margins(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        pairs = [F.multi_margin_loss(x, target, p=p, margin=0.7, weight=w, reduction=r) for p in (1, 2) for w in (None, weight) for r in ("none", "mean", "sum")]
        return [*pairs, F.multi_margin_loss(x[0], target[0], reduction="none"), F.multi_margin_loss(x[0], target[:1], reduction="none")]

    check(margins, x, target, weight)
    with pytest.raises(RuntimeError):
        fxloom.compile(lambda x, target: F.multi_margin_loss(x, target))(x.detach(), target + 3)


def test_searches() -> None:
    lines, values = torch.randn(3, 2, 9).sort(-1).values, torch.randn(3, 2, 5)
    values[0, 0, 0], values[1, 1, 1], lines[0, 0, 8] = math.nan, lines[1, 1, 4], math.nan

    def searches(lines: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.searchsorted(lines, values), torch.searchsorted(lines, values, right=True), torch.searchsorted(lines, values, side="right", out_int32=True)]
        whole = (lines * 10).nan_to_num(100).long()
        return [*found, torch.searchsorted(whole, (values * 10).nan_to_num(0).long()), torch.searchsorted(lines[1, 1], values), torch.searchsorted(lines[:, :, :0], values)]

    check(searches, lines, values)
