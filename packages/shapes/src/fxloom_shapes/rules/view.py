"""Views: new size and stride on the same memory, by arithmetic on the old.

In: the device and the arguments of a view operator, or of one that copies where no view exists (`reshape`, `contiguous`). Out: a plan:
`ViewOf` an argument, new memory for a copy, or None to decline, as where eager would raise.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import CONJ, NEG, Descriptor, contiguous_stride, describe, equal, is_empty, known_equal
from fxloom_shapes.fake.layout import is_contiguous
from fxloom_shapes.fake.plans import Fresh, Nest, Plan, ViewOf
from fxloom_shapes.fake.sizes import (
    assume_equal,
    assume_inside,
    assume_size,
    clip,
    is_leading_part,
    is_unbacked,
    larger,
    same_size,
    statically_same_size,
    wrapped,
)
from fxloom_shapes.rules.registry import fresh, shape_rule
from fxloom_shapes.symbols.numbers import estimate

aten = torch.ops.aten


def _view(desc: Descriptor, size: Any, stride: Any, offset: int | None = None) -> ViewOf:
    new = describe(tuple(size), tuple(stride), desc.dtype, desc.device, desc.offset if offset is None else offset, desc.bits)
    return ViewOf(new, 0)


def _axis(dim: int, rank: int) -> int | None:
    """The axis as a number from 0, None when out of range."""
    limit = max(rank, 1)
    return dim % limit if -limit <= dim < limit else None


@shape_rule(aten.detach.default, aten.alias.default)
def same(device: torch.device, x: Any) -> Plan | None:
    return ViewOf(x.desc, 0)


@shape_rule(aten._conj.default)
def conj(device: torch.device, x: Any) -> Plan | None:
    return _with_bits(x.desc, x.desc.bits ^ CONJ) if x.desc.dtype.is_complex else None


@shape_rule(aten._neg_view.default)
def neg_view(device: torch.device, x: Any) -> Plan | None:
    return _with_bits(x.desc, x.desc.bits ^ NEG)


def _with_bits(desc: Descriptor, bits: int) -> ViewOf:
    return ViewOf(describe(desc.size, desc.stride, desc.dtype, desc.device, desc.offset, bits), 0)


@shape_rule(aten.t.default)
def t(device: torch.device, x: Any) -> Plan | None:
    if len(x.desc.size) > 2:
        return None
    return _view(x.desc, x.desc.size[::-1], x.desc.stride[::-1])


@shape_rule(aten.transpose.int)
def transpose(device: torch.device, x: Any, dim0: int, dim1: int) -> Plan | None:
    desc = x.desc
    a, b = _axis(dim0, len(desc.size)), _axis(dim1, len(desc.size))
    if a is None or b is None or not desc.size:
        return None
    order = list(range(len(desc.size)))
    order[a], order[b] = b, a
    return _view(desc, [desc.size[axis] for axis in order], [desc.stride[axis] for axis in order])


@shape_rule(aten.permute.default)
def permute(device: torch.device, x: Any, dims: Any) -> Plan | None:
    desc = x.desc
    rank = len(desc.size)
    order = [_axis(dim, rank) for dim in dims]
    if None in order or sorted(order) != list(range(rank)):  # type: ignore[type-var]  # None is excluded
        return None
    return _view(desc, [desc.size[axis] for axis in order], [desc.stride[axis] for axis in order])  # type: ignore[index]


@shape_rule(aten.expand.default)
def expand(device: torch.device, x: Any, size: Any, implicit: bool = False) -> Plan | None:
    desc = x.desc
    lead = len(size) - len(desc.size)
    if lead < 0 or not all(_is_left(extent) or assume_size(extent) for extent in size) or any(map(_is_left, size[:lead])):
        return None
    new, stride = [], []
    for axis, extent in enumerate(size):
        own = desc.size[axis - lead] if axis >= lead else 1
        step = desc.stride[axis - lead] if axis >= lead else 0
        if axis < lead:
            new.append(extent)
            stride.append(0)
            continue
        extent = own if _is_left(extent) else extent
        if own is not extent and not equal(own, 1) and not is_leading_part(own, extent) and not assume_equal(own, extent):
            return None
        new.append(extent)
        stride.append(step if own is extent or equal(own, extent) else 0)
    # as torch: a new axis of extent 1 gets the stride that a row-major neighbour would, if there was an axis
    for axis in range(lead - 1, -1, -1) if desc.size else ():
        if equal(new[axis], 1):
            stride[axis] = new[axis + 1] * stride[axis + 1] if axis + 1 < len(new) else 1
    return _view(desc, new, stride)


@shape_rule(aten.view.default)
def view(device: torch.device, x: Any, size: Any) -> Plan | None:
    desc = x.desc
    numel = 1
    for extent in desc.size:
        numel *= extent
    new = _infer(tuple(size), numel)
    if new is None:
        return None
    stride = view_stride(desc, new)
    return None if stride is None else _view(desc, new, stride)


@shape_rule(aten.view_copy.default)
def view_copy(device: torch.device, x: Any, size: Any) -> Plan | None:
    """A copy, so that tensors that `view` refuses can be looked at in any way."""
    new = _infer(tuple(size), math.prod(x.desc.size))
    return None if new is None else fresh(new, x.desc.dtype, device)


@shape_rule(aten._unsafe_view.default)
def unsafe_view(device: torch.device, x: Any, size: Any) -> Plan | None:
    """Shares memory with its argument, but only where nothing uses that again: for the program it is new."""
    plan = view(device, x, size)
    return Fresh(plan.desc) if isinstance(plan, ViewOf) else None


def _infer(size: tuple[int, ...], numel: int) -> tuple[int, ...] | None:
    known = 1
    for extent in size:
        if not _is_left(extent):
            if not assume_size(extent):
                return None
            known *= extent
    left = sum(map(_is_left, size))
    if left == 0:
        return size if assume_equal(known, numel) else None
    if left > 1 or not assume_size(known - 1) or not assume_equal(numel % known, 0):
        return None
    return tuple(numel // known if _is_left(extent) else extent for extent in size)


def _is_left(extent: int) -> bool:
    """True for the -1 that stands for what the other extents leave."""
    return type(extent) is int and extent == -1


def view_stride(desc: Descriptor, new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the view of size `new`, None when there is none (at::detail::computeStride)."""
    if desc.env is not None and statically_same_size(desc.stride, contiguous_stride(desc.size)):
        return contiguous_stride(new)
    if is_empty(desc.size):
        return desc.stride if desc.size == new else contiguous_stride(new)
    if is_unbacked(*desc.size, *new):
        if same_size(desc.size, new):
            return desc.stride
        if is_contiguous(desc):
            return contiguous_stride(new)
        aligned = _aligned_stride(desc, new)
        if aligned is not None:
            return aligned
    stride = [0] * len(new)
    place = len(new) - 1
    chunk_stride = desc.stride[-1] if desc.size else 1
    old_numel = new_numel = 1
    for axis in range(len(desc.size) - 1, -1, -1):
        old_numel *= desc.size[axis]
        chunk_ends = axis == 0 or not (
            known_equal(desc.stride[axis - 1], old_numel * chunk_stride)
            or desc.size[axis - 1] == 1
            or desc.stride[axis - 1] == old_numel * chunk_stride
        )
        if chunk_ends:
            while place >= 0 and (new_numel < old_numel or new[place] == 1):
                stride[place] = new_numel * chunk_stride
                new_numel *= new[place]
                place -= 1
            if new_numel != old_numel:
                return None
            if axis > 0:
                chunk_stride = desc.stride[axis - 1]
                old_numel = new_numel = 1
    if not desc.size:
        return (1,) * len(new)
    return tuple(stride) if place == -1 else None


def _aligned_stride(desc: Descriptor, new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the view of size `new`, where it is one whatever the sizes are, 0 and 1 among them; None else.

    From the innermost axes outwards, the fewest old and new axes of the same number of elements go together. Several old axes
    can do so if they step through memory as one.
    """
    stride = [0] * len(new)
    old, fresh = len(desc.size), len(new)  # axes before these are left
    while old or fresh:
        old_end, new_end = old, fresh
        old, old_numel = (old - 1, desc.size[old - 1]) if old else (0, 1)
        fresh, new_numel = (fresh - 1, new[fresh - 1]) if fresh else (0, 1)
        while not equal(old_numel, new_numel):
            if fresh and (not old or estimate(new_numel) < estimate(old_numel)):
                fresh -= 1
                new_numel *= new[fresh]
            elif old:
                old -= 1
                old_numel *= desc.size[old]
            else:
                return None
        together = [axis for axis in range(old, old_end) if not equal(desc.size[axis], 1)]
        for outer, inner in itertools.pairwise(together):
            if not equal(desc.stride[outer], desc.size[inner] * desc.stride[inner]):
                return None
        step = desc.stride[together[-1]] if together else 1
        for axis in range(new_end - 1, fresh - 1, -1):
            stride[axis] = step
            step *= new[axis]
    return tuple(stride)


@shape_rule(aten._reshape_alias.default)
def reshape_alias(device: torch.device, x: Any, size: Any, stride: Any) -> Plan | None:
    return _view(x.desc, size, stride)


@shape_rule(aten.slice.Tensor)
def slice_(device: torch.device, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Plan | None:
    desc = x.desc
    axis = _axis(dim, len(desc.size))
    if axis is None or not desc.size or step <= 0:
        return None
    extent = desc.size[axis]
    first = 0 if start is None or (type(start) is int and start == 0) else clip(start, extent)
    last = extent if end is None or (type(end) is int and end >= _TO_THE_END) else clip(end, extent)
    last = last if type(first) is int and first == 0 else larger(first, last)
    size, stride = list(desc.size), list(desc.stride)
    size[axis] = (last - first + step - 1) // step
    stride[axis] *= step
    return _view(desc, size, stride, desc.offset + first * desc.stride[axis])


#: what the dispatcher says for an end that was left out is larger than any size
_TO_THE_END = 1 << 62


@shape_rule(aten.select.int)
def select(device: torch.device, x: Any, dim: int, index: int) -> Plan | None:
    desc = x.desc
    axis = _axis(dim, len(desc.size))
    if axis is None or not desc.size or not assume_inside(index, desc.size[axis]):
        return None
    offset = desc.offset + wrapped(index, desc.size[axis]) * desc.stride[axis]
    return _view(desc, desc.size[:axis] + desc.size[axis + 1 :], desc.stride[:axis] + desc.stride[axis + 1 :], offset)


@shape_rule(aten.unsqueeze.default)
def unsqueeze(device: torch.device, x: Any, dim: int) -> Plan | None:
    desc = x.desc
    rank = len(desc.size) + 1
    if not -rank <= dim < rank:
        return None
    axis = dim % rank
    step = desc.size[axis] * desc.stride[axis] if axis < rank - 1 else 1
    return _view(desc, (*desc.size[:axis], 1, *desc.size[axis:]), (*desc.stride[:axis], step, *desc.stride[axis:]))


@shape_rule(aten.squeeze.default)
def squeeze(device: torch.device, x: Any) -> Plan | None:
    return _without(x.desc, [axis for axis, extent in enumerate(x.desc.size) if extent == 1])


@shape_rule(aten.squeeze.dim, aten.squeeze.dims)
def squeeze_dims(device: torch.device, x: Any, dims: Any) -> Plan | None:
    desc = x.desc
    axes = [_axis(dim, len(desc.size)) for dim in ([dims] if isinstance(dims, int) else dims)]
    if None in axes:
        return None
    return _without(desc, [axis for axis in axes if axis is not None and desc.size and desc.size[axis] == 1])


def _without(desc: Descriptor, axes: list[int]) -> Plan:
    kept = [axis for axis in range(len(desc.size)) if axis not in axes]
    return _view(desc, [desc.size[axis] for axis in kept], [desc.stride[axis] for axis in kept])


# unsafe_split says that its pieces may be written to as if apart; its kernel is that of split
@shape_rule(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(device: torch.device, x: Any, size: int, dim: int = 0) -> Plan | None:
    axis = _axis(dim, len(x.desc.size))
    if axis is None or not x.desc.size or size <= 0 or x.desc.size[axis] == 0:
        return None
    extent = x.desc.size[axis]
    count = int((extent + size - 1) // size)  # of a symbolic extent only this number is fixed
    return _pieces(x.desc, axis, [size] * (count - 1) + [extent - size * (count - 1)])


@shape_rule(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(device: torch.device, x: Any, sizes: Any, dim: int = 0) -> Plan | None:
    axis = _axis(dim, len(x.desc.size))
    if axis is None or not x.desc.size or not all(map(assume_size, sizes)) or not assume_equal(sum(sizes), x.desc.size[axis]):
        return None
    return _pieces(x.desc, axis, list(sizes))


def _pieces(desc: Descriptor, axis: int, sizes: list[int]) -> Plan:
    pieces: list[Plan] = []
    start = 0
    for size in sizes:
        extents = (*desc.size[:axis], size, *desc.size[axis + 1 :])
        pieces.append(_view(desc, extents, desc.stride, desc.offset + start * desc.stride[axis]))
        start += size
    return Nest(tuple(pieces), list)


@shape_rule(aten.unbind.int)
def unbind(device: torch.device, x: Any, dim: int = 0) -> Plan | None:
    axis = _axis(dim, len(x.desc.size))
    if axis is None or not x.desc.size:
        return None
    plans = [select(device, x, axis, index) for index in range(x.desc.size[axis])]
    return Nest(tuple(plan for plan in plans if plan is not None), list)


@shape_rule(aten.clone.default)
def clone(device: torch.device, x: Any, memory_format: torch.memory_format | None = None) -> Plan | None:
    return copy_of(x.desc, x.desc.dtype, device, memory_format)


def copy_of(desc: Descriptor, dtype: torch.dtype, device: torch.device, memory_format: torch.memory_format | None) -> Plan | None:
    """A copy in memory of its own (`empty_like` decides the strides)."""
    from fxloom_shapes.fake.layout import channels_last_stride, elementwise_stride, is_non_overlapping_and_dense

    if memory_format in (None, torch.preserve_format):
        stride = desc.stride
        if not is_non_overlapping_and_dense(desc):
            stride = elementwise_stride(desc.size, [desc], 1)  # of what is known only at run time: its own where it turns out to be dense
    elif memory_format is torch.contiguous_format:
        stride = contiguous_stride(desc.size)
    elif memory_format is torch.channels_last and len(desc.size) == 4:
        stride = channels_last_stride(desc.size)
    else:
        return None
    return Fresh(describe(desc.size, stride, dtype, device))


@shape_rule(aten._to_copy.default)
def to_copy(device: torch.device, x: Any, **options: Any) -> Plan | None:
    if options.get("layout") not in (None, torch.strided) or options.get("pin_memory"):
        return None
    return copy_of(x.desc, options.get("dtype") or x.desc.dtype, device, options.get("memory_format"))


@shape_rule(aten.cat.default)
def cat(device: torch.device, tensors: Any, dim: int = 0) -> Plan | None:
    from fxloom_shapes.fake.layout import channels_last_stride, common_dtype, is_contiguous, suggests_channels_last

    descs = [tensor.desc for tensor in tensors]
    rank = len(descs[0].size) if descs else 0
    if not rank or any(len(desc.size) != rank or desc.dtype.is_complex for desc in descs):
        return None
    if rank in (4, 5) and not all(is_contiguous(desc) for desc in descs):
        return None  # may be channels last
    axis = _axis(dim, rank)
    if axis is None:
        return None
    first = descs[0].size
    if any(n != axis and not equal(first[n], desc.size[n]) for desc in descs[1:] for n in range(rank)):
        return None
    size = list(descs[0].size)
    size[axis] = sum(desc.size[axis] for desc in descs)
    last = rank in (4, 5) and all(map(suggests_channels_last, descs))  # those of one channel, say, are both
    stride = channels_last_stride(tuple(size)) if last else contiguous_stride(size)
    return Fresh(describe(tuple(size), stride, common_dtype(descs), device))
