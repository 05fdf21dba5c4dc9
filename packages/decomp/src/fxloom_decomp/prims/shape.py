"""Views, joins and pieces in prims. A view operator stands for the value that it gives; a result may be the operand itself.

In: tensors, axes, sizes. Out: values.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.prims.operands import (
    along,
    axis_of,
    broadcast,
    element_type,
    full,
    line,
    moved,
    part,
    permuted,
    product,
    reshaped,
    to,
)
from fxloom_decomp.prims.registry import prims_rule
from fxloom_interfaces.prims import p

aten = torch.ops.aten


@prims_rule(
    aten.alias.default,
    aten.detach.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def same(x: Tensor) -> Tensor:
    return x


@prims_rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_copy.default)
def view(x: Tensor, size: Sequence[Any]) -> Tensor:
    unknown = [axis for axis, extent in enumerate(size) if type(extent) is int and extent == -1]
    size = list(size)
    if unknown:
        rest = product([extent for axis, extent in enumerate(size) if axis not in unknown])
        if type(rest) is int and rest == 0:
            raise RuntimeError(f"an extent of {size} can be anything")
        size[unknown[0]] = product(x.shape) // rest
    return reshaped(x, size)


@prims_rule(aten.view.dtype)
def view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    return p.bitcast(x, dtype)


@prims_rule(aten.expand.default)
def expand(x: Tensor, size: Sequence[Any], *, implicit: bool = False) -> Tensor:
    lead = len(size) - x.dim()
    kept = [x.shape[axis - lead] if type(extent) is int and extent == -1 else extent for axis, extent in enumerate(size)]
    return broadcast(x, kept)


@prims_rule(aten.permute.default)
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return permuted(x, [axis_of(x, dim) for dim in dims])


@prims_rule(aten.transpose.int)
def transpose(x: Tensor, first: int, second: int) -> Tensor:
    if not x.dim():
        return x
    order = list(range(x.dim()))
    first, second = axis_of(x, first), axis_of(x, second)
    order[first], order[second] = second, first
    return permuted(x, order)


@prims_rule(aten.t.default)
def t(x: Tensor) -> Tensor:
    return permuted(x, range(x.dim() - 1, -1, -1))


@prims_rule(aten.unsqueeze.default)
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    dim %= x.dim() + 1
    return reshaped(x, [*x.shape[:dim], 1, *x.shape[dim:]])


@prims_rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    if not x.dim():
        return x
    dims = range(x.dim()) if dim is None else [axis_of(x, one) for one in (dim if isinstance(dim, (list, tuple)) else [dim])]
    gone = {axis for axis in dims if type(x.shape[axis]) is int and x.shape[axis] == 1}
    return reshaped(x, [extent for axis, extent in enumerate(x.shape) if axis not in gone])


def clipped(position: Any, extent: Any) -> Any:
    """A bound of a slice, counted from 0 and within the axis."""
    if type(position) is int and type(extent) is int:
        return min(max(position + extent if position < 0 else position, 0), extent)
    if type(position) is int and position >= 2**62:
        return extent
    return torch.sym_min(torch.sym_max(position + extent if position < 0 else position, 0), extent)


@prims_rule(aten.slice.Tensor)
def slice_(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    axis = axis_of(x, dim)
    extent = x.shape[axis]
    first = clipped(0 if start is None else start, extent)
    last = clipped(extent if end is None else end, extent)
    if type(first) is int and type(last) is int:
        last = max(first, last)
    elif first is not last and not (type(first) is int and first == 0):
        last = torch.sym_max(first, last)
    return part(x, axis, first, last, step)


@prims_rule(aten.select.int)
def select(x: Tensor, dim: int, index: Any) -> Tensor:
    axis = axis_of(x, dim)
    extent = x.shape[axis]
    if not -extent <= index < extent:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")
    first = index + extent if index < 0 else index
    return reshaped(part(x, axis, first, first + 1), [*x.shape[:axis], *x.shape[axis + 1 :]])


def _pieces(x: Tensor, sizes: Sequence[Any], axis: int) -> list[Tensor]:
    found, start = [], 0
    for size in sizes:
        found.append(part(x, axis, start, start + size))
        start = start + size
    return found


@prims_rule(aten.split_with_sizes.default, aten.split_with_sizes_copy.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(x: Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Tensor]:
    return _pieces(x, sizes, axis_of(x, dim))


@prims_rule(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(x: Tensor, size: Any, dim: int = 0) -> list[Tensor]:
    axis = axis_of(x, dim)
    extent = x.shape[axis]
    if type(size) is int and type(extent) is int and size == 0 and extent == 0:
        return [x]
    count = int((extent + size - 1) // size)  # how many results there are is part of the graph
    count = max(count, 1)
    return _pieces(x, [*[size] * (count - 1), extent - size * (count - 1)], axis)


@prims_rule(aten.chunk.default)
def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    axis = axis_of(x, dim)
    size = (x.shape[axis] + chunks - 1) // chunks
    if type(size) is int and size == 0:
        return [part(x, axis, 0, 0) for _ in range(chunks)]
    return split(x, size, axis)


@prims_rule(aten.unbind.int)
def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    axis = axis_of(x, dim)
    return [select(x, axis, index) for index in range(int(x.shape[axis]))]


@prims_rule(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dtype = element_type(*tensors)
    parts = [to(x, dtype) for x in tensors if not _is_nothing(x)]
    if not parts:
        return p.copy(to(tensors[0], dtype))
    return p.cat(parts, axis_of(parts[0], dim))


def _is_nothing(x: Tensor) -> bool:
    """True for a line of no elements, which joins anything."""
    return x.dim() == 1 and type(x.shape[0]) is int and x.shape[0] == 0


@prims_rule(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim % (tensors[0].dim() + 1)
    return cat([unsqueeze(x, axis) for x in tensors], axis)


@prims_rule(aten.constant_pad_nd.default)
def constant_pad_nd(x: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    low, high = [0] * x.dim(), [0] * x.dim()
    for place in range(len(pad) // 2):
        low[x.dim() - 1 - place], high[x.dim() - 1 - place] = pad[2 * place], pad[2 * place + 1]
    return p.pad(x, value, tuple(low), tuple(high))


@prims_rule(aten.flip.default)
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    axes = tuple(sorted(axis_of(x, dim) for dim in dims)) if x.dim() else ()
    return p.flip(x, axes) if axes else p.copy(x)


@prims_rule(aten.repeat.default)
def repeat(x: Tensor, repeats: Sequence[Any]) -> Tensor:
    lead = len(repeats) - x.dim()
    size = [1] * lead + list(x.shape)
    pairs = [extent for pair in zip(repeats, size, strict=True) for extent in pair]
    axes = tuple(2 * (axis + lead) + 1 for axis in range(x.dim()))
    spread = p.broadcast_in_dim(x, tuple(pairs), axes)
    return reshaped(spread, [count * extent for count, extent in zip(repeats, size, strict=True)])


def picked(x: Tensor, places: Tensor) -> Tensor:
    """The elements of a line at places of any size."""
    flat = reshaped(places, [product(places.shape)])
    return reshaped(p.index_select(x, flat, 0), places.shape)


def affine(size: Sequence[Any], strides: Sequence[Any], offset: Any, device: torch.device) -> Tensor:
    """offset + the sum of index · stride over the axes of a size: places in memory."""
    size = tuple(size)
    places = full(size, offset, torch.int64, device)
    for axis, (extent, stride) in enumerate(zip(size, strides, strict=True)):
        places = p.add(places, along(line(extent, device, 0, stride), axis, size))
    return places


@prims_rule(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Tensor:
    """Of a line, or of a tensor that lies in memory as its elements are counted."""
    if not x.is_contiguous() or x.storage_offset():
        return NotImplemented
    flat = reshaped(x, [product(x.shape)])
    return picked(flat, affine(size, stride, 0 if offset is None else offset, x.device))


@prims_rule(aten.diagonal.default)
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = axis_of(x, dim1), axis_of(x, dim2)
    rest = [axis for axis in range(x.dim()) if axis not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    down, right = max(-offset, 0), max(offset, 0)
    length = torch.sym_max(torch.sym_min(rows - down, columns - right), 0)
    flat = reshaped(permuted(x, [*rest, first, second]), [*[x.shape[axis] for axis in rest], rows * columns])
    places = line(length, x.device, down * columns + right, columns + 1)
    return p.index_select(flat, places, len(rest))


@prims_rule(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    rank = x.dim() + 1
    first, second = dim1 % rank, dim2 % rank
    if first > second:
        first, second, offset = second, first, -offset
    down, right = max(-offset, 0), max(offset, 0)
    extent = x.shape[-1] + down + right
    padded = p.pad(x, 0, (0,) * (x.dim() - 1) + (down,), (0,) * (x.dim() - 1) + (right,))  # by row
    size = (*x.shape[:-1], extent, extent)
    rows, columns = (along(line(extent, x.device, start), axis, size) for start, axis in ((offset, rank - 2), (0, rank - 1)))
    spread = p.broadcast_in_dim(padded, size, tuple(range(rank - 1)))
    matrix = p.where(p.eq(rows, columns), spread, full(size, 0, x.dtype, x.device))
    order = list(range(rank - 2))
    order.insert(first, rank - 2)
    order.insert(second, rank - 1)
    return permuted(matrix, order)


@prims_rule(aten.unfold.default, aten.unfold_copy.default)
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not x.dim():
        return reshaped(x, [1]) if size == 1 else NotImplemented
    axis = axis_of(x, dimension)
    count = (x.shape[axis] - size) // step + 1
    places = affine((count, size), (step, 1), 0, x.device)
    front = moved(x, [axis])
    windows = p.gather_nd(front, [places])  # (count, size, others)
    others = [dim for dim in range(x.dim()) if dim != axis]
    order = [0 if dim == axis else 2 + others.index(dim) for dim in range(x.dim())]
    return permuted(windows, [*order, 1])


@prims_rule(aten.roll.default)
def roll(x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        flat = reshaped(x, [product(x.shape)])
        return reshaped(roll(flat, shifts, [0]), x.shape)
    found = x
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(x, dim)
        extent = found.shape[axis]
        if type(extent) is int and extent == 0:
            continue
        start = extent - shift % extent
        found = p.cat([part(found, axis, start, extent), part(found, axis, 0, start)], axis)
    return found


