"""Reductions in terms of sum, var_mean, amax, any.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxloom_decomp.axes import number_like
from fxloom_decomp.libraries import may_reorder_sums
from fxloom_decomp.registry import cast, decomposition, widen
from fxloom_decomp.sizes import is_empty

aten = torch.ops.aten


def _axes(x: Tensor, dim: list[int] | int | None) -> list[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    chosen = [dim] if isinstance(dim, int) else list(dim)
    return [axis % max(x.dim(), 1) for axis in chosen] if x.dim() else []


def _count(x: Tensor, axes: list[int]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


@decomposition(aten.mean.default)
def mean(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return mean_dim(x, None, False, dtype)


@decomposition(aten.mean.dim)
def mean_dim(x: Tensor, dim: list[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    if not (result.is_floating_point or result.is_complex):
        return NotImplemented  # eager raises
    wide = widen(cast(x, result))
    axes = _axes(x, dim)
    total = torch.sum(wide, axes, keepdim=keepdim) if axes else wide
    count = _count(x, axes)
    # an empty mean is 0/0
    return cast(total / count if count else total * math.nan, result)


@decomposition(aten.var.correction)
def var(x: Tensor, dim: list[int] | None = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return torch.var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


@decomposition(aten.std.correction)
def std(x: Tensor, dim: list[int] | None = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    if x.dtype.is_complex:
        return NotImplemented
    wide = torch.var_mean(widen(x), dim, correction=correction, keepdim=keepdim)[0]
    return cast(torch.sqrt(wide), x.dtype)


@decomposition(aten.std_mean.correction)
def std_mean(
    x: Tensor, dim: list[int] | None = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if x.dtype.is_complex:
        return NotImplemented
    variance, average = torch.var_mean(widen(x), dim, correction=correction, keepdim=keepdim)
    return cast(torch.sqrt(variance), x.dtype), cast(average, x.dtype)


@decomposition(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor, ord: float = 2, dim: list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    axes = _axes(x, dim)
    if x.dtype.is_complex or is_empty(x, axes) or (dtype is not None and dtype.is_complex):
        return NotImplemented
    result = dtype or x.dtype
    wide = torch.abs(widen(cast(x, result)))
    if ord != 0 and _count(x, axes) == 1:  # of one number, whose power may overflow
        norm = torch.amax(wide, axes, keepdim=keepdim) if axes else wide
    elif not axes:
        norm = torch.where(wide != 0, 1.0, 0.0)
    elif ord == math.inf:
        norm = torch.amax(wide, axes, keepdim=keepdim)
    elif ord == -math.inf:
        norm = torch.amin(wide, axes, keepdim=keepdim)
    elif ord == 0:
        norm = torch.sum(cast(wide != 0, wide.dtype), axes, keepdim=keepdim)
    elif ord == 1:
        norm = torch.sum(wide, axes, keepdim=keepdim)
    elif ord == 2:
        norm = torch.sqrt(torch.sum(wide * wide, axes, keepdim=keepdim))
    else:
        norm = torch.pow(torch.sum(torch.pow(wide, ord), axes, keepdim=keepdim), 1.0 / ord)
    return cast(norm, result)


@decomposition(aten.aminmax.default)
def aminmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    axes = [] if dim is None else [dim]
    return torch.amin(x, axes, keepdim=keepdim), torch.amax(x, axes, keepdim=keepdim)


@decomposition(aten.count_nonzero.dim_IntList)
def count_nonzero(x: Tensor, dim: list[int]) -> Tensor:
    return torch.sum(x != 0, _axes(x, dim)) if _axes(x, dim) else cast(x != 0, torch.int64)


@decomposition(aten.count_nonzero.default)
def count_nonzero_all(x: Tensor, dim: int | None = None) -> Tensor:
    return count_nonzero(x, [] if dim is None else [dim])


@decomposition(aten.nansum.default)
def nansum(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if x.dtype.is_complex:
        return NotImplemented  # eager raises
    if dtype is not None and x.dtype.is_floating_point:
        x = cast(x, dtype)
    numbers = torch.where(torch.isnan(x), number_like(0, x), x) if x.dtype.is_floating_point else x
    return torch.sum(numbers, dim, keepdim=keepdim, dtype=dtype)


def _norm(x: Tensor, p: float | None, dim: list[int] | None, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    if not may_reorder_sums(x.dtype) or (dtype is not None and not may_reorder_sums(dtype)):
        return NotImplemented
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


@decomposition(aten.norm.Scalar)
def norm(x: Tensor, p: float = 2) -> Tensor:
    return _norm(x, p, None, False, None)


@decomposition(aten.norm.ScalarOpt_dtype)
def norm_dtype(x: Tensor, p: float | None, *, dtype: torch.dtype) -> Tensor:
    return _norm(x, p, None, False, dtype)


@decomposition(aten.norm.ScalarOpt_dim)
def norm_dim(x: Tensor, p: float | None, dim: list[int], keepdim: bool = False) -> Tensor:
    return _norm(x, p, dim, keepdim, None)


@decomposition(aten.norm.ScalarOpt_dim_dtype)
def norm_dim_dtype(x: Tensor, p: float | None, dim: list[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    return _norm(x, p, dim, keepdim, dtype)
