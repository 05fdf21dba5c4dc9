"""Products of matrices and convolutions, in prims.

In: matrices, images, weights. Out: values. Sums are scaled and added to in float32 for half-precision numbers, and rounded once.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.prims.operands import Number, aligned, axis_of, broadcast, full_like, reshaped, to, widened
from fxloom_decomp.prims.registry import prims_rule
from fxloom_decomp.prims.shape import roll
from fxloom_interfaces.prims import p

aten = torch.ops.aten


@prims_rule(aten.mm.default)
def mm(a: Tensor, b: Tensor) -> Tensor:
    return p.mm(a, b)


@prims_rule(aten.bmm.default)
def bmm(a: Tensor, b: Tensor) -> Tensor:
    return p.bmm(a, b)


@prims_rule(aten.dot.default, aten.vdot.default)
def dot(a: Tensor, b: Tensor) -> Tensor:
    return to(p.sum(p.mul(widened(a), widened(b)), (0,)), a.dtype)


@prims_rule(aten._trilinear.default)
def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, each with axes of extent 1 put in, summed over axes."""
    found = []
    for value, places in ((x, expand_x), (y, expand_y), (z, expand_z)):
        size = list(value.shape)
        for place in sorted(places):
            size.insert(place, 1)
        found.append(reshaped(widened(value), size))
    a, b, c = aligned(*found)
    total = p.sum(p.mul(p.mul(a, b), c), tuple(sorted(sumdim))) if sumdim else p.mul(p.mul(a, b), c)
    return to(total, x.dtype)


def _added(prim: Callable[[Tensor, Tensor], Tensor], x: Tensor, a: Tensor, b: Tensor, beta: Number, alpha: Number) -> Tensor:
    """beta · x + alpha · a · b; x is not read where beta is 0."""
    found = prim(widened(a), widened(b)) if a.dtype.is_floating_point else prim(a, b)
    if isinstance(alpha, torch.SymFloat) or alpha != 1:
        found = p.mul(found, full_like(found, alpha))
    if isinstance(beta, torch.SymFloat) or beta != 0:
        bias = to(broadcast(x, found.shape), found.dtype)
        if isinstance(beta, torch.SymFloat) or beta != 1:
            bias = p.mul(bias, full_like(bias, beta))
        found = p.add(bias, found)
    return to(found, x.dtype)


@prims_rule(aten.addmm.default)
def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    return _added(p.mm, x, a, b, beta, alpha)


@prims_rule(aten.baddbmm.default)
def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    return _added(p.bmm, x, a, b, beta, alpha)


@prims_rule(aten.linalg_cross.default)
def cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Of integers; others have a decomposition."""
    if x.dtype.is_floating_point or x.dtype != y.dtype:
        return NotImplemented
    a, b = aligned(x, y)
    axis = axis_of(a, dim)
    second, third = [roll(value, [-1], [axis]) for value in (a, b)], [roll(value, [-2], [axis]) for value in (a, b)]
    return p.sub(p.mul(second[0], third[1]), p.mul(third[0], second[1]))


@prims_rule(aten.addmv.default)
def addmv(x: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    column = reshaped(x, [*x.shape, 1]) if x.dim() else x
    found = _added(p.mm, column, a, reshaped(b, [*b.shape, 1]), beta, alpha)
    return reshaped(found, [found.shape[0]])


@prims_rule(aten.addr.default)
def addr(x: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    row, column = reshaped(b, [1, *b.shape]), reshaped(a, [*a.shape, 1])
    if x.dtype is torch.bool:
        outer = p.bitwise_and(*aligned(row, column)) if alpha else full_like(broadcast(x, [a.shape[0], b.shape[0]]), False)
        return p.bitwise_or(broadcast(x, outer.shape), outer) if beta else outer
    return _added(p.mm, x, column, row, beta, alpha)


@prims_rule(aten.addbmm.default)
def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    return _added(lambda left, right: p.sum(p.bmm(left, right), (0,)), x, a, b, beta, alpha)


def _per_axis(value: Sequence[Any], rank: int) -> tuple[Any, ...]:
    return tuple(value) if len(value) == rank else tuple(value) * rank


@prims_rule(aten.convolution.default)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
) -> Tensor:
    rank = weight.dim() - 2
    single = x.dim() == rank + 1  # no batch
    images = reshaped(x, [1, *x.shape]) if single else x
    steps, sides, gaps = (_per_axis(value, rank) for value in (stride, padding, dilation))
    images, kernel = widened(images), widened(weight)
    if transposed:
        found = p.transposed_convolution(images, kernel, steps, sides, _per_axis(output_padding, rank), gaps, groups)
    else:
        found = p.convolution(images, kernel, steps, sides, gaps, groups)
    if bias is not None:
        found = p.add(found, p.broadcast_in_dim(widened(bias), tuple(found.shape), (1,)))
    found = to(found, x.dtype)
    return reshaped(found, found.shape[1:]) if single else found
