"""Folds and scans along axes, in prims.

In: a tensor, axes, whether they are kept. Out: values. Sums of half-precision numbers are taken in float32 and rounded once.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.prims.elementwise import truth
from fxloom_decomp.prims.operands import (
    axes_of,
    axis_of,
    broadcast,
    float_type,
    full,
    full_like,
    kept,
    product,
    reshaped,
    to,
    widened,
)
from fxloom_decomp.prims.registry import prims_rule
from fxloom_decomp.registry import wide_dtype
from fxloom_interfaces.prims import Prim, p

aten = torch.ops.aten


def folded(prim: Prim, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """A prim over axes; of no axes, the value itself."""
    axes = axes_of(x, dim)
    found = prim(x, axes) if axes else p.copy(x)
    return kept(found, x, axes) if keepdim else found


def _whole(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """x in the type in which sums and products are: integers are added in int64."""
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point else torch.int64
    return to(x, dtype)


@prims_rule(aten.sum.default)
def sum_(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return sum_dim(x, None, dtype=dtype)


@prims_rule(aten.sum.dim_IntList)
def sum_dim(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is torch.bool:
        return folded(p.any, truth(x), dim, keepdim)
    return folded(p.sum, _whole(x, dtype), dim, keepdim)


@prims_rule(aten.prod.default)
def prod(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return folded(p.prod, _whole(x, dtype), None, False) if dtype is not torch.bool else folded(p.all, truth(x), None, False)


@prims_rule(aten.prod.dim_int)
def prod_dim(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is torch.bool:
        return folded(p.all, truth(x), dim, keepdim)
    return folded(p.prod, _whole(x, dtype), dim, keepdim)


@prims_rule(aten.any.default, aten.any.dim, aten.any.dims)
def any_(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    if isinstance(dim, (list, tuple)) and not dim:
        dim = None
    return _as_bytes(x, folded(p.any, truth(x), dim, keepdim))


@prims_rule(aten.all.default, aten.all.dim, aten.all.dims)
def all_(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return _as_bytes(x, folded(p.all, truth(x), dim, keepdim))


def _as_bytes(x: Tensor, found: Tensor) -> Tensor:
    """Of bytes, eager's truth is a byte."""
    return to(found, torch.uint8) if x.dtype is torch.uint8 else found


def _extreme(prim: Prim, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    if x.dtype is torch.bool:
        return folded(p.any if prim is p.amax else p.all, x, dim, keepdim)
    return folded(prim, x, dim, keepdim)


@prims_rule(aten.amax.default)
def amax(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return _extreme(p.amax, x, dim, keepdim)


@prims_rule(aten.amin.default)
def amin(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return _extreme(p.amin, x, dim, keepdim)


@prims_rule(aten.max.default)
def max_(x: Tensor) -> Tensor:
    return _extreme(p.amax, x, None, False)


@prims_rule(aten.min.default)
def min_(x: Tensor) -> Tensor:
    return _extreme(p.amin, x, None, False)


@prims_rule(aten.aminmax.default)
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(p.amin, x, dim, keepdim), _extreme(p.amax, x, dim, keepdim)


@prims_rule(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """Of integers and booleans, as floats; of nothing, -inf. Others have a decomposition."""
    dtype = float_type(x)
    axes = axes_of(x, dim)
    if any(type(x.shape[axis]) is int and x.shape[axis] == 0 for axis in axes):
        found = p.sum(to(x, dtype), axes)
        found = full_like(found, float("-inf"))
        return kept(found, x, axes) if keepdim else found
    if x.dtype == dtype:
        return NotImplemented
    y = to(x, dtype)
    if not axes:
        return y
    largest = kept(p.amax(y, axes), x, axes)
    total = p.log(p.sum(p.exp(p.sub(y, broadcast(largest, x.shape))), axes))
    found = p.add(total, reshaped(largest, total.shape))
    return kept(found, x, axes) if keepdim else found


def _arg(prim: Prim, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    y = to(x, torch.uint8) if x.dtype is torch.bool else x
    if dim is None:
        found = prim(reshaped(y, [product(y.shape)]), 0)
        return reshaped(found, [1] * x.dim()) if keepdim else found
    if not x.dim():
        return full((), 0, torch.int64, x.device)
    axis = axis_of(x, dim)
    found = prim(y, axis)
    return kept(found, x, [axis]) if keepdim else found


@prims_rule(aten.argmax.default)
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(p.argmax, x, dim, keepdim)


@prims_rule(aten.argmin.default)
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(p.argmin, x, dim, keepdim)


@prims_rule(aten.max.dim)
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(p.amax, x, dim, keepdim), _arg(p.argmax, x, dim, keepdim)


@prims_rule(aten.min.dim)
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(p.amin, x, dim, keepdim), _arg(p.argmin, x, dim, keepdim)


@prims_rule(aten.mean.default)
def mean(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return mean_dim(x, None, dtype=dtype)


@prims_rule(aten.mean.dim)
def mean_dim(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    if not result.is_floating_point:
        return NotImplemented  # eager refuses it
    acc = to(to(x, result), wide_dtype(result))
    total = folded(p.sum, acc, dim, keepdim)
    count = product([x.shape[axis] for axis in axes_of(x, dim)])
    return to(p.div(total, full_like(total, count)), result)


@prims_rule(aten.var_mean.correction)
def var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_floating_point:
        return NotImplemented
    axes = axes_of(x, dim)
    y = reshaped(x, [1]) if not x.dim() else x
    variance, average = p.var_mean(widened(y), axes or (0,), 1 if correction is None else correction)
    if keepdim:
        variance, average = kept(variance, x, axes), kept(average, x, axes)
    return to(variance, x.dtype), to(average, x.dtype)


@prims_rule(aten.var.correction)
def var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    found = var_mean(x, dim, correction=correction, keepdim=keepdim)
    return found if found is NotImplemented else found[0]


# --- scans ----------------------------------------------------------------------------------------------------------------


def _scanned(prim: Prim, x: Tensor, dim: int) -> Tensor:
    return prim(x, axis_of(x, dim)) if x.dim() else p.copy(x)


@prims_rule(aten.cumsum.default)
def cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _scanned(p.cumsum, _whole(x, dtype), dim) if dtype is not torch.bool else NotImplemented


@prims_rule(aten.cumprod.default)
def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _scanned(p.cumprod, _whole(x, dtype), dim) if dtype is not torch.bool else NotImplemented


@prims_rule(aten.logcumsumexp.default)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return _scanned(p.logcumsumexp, x, dim)


def _running(prim: Prim, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    if not x.dim():
        return p.copy(x), full((), 0, torch.int64, x.device)
    return prim(x, axis_of(x, dim))


@prims_rule(aten.cummax.default)
def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(p.cummax, x, dim)


@prims_rule(aten.cummin.default)
def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(p.cummin, x, dim)


@prims_rule(aten.sort.stable)
def sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if not x.dim():
        return p.copy(x), full((), 0, torch.int64, x.device)
    return p.sort(x, axis_of(x, dim), descending, bool(stable))


@prims_rule(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return sort_stable(x, stable=False, dim=dim, descending=descending)


