"""Indexing and scattering in terms of where, cat, gather, index and index_put.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxloom_decomp.axes import part
from fxloom_decomp.expectations import expect
from fxloom_decomp.libraries import on_cpu_library
from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten
Number = float | int | bool


@decomposition(aten.slice_scatter.default)
def slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    if x.dim() == 0:
        return NotImplemented
    dim %= x.dim()
    extent = x.shape[dim]
    first = _clip(0 if start is None else start, extent)
    last = max(_clip(extent if end is None else end, extent), first)
    shape = [*x.shape]
    shape[dim] = (last - first + step - 1) // step
    source = cast(source.expand(shape), x.dtype)
    if first == 0 and last == extent and step == 1:
        return torch.clone(source)
    if step == 1:
        parts = [part(x, dim, 0, first), source, part(x, dim, last, extent)]
        return torch.cat([part for part in parts if part.shape[dim]], dim) if last > first else torch.clone(x)
    if last == first:
        return torch.clone(x)
    line = torch.arange(extent, dtype=torch.int64, device=x.device)
    distance = line - first
    inside = (line >= first) & (line < last) & (distance % step == 0)
    place = torch.where(inside, distance // step, 0)
    spread = torch.index_select(source, dim, place)
    return torch.where(inside.reshape([-1 if axis == dim else 1 for axis in range(x.dim())]), spread, x)


def _clip(position: int, extent: int) -> int:
    return min(max(position + extent if position < 0 else position, 0), extent)


@decomposition(aten.select_scatter.default)
def select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    dim %= x.dim()
    if not -x.shape[dim] <= index < x.shape[dim]:
        return NotImplemented  # eager raises
    line = torch.arange(x.shape[dim], dtype=torch.int64, device=x.device)
    line = line.reshape([-1 if axis == dim else 1 for axis in range(x.dim())])
    return torch.where(line == index % x.shape[dim], torch.unsqueeze(cast(source, x.dtype), dim), x)


@decomposition(aten.diagonal_scatter.default)
def diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    others = [axis for axis in range(x.dim()) if axis not in (dim1, dim2)]
    order = [dim1, dim2, *others]
    moved = torch.permute(x, order)
    length = source.shape[-1]
    line = torch.arange(length, dtype=torch.int64, device=x.device)
    values = torch.permute(cast(source, x.dtype), [source.dim() - 1, *range(source.dim() - 1)])
    written = torch.ops.aten.index_put.default(moved, [line + max(-offset, 0), line + max(offset, 0)], values)
    return torch.permute(written, [order.index(axis) for axis in range(x.dim())])


@decomposition(aten.as_strided_scatter.default)
def as_strided_scatter(x: Tensor, source: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Tensor:
    """Of a tensor whose memory is its elements in order."""
    offset = storage_offset or 0
    if any(type(number) is not int for number in (*x.shape, *size, *stride, offset)) or not x.is_contiguous() or x.storage_offset():
        return NotImplemented
    if list(source.shape) != list(size) or x.dtype != source.dtype or not source.numel():
        return NotImplemented
    inner = 1
    for extent, step in sorted(zip(size, stride, strict=True), key=lambda axis: axis[1]):
        if extent > 1 and step < inner:
            return NotImplemented  # elements share memory, perhaps, which eager refuses
        inner = inner + step * (extent - 1)
    if offset + inner > x.numel():
        return NotImplemented
    place = torch.full((), offset, dtype=torch.int64, device=x.device)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        line = torch.arange(extent, dtype=torch.int64, device=x.device) * step
        place = place + line.reshape([-1 if other == axis else 1 for other in range(len(size))])
    return torch.ops.aten.index_put.default(x.reshape([-1]), [place], source).reshape(x.shape)


@decomposition(aten.index_fill.int_Scalar)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    return index_fill_tensor(x, dim, index, torch.full((), value, dtype=x.dtype, device=x.device))


@decomposition(aten.index_fill.int_Tensor)
def index_fill_tensor(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    if value.device != x.device:
        return NotImplemented
    index = index.reshape([-1])
    if x.dim() == 0:
        return torch.ops.aten.index_put.default(x.reshape([1]), [index], cast(value, x.dtype)).reshape([])
    return torch.ops.aten.index_put.default(x, [*[None] * (dim % x.dim()), index], cast(value, x.dtype))


@decomposition(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    width = grad.shape[-1]
    rows = widen(grad).reshape([indices.numel(), width])  # -1 says nothing where the width is 0
    index = indices.reshape([-1])
    if padding_idx >= 0:
        rows = torch.where(
            torch.unsqueeze(index == padding_idx, 1), torch.full((), 0, dtype=rows.dtype, device=rows.device), rows
        )
    if scale_grad_by_freq:
        ones = torch.full([index.shape[0]], 1, dtype=torch.int64, device=grad.device)
        none = torch.full([num_weights], 0, dtype=torch.int64, device=grad.device)
        counts = torch.ops.aten.index_put.default(none, [index], ones, True)
        rows = rows / torch.unsqueeze(torch.ops.aten.index.Tensor(counts, [index]), 1)
    start = torch.full([num_weights, width], 0, dtype=rows.dtype, device=grad.device)
    return cast(torch.ops.aten.index_put.default(start, [index], rows, True), grad.dtype)


@decomposition(aten.select_backward.default)
def select_backward(grad: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    base = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return torch.select_scatter(base, grad, dim, index)


@decomposition(aten.slice_backward.default)
def slice_backward(grad: Tensor, sizes: list[int], dim: int, start: int, end: int, step: int) -> Tensor:
    dim %= len(sizes)
    extent = sizes[dim]
    first, last = _clip(start, extent), _clip(end, extent)
    if step == 1 and last > first:
        pads = [0] * (2 * len(sizes))
        pads[2 * (len(sizes) - 1 - dim)] = first
        pads[2 * (len(sizes) - 1 - dim) + 1] = extent - last
        return torch.constant_pad_nd(grad, pads, 0)
    base = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return torch.slice_scatter(base, grad, dim, start, end, step)


@decomposition(aten.diagonal_backward.default)
def diagonal_backward(grad: Tensor, sizes: list[int], offset: int, dim1: int, dim2: int) -> Tensor:
    base = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return torch.diagonal_scatter(base, grad, offset, dim1, dim2)


@decomposition(aten.take.default)
def take(x: Tensor, index: Tensor) -> Tensor:
    return torch.ops.aten.index.Tensor(x.reshape([-1]), [index])


def _library_is_faster(x: Tensor) -> bool:
    """On the CPU eager's kernel fills in runs, in a fraction of the time of a search for each position."""
    return on_cpu_library(x)


@decomposition(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """The number of each element, as often as it says: how many ends of repetitions lie before each position."""
    if _library_is_faster(repeats) or output_size is None or repeats.dim() != 1 or type(repeats.shape[0]) is not int:
        return NotImplemented
    if repeats.dtype not in (torch.int32, torch.int64) or not repeats.shape[0]:
        return NotImplemented
    ends = torch.cumsum(repeats, 0, dtype=torch.int64)
    expect(torch.select(ends, 0, -1) == output_size, "allocated size does not match required size")
    expect(repeats >= 0, "repeats can not be negative")
    line = torch.arange(output_size, dtype=torch.int64, device=repeats.device)
    return cast(torch.bucketize(line, ends, right=True), repeats.dtype)


@decomposition(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The n-th element where the mask holds is the n-th of the source; too short a source is out of range for gather, as for eager."""
    if mask.dtype != torch.bool or x.dtype != source.dtype:
        return NotImplemented
    static = type(source.numel()) is int
    if static and source.numel() == 0:
        return NotImplemented
    x, mask = torch.broadcast_tensors(x, mask)
    flat, index = source.reshape([-1]), _numbers(mask)
    if not static:  # there may be no elements, then: an element before them is read where the mask does not hold
        flat, index = torch.constant_pad_nd(flat, [1, 0]), index + cast(mask.reshape([-1]), torch.int64)
    picked = torch.gather(flat, 0, index).reshape(x.shape)
    return torch.where(mask, picked, x)


@decomposition(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    if mask.dtype != torch.bool:
        return NotImplemented
    zero = torch.full((), 0, dtype=grad.dtype, device=grad.device)
    grad, mask = torch.broadcast_tensors(grad, mask)
    base = torch.full([math.prod(sizes)], 0, dtype=grad.dtype, device=grad.device)
    if base.numel() == 0:
        return base.reshape(sizes)
    return torch.scatter_add(base, 0, _numbers(mask), torch.where(mask, grad, zero).reshape([-1])).reshape(sizes)


def _numbers(mask: Tensor) -> Tensor:
    """How many elements before each, in row-major order, the mask holds for; 0 where it does not hold."""
    flat = mask.reshape([-1])
    return torch.where(flat, torch.cumsum(flat, 0, dtype=torch.int64) - 1, torch.full((), 0, dtype=torch.int64, device=mask.device))
