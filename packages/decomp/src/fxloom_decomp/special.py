"""Special functions, norms and distances that are short formulas, and searches in sorted lines.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.axes import number_like
from fxloom_decomp.libraries import may_reorder_sums, on_cpu_library
from fxloom_decomp.registry import INT_TO_FLOAT, cast, decomposition, widen

aten = torch.ops.aten
Number = float | int | bool


@decomposition(aten.special_xlog1py.default, promote=INT_TO_FLOAT)
def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(y), math.nan, torch.where(x == 0, 0.0, x * torch.log1p(y)))


@decomposition(aten.mvlgamma.default, promote=INT_TO_FLOAT)
def mvlgamma(x: Tensor, p: int) -> Tensor:
    if not 0 < p < 16:
        return NotImplemented
    total = torch.lgamma(x + (1 - p) / 2)
    for k in range(1, p):
        total = total + torch.lgamma(x + (1 - p + k) / 2)
    return total + p * (p - 1) * math.log(math.pi) / 4


@decomposition(aten.ldexp.Tensor)
def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """Unless a float is scaled by an integer, which is exact where this product overflows on the way."""
    kinds = {x.dtype, exponent.dtype}
    if x.dtype.is_floating_point and not exponent.dtype.is_floating_point:
        return NotImplemented
    if torch.float64 in kinds or x.dtype.is_complex or exponent.dtype.is_complex or x.device != exponent.device:
        return NotImplemented
    return x * torch.pow(2.0, exponent)


@decomposition(aten.signbit.default)
def signbit(x: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        return torch.zeros_like(x)
    return torch.copysign(number_like(1, x), x) < 0 if x.dtype.is_floating_point else x < 0


def _picks(x: Tensor, y: Tensor) -> bool:
    return not (x.dtype.is_complex or y.dtype.is_complex) and x.dtype == y.dtype


@decomposition(aten.fmax.default)
def fmax(x: Tensor, y: Tensor) -> Tensor:
    if not _picks(x, y) or not x.dtype.is_floating_point:
        return torch.maximum(x, y) if _picks(x, y) else NotImplemented
    return torch.where(torch.isnan(y) | (x >= y), x, y)


@decomposition(aten.fmin.default)
def fmin(x: Tensor, y: Tensor) -> Tensor:
    if not _picks(x, y) or not x.dtype.is_floating_point:
        return torch.minimum(x, y) if _picks(x, y) else NotImplemented
    return torch.where(torch.isnan(y) | (x <= y), x, y)


@decomposition(aten.trace.default)
def trace(x: Tensor) -> Tensor:
    return torch.sum(torch.diagonal(x)) if x.dim() == 2 and x.numel() else NotImplemented


@decomposition(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    rank = x.dim() + 1
    dim1, dim2 = dim1 % rank, dim2 % rank
    if dim1 == dim2 or x.dim() == 0 or on_cpu_library(x):
        return NotImplemented  # eager raises, or is faster
    extent = x.shape[-1] + abs(offset)
    rows = torch.unsqueeze(torch.arange(extent, dtype=torch.int64, device=x.device), 1)
    columns = torch.arange(extent, dtype=torch.int64, device=x.device)
    place = torch.clamp(rows if offset >= 0 else columns.expand([extent, extent]), max=max(x.shape[-1] - 1, 0))
    if not x.shape[-1]:
        return NotImplemented
    spread = aten._unsafe_index.Tensor(x, [*[None] * (x.dim() - 1), place.expand([extent, extent])])
    matrix = torch.where(columns - rows == offset, spread, number_like(0, x))
    lead = iter(range(x.dim() - 1))
    order = [x.dim() - 1 if axis == dim1 else x.dim() if axis == dim2 else next(lead) for axis in range(rank)]
    return torch.permute(matrix, order)


@decomposition(aten.rot90.default)
def rot90(x: Tensor, k: int = 1, dims: tuple[int, int] = (0, 1)) -> Tensor:
    if len(dims) != 2 or x.dim() < 2 or dims[0] % x.dim() == dims[1] % x.dim():
        return NotImplemented  # eager raises
    match k % 4:
        case 1:
            return torch.flip(torch.transpose(x, *dims), [dims[0]])
        case 2:
            return torch.flip(x, list(dims))
        case 3:
            return torch.transpose(torch.flip(x, [dims[0]]), *dims)
    return torch.clone(x)


@decomposition(aten.linalg_cross.default)
def cross(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    if x.dim() != y.dim() or x.shape[dim] != 3 or y.shape[dim] != 3 or x.dtype != y.dtype or not may_reorder_sums(x.dtype):
        return NotImplemented
    x, y = torch.broadcast_tensors(x, y)
    a, b = widen(x), widen(y)
    before, after = ([torch.roll(v, 2, dim), torch.roll(v, 1, dim)] for v in (a, b))
    return cast(before[0] * after[1] - before[1] * after[0], x.dtype) if x.numel() else NotImplemented


@decomposition(aten.dist.default)
def dist(x: Tensor, y: Tensor, p: Number = 2) -> Tensor:
    if x.dtype != y.dtype or not may_reorder_sums(x.dtype):
        return NotImplemented
    return torch.linalg.vector_norm(x - y, p)


@decomposition(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    if not x.dtype.is_floating_point or target.dtype != x.dtype:
        return NotImplemented
    loss = torch.log1p(torch.exp(-x * target))  # each step in the type of the operands, as in eager: halves overflow
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


@decomposition(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    if not x.dtype.is_floating_point or target.dtype != x.dtype:
        return NotImplemented
    rest = torch.exp(-target * x)
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    return -target * rest / (rest + 1) * share * grad


@decomposition(aten.isin.Tensor_Tensor)
def isin(x: Tensor, others: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    if x.device != others.device or type(others.numel()) is not int or others.numel() > 64 or not others.numel():
        return NotImplemented  # many are sorted and searched by a library
    found = torch.any(torch.unsqueeze(x, -1) == others.reshape([-1]), -1)
    return torch.logical_not(found) if invert else found


@decomposition(aten.isin.Tensor_Scalar)
def isin_one(x: Tensor, other: Number, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    return x != other if invert else x == other


@decomposition(aten.isin.Scalar_Tensor)
def is_one_in(x: Number, others: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    found = torch.any(others == x)
    return torch.logical_not(found) if invert else found


@decomposition(aten.bucketize.Tensor)
def bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searched(x, boundaries, out_int32, right)


@decomposition(aten.searchsorted.Tensor)
def searchsorted(
    line: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Tensor | None = None
) -> Tensor:
    if sorter is not None or side not in (None, "left", "right") or (right and side == "left"):
        return NotImplemented
    return _searched(x, line, out_int32, right or side == "right")


def _searched(x: Tensor, line: Tensor, out_int32: bool, right: bool) -> Any:
    """How many of the sorted numbers lie before each of `x`: by halves, as many steps as the line's length has bits.

    line: one for all, or one for each row of `x`.
    """
    if not line.dim() or (line.dim() > 1 and line.shape[:-1] != x.shape[:-1]):
        return NotImplemented
    count = line.shape[-1]
    if type(count) is not int or x.dtype != line.dtype or x.dtype.is_complex or x.device != line.device:
        return NotImplemented
    dtype = torch.int32 if out_int32 else torch.int64
    if not count or not x.numel():
        return torch.zeros_like(x, dtype=dtype)
    place = torch.zeros_like(x, dtype=torch.int64)
    step = 1 << (count.bit_length() - 1)
    while step:
        tried = place + step
        at = torch.clamp(tried - 1, max=count - 1)
        number = aten._unsafe_index.Tensor(line, [at]) if line.dim() == 1 else torch.gather(line, -1, at)
        before = torch.logical_not(number > x) if right else torch.logical_not(number >= x)  # NaN lies behind all numbers
        place = torch.where((tried <= count) & before, tried, place)
        step >>= 1
    return cast(place, dtype)
