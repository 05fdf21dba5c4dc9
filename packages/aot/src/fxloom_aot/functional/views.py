"""Views in a functional log: replay a chain of view operators on a value, and put a written view back into its base.

A chain is a tuple of `Step`, from the whole memory to the view. Regular steps have an inverse of their own (`slice` has
`slice_scatter`). Where one has none, or where several elements of the view may be one memory cell, positions are worked
out by running the chain on the numbers 0, 1, 2 ... in the place of elements, and written by index: that is right for every
chain that keeps the element type.

In: a functional log, the value of a whole memory, a chain; to write, also the view's new value. Out: the view's value, or the new
value of the whole, as calls added to the log. Invariant: elements that the view does not reach keep their values; a chain that can't
be replayed or inverted soundly raises `UnsupportedView`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_aot.functional.functional_log import FunctionalLog
from fxloom_interfaces.signature import ViewStep
from fxloom_shapes import Descriptor, FakeTensor, contiguous_stride
from fxloom_shapes.fake.descriptor import equal, extent_of, is_empty
from fxloom_shapes.fake.layout import packed
from fxloom_shapes.fake.sizes import same_size, statically_known_true, statically_same_size
from fxloom_shapes.symbols.numbers import estimate

aten = torch.ops.aten


class UnsupportedView(Exception):
    """The chain can't be replayed or inverted soundly; the message says why. Becomes GraphRejected."""


@dataclass(frozen=True, slots=True)
class Step:
    """One view operator. source: the program's metadata of what it is applied to (after as_strided: of the memory)."""

    view: ViewStep
    source: Descriptor


Chain = tuple[Step, ...]


def replay(log: FunctionalLog, value: FakeTensor, chain: Chain) -> FakeTensor:
    """The value of the view `chain` of the whole `value`."""
    for step in chain:
        value = apply_step(log, value, step)
    return value


def apply_step(log: FunctionalLog, value: FakeTensor, step: Step) -> FakeTensor:
    view = step.view
    if view.op is aten.as_strided.default:
        size, stride, *offset = view.args
        return read_strided(log, value, step.source, tuple(size), tuple(stride), offset[0] if offset else None)
    result = log.emit(view.op, (value, *view.args), dict(view.kwargs))
    if view.item is not None:
        result = result[view.item]
    assert isinstance(result, FakeTensor)
    return result


# --- as_strided ---------------------------------------------------------------------------------------------------------


def read_strided(
    log: FunctionalLog, value: FakeTensor, memory: Descriptor, size: tuple[int, ...], stride: tuple[int, ...], offset: int | None
) -> FakeTensor:
    """`as_strided` of the memory whose whole is `value`; memory: the program's metadata of that whole."""
    start = (memory.offset if offset is None else offset) - memory.offset
    flat = _in_memory_order(log, value, memory)
    reach = start + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    if not is_empty(size) and (start < 0 or reach >= value.numel()):
        raise UnsupportedView(f"as_strided reaches elements {start} to {reach} of a tensor of {value.numel()}")
    if flat.desc.offset == 0:
        result = log.emit(aten.as_strided.default, (flat, list(size), list(stride), start))
    else:
        result = log.emit(aten.index.Tensor, (flat, [_positions(log, size, stride, start, value.device)]))
    assert isinstance(result, FakeTensor)
    return result


def _in_memory_order(log: FunctionalLog, value: FakeTensor, memory: Descriptor) -> FakeTensor:
    """The elements of `value` as one contiguous axis, in the order in which the program's memory has them."""
    order = dense_order(memory)
    if order is None:
        raise UnsupportedView(f"as_strided of a tensor with gaps or overlaps ({memory})")
    if list(order) != list(range(len(order))):
        value = log.emit(aten.permute.default, (value, list(order)))
    flat = log.emit(aten.view.default, (value, [value.numel()]))
    if flat.desc.stride != (1,) and flat.numel() > 1:  # also where elements are repeated: as_strided goes by memory
        flat = log.emit(aten.clone.default, (flat,), {"memory_format": torch.contiguous_format})
    assert isinstance(flat, FakeTensor)
    return flat


def _from_memory_order(log: FunctionalLog, flat: FakeTensor, memory: Descriptor) -> FakeTensor:
    """Inverse of `_in_memory_order`."""
    order = dense_order(memory)
    assert order is not None
    value = log.emit(aten.view.default, (flat, [memory.size[axis] for axis in order]))
    if list(order) != list(range(len(order))):
        value = log.emit(aten.permute.default, (value, [order.index(axis) for axis in range(len(order))]))
    assert isinstance(value, FakeTensor)
    return value


def memory_order(desc: Descriptor) -> tuple[int, ...]:
    """Axes from outermost to innermost, as the elements lie in memory."""
    return tuple(sorted(range(len(desc.size)), key=lambda axis: (-estimate(desc.stride[axis]), estimate(desc.size[axis]) == 1, axis)))


def dense_order(desc: Descriptor) -> tuple[int, ...] | None:
    """Axes from outermost to innermost when the elements fill one piece of memory, each cell once; else None."""
    axes = memory_order(desc)
    return axes if packed(desc.size, desc.stride, axes[::-1]) else None


def is_dense(desc: Descriptor) -> bool:
    """True when the elements fill one piece of memory, each cell once."""
    return dense_order(desc) is not None


def is_contiguous(desc: Descriptor) -> bool:
    """True when the elements lie row by row without gaps."""
    return packed(desc.size, desc.stride, range(len(desc.size) - 1, -1, -1))


def with_strides_of(log: FunctionalLog, value: FakeTensor, desc: Descriptor) -> FakeTensor:
    """`value`, copied if need be so that its strides are those of the dense `desc`; also along axes of one element."""
    order = dense_order(desc)
    assert (order is not None or is_empty(desc.size)) and same_size(value.desc.size, desc.size)
    if order is not None and not _same_places(value.desc, desc):
        moved = log.emit(aten.permute.default, (value, list(order)))
        packed = log.emit(aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
        value = log.emit(aten.permute.default, (packed, [order.index(axis) for axis in range(len(order))]))
    if same_size(value.desc.stride, desc.stride):
        return value
    flat = log.emit(aten.view.default, (value, [0])) if order is None else _in_memory_order(log, value, desc)
    if not same_size((flat.desc.offset,), (0,)):
        flat = log.emit(aten.clone.default, (flat,), {"memory_format": torch.contiguous_format}, merge=False)
    result: FakeTensor = log.emit(aten.as_strided.default, (flat, list(desc.size), list(desc.stride), 0))
    return result


def with_gaps_of(log: FunctionalLog, value: FakeTensor, desc: Descriptor) -> FakeTensor:
    """`value`, copied if need be so that its strides are those of `desc`, which is not dense and has plain numbers only."""
    if _same_places(value.desc, desc):
        return value
    repeated = [axis for axis, (extent, step) in enumerate(zip(desc.size, desc.stride, strict=True)) if step == 0 and extent != 1]
    for axis in repeated:
        value = log.emit(aten.slice.Tensor, (value, axis, 0, 1))
    size = list(value.desc.size)
    length = 1 + sum((extent - 1) * step for extent, step in zip(size, desc.stride, strict=True))
    memory = log.emit(aten.full.default, ([length], 0), {"dtype": desc.dtype, "device": desc.device, "pin_memory": False})
    memory = log.emit(aten.as_strided_scatter.default, (memory, value, size, list(desc.stride), 0))
    result: FakeTensor = log.emit(aten.as_strided.default, (memory, list(desc.size), list(desc.stride), 0))
    return result


def _same_places(a: Descriptor, b: Descriptor) -> bool:
    """True when elements of two layouts of one size are equally far from the first."""
    if statically_same_size(a.stride, b.stride):
        return True
    return is_empty(a.size) or all(
        equal(extent, 1) or equal(one, other) for extent, one, other in zip(a.size, a.stride, b.stride, strict=True)
    )


def _positions(
    log: FunctionalLog, size: tuple[int, ...], stride: tuple[int, ...], start: int, device: torch.device
) -> FakeTensor:
    """start + sum of index * stride over the axes, as an int64 value of `size`."""
    total = log.emit(aten.full.default, (list(size), start), {"dtype": torch.int64, "device": device, "pin_memory": False})
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        if extent == 1 or step == 0:
            continue
        line = _arange(log, extent, device)
        shape = [extent if other == axis else 1 for other in range(len(size))]
        term = log.emit(aten.mul.Tensor, (log.emit(aten.view.default, (line, shape)), step))
        total = log.emit(aten.add.Tensor, (total, term))
    assert isinstance(total, FakeTensor)
    return total


def _arange(log: FunctionalLog, extent: int, device: torch.device) -> FakeTensor:
    result = log.emit(aten.arange.start_step, (0, extent, 1), {"dtype": torch.int64, "device": device, "pin_memory": False})
    assert isinstance(result, FakeTensor)
    return result


# --- writing through a view ---------------------------------------------------------------------------------------------


def write_back(
    log: FunctionalLog, base: FakeTensor, memory: Descriptor, chain: Chain, view: Descriptor, value: FakeTensor
) -> FakeTensor:
    """The whole memory after `value` was written to its view `chain`.

    base: value of the whole before; memory, view: the program's metadata of the whole and of the view.
    """
    if overlaps_itself(view):
        raise UnsupportedView(f"a write to a view in which several elements are one memory cell ({view})")
    if not all(_inverse_of(step) is not None for step in chain):
        return _write_by_index(log, base, memory, chain, value)
    levels = [base]
    for step in chain[:-1]:
        levels.append(apply_step(log, levels[-1], step))
    for step, level in zip(reversed(chain), reversed(levels), strict=True):
        inverse = _inverse_of(step)
        assert inverse is not None
        value = inverse(log, level, value, step)
    return value


def _write_by_index(log: FunctionalLog, base: FakeTensor, memory: Descriptor, chain: Chain, value: FakeTensor) -> FakeTensor:
    if value.dtype != base.dtype or any(step.source.dtype != base.dtype for step in chain):
        raise UnsupportedView("a write through an irregular view that also changes the element type")
    if any(step.view.op in LAZY for step in chain):
        raise UnsupportedView("a write through an irregular view that is also conjugated or negated")
    dense = dense_order(memory) is not None
    count = _arange(log, base.numel(), base.device)
    if dense:  # number the cells as memory has them: as_strided steps go by that
        numbers, flat = _from_memory_order(log, count, memory), _in_memory_order(log, base, memory)
    else:
        numbers = log.emit(aten.view.default, (count, list(memory.size)))
        flat = log.emit(aten.view.default, (base, [base.numel()]))
    positions = replay(log, numbers, chain)
    positions = log.emit(aten.view.default, (positions, [positions.numel()]))
    flat_value = log.emit(aten.view.default, (value, [value.numel()]))
    flat = log.emit(aten.index_put.default, (flat, [positions], flat_value))
    if dense:
        return _from_memory_order(log, flat, memory)
    result = log.emit(aten.view.default, (flat, list(memory.size)))
    assert isinstance(result, FakeTensor)
    return result


def overlaps_itself(desc: Descriptor) -> bool:
    """True when two elements are one memory cell."""
    if _certainly_apart(desc):
        return False
    axes = sorted((step, extent) for step, extent in zip(desc.stride, desc.size, strict=True) if not equal(extent, 1))
    if is_empty(desc.size) or not axes:
        return False
    reach = 0
    for step, extent in axes:
        if step <= reach:
            break
        reach = reach + step * (extent - 1)
    else:
        return False
    if axes[0][0] == 0:
        return True
    # strides interleave: count the cells
    size, stride = [int(extent) for extent in desc.size], [int(step) for step in desc.stride]
    cells = torch.arange(int(extent_of(desc) - desc.offset), device="cpu").as_strided(size, stride)
    return int(cells.unique().numel()) != cells.numel()


def _certainly_apart(desc: Descriptor) -> bool:
    """Every element has a memory cell of its own, whatever the sizes are: each axis steps over all that inner ones reach."""
    reach = 0
    for axis in reversed(memory_order(desc)):
        if not statically_known_true(desc.stride[axis] > reach):
            return False
        reach = reach + desc.stride[axis] * (desc.size[axis] - 1)
    return True


def overlap_in_part(a: Descriptor, b: Descriptor) -> bool:
    """True when two tensors on one memory have some cells in common, and are not the very same."""
    if statically_same_size((*a.size, *a.stride, a.offset), (*b.size, *b.stride, b.offset)) and a.dtype == b.dtype:
        return False
    if is_empty(a.size) or is_empty(b.size):
        return False
    if same_size(a.size, b.size) and same_size(a.stride, b.stride) and equal(a.offset, b.offset) and a.dtype == b.dtype:
        return False
    if a.dtype == b.dtype and (extent_of(a) <= b.offset or extent_of(b) <= a.offset):
        return False
    scale_a, scale_b = a.dtype.itemsize, b.dtype.itemsize
    cells = torch.zeros(max(int(extent_of(a)) * scale_a, int(extent_of(b)) * scale_b), dtype=torch.bool, device="cpu")
    for desc, scale, read in ((a, scale_a, False), (b, scale_b, True)):
        size = [*(int(extent) for extent in desc.size), scale]
        stride = [*(int(step) * scale for step in desc.stride), 1]
        seen = cells.as_strided(size, stride, int(desc.offset) * scale)
        if read:
            return bool(seen.any())
        seen.fill_(True)
    return False


def same_memory(a: Descriptor, b: Descriptor) -> bool:
    """True when two tensors on one memory are the same cells in the same order."""
    whole = ((*d.size, *d.stride, d.offset) for d in (a, b))
    return a.dtype == b.dtype and not is_empty(a.size) and same_size(*whole)


#: make views that carry a bit saying that elements are conjugated or negated on reading
LAZY = frozenset({aten._conj.default, aten._neg_view.default})

Inverse = Callable[[FunctionalLog, FakeTensor, FakeTensor, Step], FakeTensor]


def _reshape_back(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    return log.emit(aten.view.default, (value, list(step.source.size)))  # type: ignore[no-any-return]  # one value


def _same(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    return value


def _apply_again(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    return log.emit(step.view.op, (value, *step.view.args))  # type: ignore[no-any-return]  # one value


def _permute_back(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    rank = len(step.source.size)
    order = [axis % rank for axis in step.view.args[0]]
    return log.emit(aten.permute.default, (value, [order.index(axis) for axis in range(rank)]))  # type: ignore[no-any-return]  # one value


def _scatter(op: Any) -> Inverse:
    def inverse(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
        return log.emit(op, (base, value, *step.view.args), dict(step.view.kwargs))  # type: ignore[no-any-return]  # one value

    return inverse


def _split_back(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    sizes, dim = step.view.args[0], step.view.args[1] if len(step.view.args) > 1 else 0
    item = step.view.item
    assert item is not None
    start = sum(sizes[:item]) if isinstance(sizes, (list, tuple)) else item * sizes  # an int, or a size that may change
    return log.emit(aten.slice_scatter.default, (base, value, dim, start, start + value.desc.size[dim]))  # type: ignore[no-any-return]  # one value


def _unbind_back(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    dim = step.view.args[0] if step.view.args else 0
    return log.emit(aten.select_scatter.default, (base, value, dim, step.view.item))  # type: ignore[no-any-return]  # one value


def _dtype_back(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
    if value.dtype == step.source.dtype:
        return value
    if value.desc.stride != contiguous_stride(value.desc.size):
        value = log.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return log.emit(aten.view.dtype, (value, step.source.dtype))  # type: ignore[no-any-return]  # one value


def _by_op(op: Any) -> Inverse:
    def inverse(log: FunctionalLog, base: FakeTensor, value: FakeTensor, step: Step) -> FakeTensor:
        return log.emit(op, (value,))  # type: ignore[no-any-return]  # one value

    return inverse


#: operator -> the whole after a write to its result. (base before, new value of the view) -> new base
INVERSES: dict[Any, Inverse] = {
    aten.view.default: _reshape_back,
    aten._reshape_alias.default: _reshape_back,
    aten.squeeze.default: _reshape_back,
    aten.squeeze.dim: _reshape_back,
    aten.squeeze.dims: _reshape_back,
    aten.unsqueeze.default: _reshape_back,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.t.default: _apply_again,
    aten.transpose.int: _apply_again,
    aten.permute.default: _permute_back,
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.split.Tensor: _split_back,
    aten.split_with_sizes.default: _split_back,
    aten.unsafe_split.Tensor: _split_back,
    aten.unsafe_split_with_sizes.default: _split_back,
    aten.unbind.int: _unbind_back,
    aten.view.dtype: _dtype_back,
    aten._conj.default: _by_op(aten.conj_physical.default),
    aten._neg_view.default: _by_op(aten.neg.default),
    aten.view_as_real.default: _by_op(aten.view_as_complex.default),
    aten.view_as_complex.default: _by_op(aten.view_as_real.default),
}


def _inverse_of(step: Step) -> Inverse | None:
    return INVERSES.get(step.view.op)
