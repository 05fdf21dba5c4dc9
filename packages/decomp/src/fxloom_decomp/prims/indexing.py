"""Reads and writes at places that are data, in prims.

In: a tensor, integer or boolean indices, values. Out: values. An index out of range
raises when the graph runs, IndexError or RuntimeError as in eager.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.expectations import expect
from fxloom_decomp.prims.elementwise import truth
from fxloom_decomp.prims.operands import (
    Number,
    along,
    axis_of,
    broadcast,
    common_size,
    element_type,
    full,
    full_like,
    moved,
    permuted,
    product,
    reshaped,
    to,
    widened,
)
from fxloom_decomp.prims.registry import prims_rule
from fxloom_interfaces.prims import Prim, p

aten = torch.ops.aten
_INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


def places(index: Tensor) -> Tensor:
    return to(index, torch.int64)


# --- several axes ---------------------------------------------------------------------------------------------------------


def _indexed_axes(indices: Sequence[Tensor | None]) -> tuple[list[int], int] | None:
    """The axes that are indexed, and before which axis of the result the indices' axes stand. None for indices that are no integers."""
    used = [axis for axis, index in enumerate(indices) if index is not None]
    for axis in used:
        index = indices[axis]
        assert index is not None
        if index.dtype not in _INDEX_TYPES:
            return None
    adjacent = used == list(range(used[0], used[-1] + 1))
    return used, used[0] if adjacent else 0


def _brought(indices: Sequence[Tensor | None], used: list[int]) -> list[Tensor]:
    """The indices of one size."""
    given = [places(indices[axis]) for axis in used]  # type: ignore[arg-type]  # the used ones are there
    size = common_size([index.shape for index in given])
    return [broadcast(index, size) for index in given]


def _order(rank: int, lead: int, at: int) -> list[int]:
    """The order of axes that brings the first `lead` axes of a tensor before axis `at` of the others."""
    others = list(range(lead, rank))
    return [*others[:at], *range(lead), *others[at:]]


@prims_rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    found = _indexed_axes(indices)
    if found is None:
        return NotImplemented  # booleans: the size of the result is in the data
    used, at = found
    given = _brought(indices, used)
    values = p.gather_nd(moved(x, used), given)
    return permuted(values, _order(values.dim(), given[0].dim(), at))


@prims_rule(aten._unsafe_masked_index.default)
def masked_index(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], value: Number) -> Tensor:
    found = _indexed_axes(indices)
    if found is None:
        return NotImplemented
    used, _ = found
    shape = common_size([mask.shape, *(indices[axis].shape for axis in used)])  # type: ignore[union-attr]  # they are there
    if any(index is None for index in indices) or len(indices) != x.dim():
        return NotImplemented
    held = broadcast(mask, shape)
    given = [broadcast(places(indices[axis]), shape) for axis in used]  # type: ignore[arg-type]
    inside = [p.where(held, index, full_like(index, 0)) for index in given]
    if any(type(extent) is int and extent == 0 for extent in x.shape):
        return full(shape, value, x.dtype, x.device)
    values = p.gather_nd(x, inside)
    return p.where(held, values, full_like(values, value))


@prims_rule(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False) -> Tensor:
    given = [index for index in indices if index is not None]
    if len(given) == 1 and given[0].dtype is torch.bool:
        return _put_where(x, indices, given[0], values, accumulate)
    found = _indexed_axes(indices)
    if found is None or values.dtype != x.dtype:
        return NotImplemented
    used, at = found
    given = _brought(indices, used)
    lead = given[0].dim()
    rest = [x.shape[axis] for axis in range(x.dim()) if axis not in used]
    source = broadcast(values, [*rest[:at], *given[0].shape, *rest[at:]])
    order = _order(source.dim(), lead, at)
    source = permuted(source, [order.index(axis) for axis in range(source.dim())])
    front = moved(x, used)
    return moved(_written(front, given, source, accumulate), used, to_front=False)


def _written(x: Tensor, given: list[Tensor], source: Tensor, accumulate: bool) -> Tensor:
    if not accumulate:
        return p.scatter_nd(x, given, source)
    if x.dtype is torch.bool:
        return truth(p.scatter_nd_add(to(x, torch.int32), given, to(source, torch.int32)))
    return p.scatter_nd_add(x, given, source)


def _put_where(x: Tensor, indices: Sequence[Tensor | None], mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Values written where a mask holds: one for all places, or one after the other."""
    lead = next(axis for axis, index in enumerate(indices) if index is not None)
    rest = x.dim() - lead - mask.dim()
    if values.dtype != x.dtype or not mask.dim():
        return NotImplemented
    behind = values.shape[values.dim() - min(rest, values.dim()) :]
    before = values.shape[: max(values.dim() - rest - 1, 0)]
    count = values.shape[values.dim() - rest - 1] if values.dim() > rest else 1
    if _is_one(count):
        spread = broadcast(reshaped(values, [*before, *[1] * (mask.dim() if values.dim() > rest else 0), *behind]), x.shape)
    else:
        flat = to(reshaped(mask, [product(mask.shape)]), torch.int64)
        expect(p.eq(p.sum(flat, (0,)), full((), count, torch.int64, x.device)), "shape mismatch: as many values as places are written")
        number = p.sub(p.cumsum(flat, 0), full_like(flat, 1))
        held = p.minimum(p.maximum(number, full_like(number, 0)), full_like(number, count - 1))
        taken = p.index_select(values, held, values.dim() - rest - 1)
        spread = broadcast(reshaped(taken, [*before, *mask.shape, *behind]), x.shape)
    where = p.broadcast_in_dim(mask, tuple(x.shape), tuple(range(lead, lead + mask.dim())))
    new = spread
    if accumulate:
        new = p.bitwise_or(x, spread) if x.dtype is torch.bool else to(p.add(widened(x), widened(spread)), x.dtype)
    return p.where(where, new, x)


def _is_one(extent: Any) -> bool:
    return type(extent) is int and extent == 1


@prims_rule(aten._unsafe_masked_index_put_accumulate.default)
def masked_index_put(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    if any(index is None for index in indices) or len(indices) != x.dim():
        return NotImplemented
    shape = common_size([mask.shape, *(index.shape for index in indices if index is not None)])
    held = broadcast(mask, shape)
    given = [broadcast(places(index), shape) for index in indices if index is not None]
    source = broadcast(values, shape)
    if any(type(extent) is int and extent == 0 for extent in x.shape):
        return p.copy(x)
    inside = [p.where(held, index, full_like(index, 0)) for index in given]
    return p.scatter_nd_add(x, inside, p.where(held, source, full_like(source, 0)))


@prims_rule(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = reshaped(x, [product(x.shape)])
    count = [product(index.shape)]
    at, values = reshaped(places(index), count), reshaped(source, count)
    return reshaped(_written(flat, [at], values, accumulate), x.shape)


@prims_rule(aten.take.default)
def take(x: Tensor, index: Tensor) -> Tensor:
    return p.gather_nd(reshaped(x, [product(x.shape)]), [places(index)])


# --- one axis -------------------------------------------------------------------------------------------------------------


@prims_rule(aten.gather.default)
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not x.dim() or not index.dim():
        flat = p.gather(reshaped(x, [1]) if not x.dim() else x, 0, reshaped(places(index), [product(index.shape)]))
        return reshaped(flat, index.shape)
    if any(type(extent) is int and extent == 0 for extent in index.shape):
        return full(index.shape, 0, x.dtype, x.device)
    return p.gather(x, axis_of(x, dim), places(index))


@prims_rule(aten.index_select.default)
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    at = reshaped(places(index), [product(index.shape)])
    if not x.dim():
        return reshaped(p.index_select(reshaped(x, [1]), at, 0), [])
    return p.index_select(x, at, axis_of(x, dim))


@prims_rule(aten.embedding.default)
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    at = reshaped(places(indices), [product(indices.shape)])
    return reshaped(p.index_select(weight, at, 0), [*indices.shape, *weight.shape[1:]])


_COMBINE: dict[str, Prim] = {
    "sum": p.scatter_add,
    "add": p.scatter_add,
    "mean": p.scatter_add,
    "prod": p.scatter_prod,
    "multiply": p.scatter_prod,
    "amax": p.scatter_amax,
    "amin": p.scatter_amin,
}


def scattered(prim: Prim, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with source written at index; source is cut to the size of the index, as eager does."""
    if not x.dim() or not index.dim():
        flat, at = reshaped(x, [product(x.shape)]), reshaped(index, [product(index.shape)])
        values = reshaped(source, [product(source.shape)])
        return reshaped(scattered(prim, flat, 0, at, values), x.shape)
    if any(type(extent) is int and extent == 0 for extent in index.shape):
        return p.copy(x)
    for axis in range(index.dim()):
        if source.shape[axis] is not index.shape[axis] and source.shape[axis] != index.shape[axis]:
            starts, limits = [0] * index.dim(), list(source.shape)
            limits[axis] = index.shape[axis]
            source = p.slice(source, tuple(starts), tuple(limits), (1,) * index.dim())
    return prim(x, axis_of(x, dim), places(index), source)


def _combined(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """scatter_reduce: what meets at a place is combined, with what was there or without."""
    prim = _COMBINE[reduce]
    whole = x.dtype is torch.bool
    acc = to(x, torch.int32) if whole else widened(x) if reduce in ("mean", "prod", "multiply", "sum", "add") else x
    values = to(source, acc.dtype)
    start = acc
    if not include_self:
        start = scattered(p.scatter, acc, dim, index, full(index.shape, _identity(reduce, acc.dtype), acc.dtype, x.device))
    found = scattered(prim, start, dim, index, values)
    if reduce == "mean":
        counts = full_like(acc, 1)
        if not include_self:
            counts = scattered(p.scatter, counts, dim, index, full(index.shape, 0, acc.dtype, x.device))
        counts = scattered(p.scatter_add, counts, dim, index, full(index.shape, 1, acc.dtype, x.device))
        counts = p.maximum(counts, full_like(counts, 1))
        found = p.div(found, counts) if acc.dtype.is_floating_point else p.floor_div(found, counts)
    return truth(found) if whole else to(found, x.dtype)


def _identity(reduce: str, dtype: torch.dtype) -> Number:
    """What combines with any value to that value."""
    if reduce in ("amax", "amin"):
        if dtype.is_floating_point:
            return float("-inf") if reduce == "amax" else float("inf")
        limits = torch.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return 1 if reduce in ("prod", "multiply") else 0


@prims_rule(aten.scatter.src)
def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scattered(p.scatter, x, dim, index, src) if x.dtype == src.dtype else NotImplemented


@prims_rule(aten.scatter.value)
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    return scattered(p.scatter, x, dim, index, full(index.shape, value, x.dtype, x.device))


@prims_rule(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _combined(x, dim, index, src, "sum") if x.dtype == src.dtype else NotImplemented


@prims_rule(aten.scatter.reduce)
def scatter_with(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return _combined(x, dim, index, src, reduce) if x.dtype == src.dtype else NotImplemented


@prims_rule(aten.scatter.value_reduce)
def scatter_value_with(x: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str) -> Tensor:
    return _combined(x, dim, index, full(index.shape, value, x.dtype, x.device), reduce)


@prims_rule(aten.scatter_reduce.two)
def scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    return _combined(x, dim, index, src, reduce, include_self) if x.dtype == src.dtype else NotImplemented


def _spread_along(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """A line of places along an axis of source, the same along the others."""
    flat = reshaped(places(index), [product(index.shape)])
    return along(flat, axis, source.shape)


def _lined(x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors without axes as lines of one element."""
    return (reshaped(x, [1]), reshaped(source, [1])) if not x.dim() else (x, source)


@prims_rule(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    axis = axis_of(x, dim)
    if x.dtype != source.dtype:
        return NotImplemented
    base, values = _lined(x, source)
    if isinstance(alpha, (torch.SymInt, torch.SymFloat)) or alpha != 1:
        scale = full_like(values, alpha)
        values = p.bitwise_and(values, scale) if x.dtype is torch.bool else p.mul(values, scale)
    return reshaped(_combined(base, axis, _spread_along(base, axis, index, values), values, "sum"), x.shape)


@prims_rule(aten.index_copy.default)
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    axis = axis_of(x, dim)
    base, values = _lined(x, reshaped(source, [1] if not x.dim() else source.shape))
    if values.dim() != base.dim():
        values = reshaped(values, [*base.shape[:axis], 1, *base.shape[axis + 1 :]])
    return reshaped(scattered(p.scatter, base, axis, _spread_along(base, axis, index, values), values), x.shape)


@prims_rule(aten.index_reduce.default)
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    axis = axis_of(x, dim)
    base, values = _lined(x, source)
    spread = _spread_along(base, axis, index, values)
    return reshaped(_combined(base, axis, spread, values, reduce, include_self), x.shape)


# --- search ---------------------------------------------------------------------------------------------------------------


def _is_right(right: bool, side: str | None) -> bool:
    return side == "right" if side is not None else right


def _searched(line: Tensor, values: Tensor, right: bool, out_int32: bool) -> Tensor:
    a, b = to(line, element_type(line, values)), to(values, element_type(line, values))
    found = p.searchsorted(a, b, right)
    return to(found, torch.int32) if out_int32 else found


@prims_rule(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    line: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        line = p.gather(line, line.dim() - 1, places(sorter))
    if not isinstance(values, Tensor):
        values = full((), values, element_type(line, values), line.device)
    return _searched(line, values, _is_right(right, side), out_int32)


@prims_rule(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(values: Any, line: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(line, values, out_int32=out_int32, right=right)


@prims_rule(aten.masked_fill.Tensor)
def masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or value.device != x.device or torch.promote_types(x.dtype, value.dtype) != x.dtype:
        return NotImplemented
    size = common_size([x.shape, mask.shape])
    return p.where(broadcast(mask, size), broadcast(to(value, x.dtype), size), broadcast(x, size))
