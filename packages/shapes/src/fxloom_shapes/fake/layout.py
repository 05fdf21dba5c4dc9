"""Strides and types of results, as ATen's TensorIterator works them out (aten/src/ATen/TensorIterator.cpp).

In: descriptors of the operands. Out: strides of the result (in elements), its type. Symbolic sizes are
compared as `sizes` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from fxloom_shapes.fake.descriptor import Descriptor, Sizes, at_least_one, contiguous_stride, equal, is_empty, known_equal
from fxloom_shapes.fake.sizes import guard_or_false, is_unbacked, same_size, statically_known_true
from fxloom_shapes.symbols.numbers import estimate

Scalar = bool | int | float | complex | torch.SymInt | torch.SymFloat
#: Python's numbers and the symbolic ones, without complex
NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)


def is_contiguous(desc: Descriptor) -> bool:
    """Row-major; axes of extent 1 may have any stride, an empty tensor is contiguous."""
    return packed(desc.size, desc.stride, range(len(desc.size) - 1, -1, -1))


def is_channels_last(desc: Descriptor) -> bool:
    """4-d with the channel axis innermost."""
    return len(desc.size) == 4 and packed(desc.size, desc.stride, (1, 3, 2, 0))


def suggests_channels_last(desc: Descriptor) -> bool:
    """What torch's `suggest_memory_format` says (c10/core/MemoryFormat.h, is_channels_last_strides_2d and _3d)."""
    if len(desc.size) not in (4, 5) or equal(desc.stride[1], 0):
        return False
    unbacked, least = is_unbacked(*desc.size, *desc.stride), 0
    for axis in _channels_last_order(len(desc.size)):
        ascends = desc.stride[axis] >= least
        if not unbacked and statically_known_true(desc.stride[axis] < least):
            return False
        if (
            equal(desc.size[axis], 0)
            or not (guard_or_false(ascends) if unbacked else ascends)
            or (axis == 0 and equal(least, desc.stride[1]))
        ):
            return False
        least = desc.stride[axis] * at_least_one(desc.size[axis])
    return True


def _channels_last_order(rank: int) -> tuple[int, ...]:
    """Axes from innermost to outermost."""
    return (1, *range(rank - 1, 1, -1), 0)


def channels_last_stride(size: Sizes) -> Sizes:
    return _by_order(size, _channels_last_order(len(size)))


def suggested_stride(desc: Descriptor, size: Sizes) -> Sizes | None:
    """Strides of a result of extents `size` in the memory format that `desc` suggests; None for the row-major one."""
    return channels_last_stride(size) if suggests_channels_last(desc) else None


def packed(size: Sizes, stride: Sizes, order: Sequence[int]) -> bool:
    """True when the axes, taken innermost first, step through memory without gaps, or an axis is empty."""
    known = steps_without_gaps(size, stride, order)
    if known is not None:
        return known or is_empty(size)
    if is_empty(size):
        return True
    return all(equal(size[axis], 1) or any(equal(stride[axis], step) for step in steps) for axis, steps in _steps(size, order))


def steps_without_gaps(size: Sizes, stride: Sizes, order: Sequence[int]) -> bool | None:
    """Whether the axes that have more than one element step through memory without gaps; None where that depends on symbols.

    Leaves no guard.
    """
    result: bool | None = True
    for axis, steps in _steps(size, order):
        fits = [known_equal(stride[axis], step) for step in steps]
        if True in fits:
            continue
        alone = known_equal(size[axis], 1)
        if alone is None or (not alone and None in fits):
            result = None
        elif not alone:
            return False
    return result


def _steps(size: Sizes, order: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Axes, innermost first, with the strides that leave no gap: what axes before it take, as if none were empty, or as
    `contiguous_stride` has it. Where the two differ nothing is stepped through."""
    step = padded = 1
    for axis in order:
        yield axis, ((step,) if padded is step else (step, padded))
        extent = size[axis]
        if type(extent) is int and extent == 1:
            continue
        same, step = padded is step, step * extent
        least = at_least_one(extent)
        padded = step if same and known_equal(least, extent) else padded * least


def is_non_overlapping_and_dense(desc: Descriptor) -> bool:
    """Some order of the axes steps through memory without gaps."""
    order = _inner_to_outer(desc)
    if packed(desc.size, desc.stride, order):
        return True
    if desc.env is not None and not is_unbacked(*desc.size, *desc.stride):  # nor does another order where the strides are as here
        all(desc.stride[inner] <= desc.stride[outer] for inner, outer in itertools.pairwise(order))
    return False


def _inner_to_outer(desc: Descriptor) -> list[int]:
    """The axes by their strides; of those with one element the order makes no difference."""
    axes = [axis for axis in range(len(desc.size)) if not (type(desc.size[axis]) is int and desc.size[axis] == 1)]
    return sorted(axes, key=lambda axis: (estimate(desc.stride[axis]), estimate(desc.size[axis])))


def elementwise_stride(size: Sizes, operands: Sequence[Descriptor], numbers: int = 0) -> Sizes:
    """Strides of the result of an elementwise operator. numbers: how many operands are plain numbers."""
    if not numbers and all(same_size(operand.size, size) for operand in operands):
        contiguous = contiguous_stride(size)
        if all(steps_without_gaps(size, operand.stride, range(len(size) - 1, -1, -1)) for operand in operands):
            return contiguous
        if any(operand.env is not None for operand in operands) and _keeps_order(size, operands):
            return contiguous  # which is what one without gaps has as well, as its strides ascend
        if all(is_contiguous(operand) for operand in operands):
            return contiguous
        if all(is_channels_last(operand) for operand in operands):
            return channels_last_stride(size)
        first = operands[0]
        if all(same_size(operand.stride, first.stride) for operand in operands) and is_non_overlapping_and_dense(first):
            return first.stride
    if is_unbacked(*size):  # comparing strides would ask which axes have one element
        contiguous = contiguous_stride(size)
        if all(same_size(operand.stride, contiguous) for operand in operands if same_size(operand.size, size)):
            return contiguous
    return _by_order(size, order_of(size, operands))


def _keeps_order(size: Sizes, operands: Sequence[Descriptor]) -> bool:
    """`order_of` certainly is the axes' own order, from last to first. Leaves no guard."""
    strides = [operand.stride for operand in operands]
    for outer in range(len(size)):
        for inner in range(outer + 1, len(size)):
            for stride in strides:
                if not statically_known_true(stride[inner] <= stride[outer]):
                    return False
                if not statically_known_true(stride[inner] < stride[outer]) and not statically_known_true(size[inner] <= size[outer]):
                    return False
    return True


def order_of(size: Sizes, operands: Sequence[Descriptor]) -> list[int]:
    """Axes from innermost to outermost: as TensorIterator::reorder_dimensions sorts them by the operands' strides."""
    rank = len(size)
    strides = [_expanded(operand, size) for operand in operands]

    def compare(a: int, b: int) -> int:
        for stride in strides:
            if equal(stride[a], 0) or equal(stride[b], 0):
                continue
            if not equal(stride[a], stride[b]):
                return -1 if _is_inner(stride[a], stride[b]) else 1
            if guard_or_false(size[a] > size[b]):
                return 1
        return 0

    order = list(range(rank - 1, -1, -1))
    for place in range(1, rank):
        current = place
        for other in range(place - 1, -1, -1):
            sign = compare(order[other], order[current])
            if sign > 0:
                order[other], order[current] = order[current], order[other]
                current = other
            elif sign < 0:
                break
    return order


def _is_inner(a: int, b: int) -> bool:
    """a < b of two strides that differ; where that is known only at run time, by what is likely."""
    if not is_unbacked(a, b) or guard_or_false(a < b):
        return bool(a < b)
    return not guard_or_false(b < a) and estimate(a) < estimate(b)


def _expanded(operand: Descriptor, size: Sizes) -> Sizes:
    lead = len(size) - len(operand.size)
    own = tuple(
        0 if extent is not size[axis + lead] and equal(extent, 1) and not equal(size[axis + lead], 1) else step
        for axis, (extent, step) in enumerate(zip(operand.size, operand.stride, strict=True))
    )
    return (0,) * lead + own


def _by_order(size: Sizes, order: Sequence[int]) -> Sizes:
    """Strides without gaps of axes in this order, innermost first. After an empty axis they are 0, save in the row-major order."""
    if list(order) == list(range(len(size) - 1, -1, -1)):
        return contiguous_stride(size)
    stride, step = [0] * len(size), 1
    for axis in order:
        stride[axis] = step
        step = step * (size[axis] if type(size[axis]) is int else at_least_one(size[axis]))
    return tuple(stride)


# --- types --------------------------------------------------------------------------------------------------------------


def number_dtype(value: Scalar) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    if isinstance(value, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64


def common_dtype(operands: Sequence[Descriptor | Scalar]) -> torch.dtype:
    """torch.result_type of tensors and numbers: axes beat no axes beat numbers, within a category."""
    levels: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Descriptor):
            level, dtype = (0 if operand.size else 1), operand.dtype
        else:
            level, dtype = 2, number_dtype(operand)
        known = levels[level]
        levels[level] = dtype if known is None else torch.promote_types(known, dtype)
    result = _combine(levels[0], _combine(levels[1], levels[2]))
    assert result is not None
    return result


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return torch.promote_types(higher, torch.complex32) if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher
