"""Shape operators in terms of permute, slice, cat, expand, where, index.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from fxloom_decomp.axes import along, number_like, part, picked
from fxloom_decomp.libraries import on_cpu_library
from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten


@decomposition(aten.transpose.int)
def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    if x.dim() == 0:
        return torch.ops.aten.alias.default(x)
    order = list(range(x.dim()))
    dim0, dim1 = dim0 % x.dim(), dim1 % x.dim()
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return torch.permute(x, order)


@decomposition(aten.stack.default)
def stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    dim = dim % (tensors[0].dim() + 1)
    return torch.cat([torch.unsqueeze(x, dim) for x in tensors], dim)


@decomposition(aten.unbind.int)
def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [torch.select(x, dim, item) for item in range(x.shape[dim])]


@decomposition(aten.split.Tensor)
def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    extent = x.shape[dim]
    if size == 0:
        return NotImplemented
    count = max(int((extent + size - 1) // size), 1)  # of a symbolic extent only the number of pieces is fixed
    ends = [size * number for number in range(1, count)]
    return [part(x, dim, start, end) for start, end in zip([0, *ends], [*ends, extent], strict=True)]


@decomposition(aten.split_with_sizes.default)
def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    parts, start = [], 0
    for size in sizes:
        parts.append(part(x, dim, start, start + size))
        start += size
    return parts


@decomposition(aten.unsafe_split.Tensor)
def unsafe_split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return split(x, size, dim)


@decomposition(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    return split_with_sizes(x, sizes, dim)


@decomposition(aten.repeat.default)
def repeat(x: Tensor, repeats: list[int]) -> Tensor:
    lead = len(repeats) - x.dim()
    if lead < 0:
        return NotImplemented
    shape = [1] * lead + list(x.shape)
    if 0 in shape or 0 in repeats:
        return NotImplemented
    spread = x.reshape([part for extent in shape for part in (1, extent)])
    spread = spread.expand([part for extent, times in zip(shape, repeats, strict=True) for part in (times, extent)])
    return torch.clone(spread, memory_format=torch.contiguous_format).reshape(
        [extent * times for extent, times in zip(shape, repeats, strict=True)]
    )


@decomposition(aten.roll.default)
def roll(x: Tensor, shifts: list[int], dims: list[int] | None = None) -> Tensor:
    if x.numel() == 0:
        return torch.clone(x)
    if not dims:
        return roll(x.reshape([-1]), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        cut = -shift % extent
        if cut:
            x = torch.cat([part(x, dim, cut, extent), part(x, dim, 0, cut)], dim)
    return torch.clone(x)


@decomposition(aten.tril.default)
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(x, diagonal, lower=True)


@decomposition(aten.triu.default)
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(x, diagonal, lower=False)


def _triangle(x: Tensor, diagonal: int, lower: bool) -> Tensor:
    if x.dim() < 2:
        return NotImplemented
    rows = torch.unsqueeze(torch.arange(x.shape[-2], dtype=torch.int64, device=x.device), 1)
    distance = torch.arange(x.shape[-1], dtype=torch.int64, device=x.device) - rows
    keep = distance <= diagonal if lower else distance >= diagonal
    return torch.where(keep, x, torch.full((), 0, dtype=x.dtype, device=x.device))


@decomposition(aten.pixel_shuffle.default)
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    *lead, c, h, w = x.shape
    out = c // (factor * factor)
    n = len(lead)
    parts = x.reshape([*lead, out, factor, factor, h, w])
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return torch.permute(parts, order).clone(memory_format=torch.contiguous_format).reshape([*lead, out, h * factor, w * factor])


@decomposition(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    *lead, c, h, w = x.shape
    if x.numel() == 0:
        return torch.clone(x)  # eager leaves the shape as it is
    n = len(lead)
    parts = x.reshape([*lead, c, h // factor, factor, w // factor, factor])
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    out = [*lead, c * factor * factor, h // factor, w // factor]
    return torch.permute(parts, order).clone(memory_format=torch.contiguous_format).reshape(out)


@decomposition(aten.channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """The channels of all groups in turn."""
    if x.dim() < 3 or groups < 1 or x.shape[1] % groups:
        return NotImplemented  # eager raises
    if type(x.shape[1]) is not int:  # that the parts are as many as the channels can't be told of symbols
        line = torch.arange(x.shape[1], dtype=torch.int64, device=x.device)
        return picked(x, 1, line % groups * (x.shape[1] // groups) + torch.div(line, groups, rounding_mode="floor"))
    parts = x.reshape([x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    return torch.clone(torch.transpose(parts, 1, 2), memory_format=torch.contiguous_format).reshape(x.shape)


def _library_is_faster(x: Tensor) -> bool:
    """On the CPU eager's copy of block after block takes a third of the time of blocks that are padded and joined."""
    return on_cpu_library(x)


@decomposition(aten.block_diag.default)
def block_diag(tensors: list[Tensor]) -> Tensor:
    if not tensors or _library_is_faster(tensors[0]) or any(x.dim() > 2 or x.device != tensors[0].device for x in tensors):
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    blocks = [cast(x if x.dim() == 2 else x.reshape([1, -1] if x.dim() else [1, 1]), dtype) for x in tensors]
    width = sum(x.shape[1] for x in blocks)
    rows, before = [], 0
    for block in blocks:
        rows.append(torch.constant_pad_nd(block, [before, width - before - block.shape[1]]))
        before = before + block.shape[1]
    return torch.cat(rows, 0)


@decomposition(aten._chunk_cat.default)
def chunk_cat(tensors: list[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Tensors filled up with zeros to as many chunks along `dim`, and these side by side."""
    dim %= tensors[0].dim()
    if num_chunks < 1 or any(x.dtype != tensors[0].dtype or not x.numel() for x in tensors):
        return NotImplemented
    parts = []
    for x in tensors:
        room = -x.shape[dim] % num_chunks
        filled = torch.constant_pad_nd(x, [0] * (2 * (x.dim() - 1 - dim)) + [0, room])
        parts.append(filled.reshape([*x.shape[:dim], num_chunks, -1]))
    return torch.cat(parts, dim + 1)


@decomposition(aten.unfold_copy.default)
def unfold_copy(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    return torch.clone(x.unfold(dimension, size, step))


@decomposition(aten.unfold.default)
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if x.dim() == 0:
        return part(torch.unsqueeze(x, 0), 0, 0, size)
    dimension %= x.dim()
    count = (x.shape[dimension] - size) // step + 1
    starts = torch.unsqueeze(torch.arange(count, dtype=torch.int64, device=x.device) * step, 1)
    positions = starts + torch.arange(size, dtype=torch.int64, device=x.device)
    picked = torch.ops.aten.index.Tensor(x, [*[None] * dimension, positions])
    rest = [axis for axis in range(picked.dim()) if axis != dimension + 1]
    return torch.permute(picked, [*rest, dimension + 1])


#: windows that share a position, as far as they are gathered one by one
_MOST_WINDOWS = 8


@decomposition(aten.unfold_backward.default)
def unfold_backward(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Each position sums up what comes of the windows that it lies in."""
    if not input_sizes:
        return torch.sum(grad, [0])
    dim %= len(input_sizes)
    wide, rank, extent, count = widen(grad), len(input_sizes), input_sizes[dim], grad.shape[dim]
    moved = torch.permute(wide, [*range(dim + 1), rank, *range(dim + 1, rank)])  # positions in a window behind their window
    if not grad.numel():
        return torch.full(input_sizes, 0, dtype=grad.dtype, device=grad.device)
    if -(-size // step) > _MOST_WINDOWS:
        starts = torch.unsqueeze(torch.arange(count, dtype=torch.int64, device=grad.device) * step, 1)
        places = starts + torch.arange(size, dtype=torch.int64, device=grad.device)
        total = torch.full(input_sizes, 0, dtype=wide.dtype, device=grad.device)
        return cast(aten.index_put.default(total, [*[None] * dim, places], moved, True), grad.dtype)
    line = torch.arange(extent, dtype=torch.int64, device=grad.device)
    first = torch.div(line, step, rounding_mode="floor")
    flat = moved.reshape([*moved.shape[:dim], count * size, *moved.shape[dim + 2 :]])
    terms = []
    for earlier in reversed(range(-(-size // step))):
        window = first - earlier
        number = line - window * step
        inside = (window >= 0) & (window < count) & (number < size)
        value = picked(flat, dim, torch.where(inside, window * size + number, 0))
        terms.append(torch.where(along(inside, dim, rank), value, number_like(0, wide)))
    return cast(functools.reduce(torch.add, terms), grad.dtype)
