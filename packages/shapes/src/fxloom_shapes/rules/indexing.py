"""Shape rules of indexing, gathering and scattering: `embedding`, `gather`, `index`, `index_put`, `roll` and their like.

In: the device and the operator's arguments. Out: a plan with the strides of eager's kernels, or None to decline. Scatters into
views are only checked, since torch's Meta kernels let sizes pass that eager refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, Sizes, contiguous_stride, equal, is_empty
from fxloom_shapes.fake.layout import elementwise_stride, is_contiguous, is_non_overlapping_and_dense, suggested_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import assume_size, broadcast, guard_or_false, same_size
from fxloom_shapes.fake.tensor import FakeTensor, run_operator
from fxloom_shapes.rules.registry import fresh, several, shape_rule
from fxloom_shapes.rules.view import copy_of, view_stride

aten = torch.ops.aten
_INDEX = (torch.int64, torch.int32)


@shape_rule(aten.embedding.default)
def embedding(
    device: torch.device, weight: Any, indices: Any, padding_idx: int = -1, by_freq: bool = False, sparse: bool = False
) -> Plan | None:
    if len(weight.desc.size) != 2 or indices.desc.dtype not in _INDEX:
        return None
    return fresh((*indices.desc.size, weight.desc.size[1]), weight.desc.dtype, device)


@shape_rule(aten.embedding_dense_backward.default)
def embedding_dense_backward(device: torch.device, grad: Any, indices: Any, num_weights: int, *rest: Any) -> Plan | None:
    return fresh((num_weights, grad.desc.size[-1]), grad.desc.dtype, device)


_SUM, _MAX = 0, 2
#: types of tables whose sums eager's CPU kernel takes without looking at each bag's number
_SUMMED_IN_ROWS = (torch.float32, torch.float16, torch.bfloat16)


@shape_rule(aten._embedding_bag.default)
def embedding_bag(
    device: torch.device, weight: Any, indices: Any, offsets: Any, by_freq: bool = False, mode: int = 0, sparse: bool = False,
    weights: Any = None, last: bool = False, padding_idx: int = -1,
) -> Plan | None:  # fmt: skip
    return _bags(device, weight, indices, offsets, mode, weights, last, padding_idx, offsets.desc.size[0] - last)


@shape_rule(aten._embedding_bag_forward_only.default)
def embedding_bag_forward_only(
    device: torch.device, weight: Any, indices: Any, offsets: Any, by_freq: bool = False, mode: int = 0, sparse: bool = False,
    weights: Any = None, last: bool = False, padding_idx: int = -1,
) -> Plan | None:  # fmt: skip
    sizes = offsets.desc.size[0] - (last and mode != _SUM)
    return _bags(device, weight, indices, offsets, mode, weights, last, padding_idx, sizes)


def _bags(
    device: torch.device, weight: Any, indices: Any, offsets: Any, mode: int, weights: Any, last: bool, padding_idx: int, sizes: Any
) -> Plan | None:
    """(bags, the bag of each index, sizes of bags, positions of maxima), of which eager's CPU kernels leave some empty."""
    table, line = weight.desc, indices.desc
    if device.type != "cpu" or len(table.size) != 2 or len(line.size) != 1 or offsets.desc.dtype is not line.dtype:
        return None
    if line.dtype not in _INDEX or (weights is not None and (mode != _SUM or weights.desc.dtype is not table.dtype)):
        return None
    plain = equal(table.stride[1], 1) and padding_idx < 0 and (weights is None or equal(weights.desc.stride[0], 1))
    numbered = mode != _SUM or table.dtype not in _SUMMED_IN_ROWS or not plain
    bags = offsets.desc.size[0] - last
    return several(
        fresh((bags, table.size[1]), table.dtype, device),
        fresh((line.size[0] if numbered else 0,), line.dtype, device),
        fresh((sizes,), line.dtype, device),
        fresh((bags, table.size[1]) if mode == _MAX else (sizes,), line.dtype, device),
    )


@shape_rule(aten.gather.default)
def gather(device: torch.device, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Plan | None:
    a, i = x.desc, index.desc
    if len(a.size) != len(i.size) or not a.size or i.dtype is not torch.int64 or not -len(a.size) <= dim < len(a.size):
        return None
    axis = dim % len(a.size)
    if any(guard_or_false(own > other) for number, (own, other) in enumerate(zip(i.size, a.size, strict=True)) if number != axis):
        return None
    return fresh(i.size, a.dtype, device)


@shape_rule(aten.index.Tensor)
def index(device: torch.device, x: Any, indices: Any) -> Plan | None:
    """Eager reads `x` by a TensorIterator over its own strides, with 0 along what is picked, and those of the indices
    (aten/src/ATen/native/TensorAdvancedIndexing.cpp, AdvancedIndex); Meta kernels make every result contiguous."""
    desc = x.desc
    used = [number for number, item in enumerate(indices) if item is not None]
    if not used or len(indices) > len(desc.size) or is_empty(desc.size):
        return None
    tensors = [indices[number] for number in used]
    if any(type(item) is not FakeTensor or item.desc.dtype not in _INDEX for item in tensors):
        return None
    picked = broadcast(*[item.desc.size for item in tensors])
    if picked is None:
        return None
    first, last = used[0], used[-1] + 1
    if used != list(range(first, last)):  # indices that are apart move to the front
        others = [axis for axis in range(len(desc.size)) if axis not in used]
        before, after = [], others
    else:
        before, after = list(range(first)), list(range(last, len(desc.size)))
    size = (*(desc.size[axis] for axis in before), *picked, *(desc.size[axis] for axis in after))
    strides = _index_strides([item.desc for item in tensors], picked, device)
    none = (0,) * len(picked)
    source = (*(desc.stride[axis] for axis in before), *none, *(desc.stride[axis] for axis in after))
    operands = [_operand(desc, size, source)]
    whole = (*(1 for _ in before), *picked, *(1 for _ in after))
    for stride in strides:
        reshaped = view_stride(_operand(desc, picked, stride), whole)
        operands.append(_operand(desc, whole, contiguous_stride(whole) if reshaped is None else reshaped))
    return fresh(size, desc.dtype, device, elementwise_stride(size, operands))


def _index_strides(descs: list[Descriptor], size: Sizes, device: torch.device) -> list[Sizes]:
    """Of the index tensors as the kernel reads them: int64, of one size, on GPUs of the same strides too."""
    strides = []
    for desc in descs:
        lead = len(size) - len(desc.size)
        kept = (step if same_size((own,), (whole,)) else 0 for own, whole, step in zip(desc.size, size[lead:], desc.stride, strict=True))
        expanded = (*(0 for _ in range(lead)), *kept)
        is_copied = desc.dtype is torch.int32
        strides.append(elementwise_stride(size, [_operand(desc, size, expanded)]) if is_copied else expanded)
    if device.type != "cpu" and not all(same_size(stride, strides[0]) for stride in strides):
        return [contiguous_stride(size)] * len(strides)
    return strides


def _operand(desc: Descriptor, size: Sizes, stride: Sizes) -> Descriptor:
    return Descriptor(size, stride, desc.dtype, desc.device, 0, env=desc.env)


@shape_rule(aten.index_put.default)
def index_put(device: torch.device, x: Any, *rest: Any, **options: Any) -> Plan | None:
    if not is_contiguous(x.desc) or not is_non_overlapping_and_dense(x.desc) or x.desc.dtype.is_complex:
        return None
    if any(type(value) is FakeTensor and value.desc.dtype.is_complex for value in rest):
        return None
    if _invalid(rest):
        return None
    return copy_of(x.desc, x.desc.dtype, device, None)


def _invalid(rest: tuple[Any, ...]) -> bool:
    """True when an argument's size is for torch to judge: everything here but index_put by integer tensors."""
    indices = rest[0] if rest else None
    if not isinstance(indices, (list, tuple)) or len(rest) < 2 or type(rest[1]) is not FakeTensor:
        return True
    return any(item is not None and item.desc.dtype not in _INDEX for item in indices)


@shape_rule(aten.nonzero_static.default)
def nonzero_static(device: torch.device, x: Any, *, size: int, fill_value: int = -1) -> Plan | None:
    return fresh((size, len(x.desc.size)), torch.int64, device) if assume_size(size) else None


@shape_rule(aten.roll.default)
def roll(device: torch.device, x: Any, shifts: Any, dims: Any = ()) -> Plan | None:
    shifts, dims = (list(value) if isinstance(value, (list, tuple)) else [value] for value in (shifts, dims))
    rank = len(x.desc.size)
    if len(shifts) != len(dims) or not dims or not all(-rank <= dim < rank for dim in dims):
        return None
    if is_empty(x.desc.size) and device.type == "cpu":
        return copy_of(x.desc, x.desc.dtype, device, None)
    # on the CPU two slices are put together; an empty one suggests no memory format
    stride = suggested_stride(x.desc, x.desc.size) if device.type == "cpu" else None
    if stride is not None and any(equal(shift % x.desc.size[dim], 0) for shift, dim in zip(shifts, dims, strict=True)):
        stride = None
    return fresh(x.desc.size, x.desc.dtype, device, stride)


@shape_rule(aten.index_copy.default)
def index_copy(device: torch.device, x: Any, dim: int, index: Any, source: Any) -> Plan | None:
    """Of a tensor without axes, for which torch's Meta kernel fails."""
    a, i, s = x.desc, index.desc, source.desc
    if a.size or dim not in (-1, 0) or i.dtype is not torch.int64 or a.dtype is not s.dtype or s.size:
        return None
    return fresh((), a.dtype, device) if len(i.size) <= 1 and all(equal(extent, 1) for extent in i.size) else None


def _scatter_of_a_view(view: Any) -> Callable[..., Plan | None]:
    """Refuse what eager refuses, as the Meta kernels don't: a view that there is none of, a source of another size."""

    def rule(device: torch.device, x: Any, source: Any, *places: Any, **named: Any) -> Plan | None:
        seen, given = run_operator(view, (x, *places), named).desc.size, source.desc.size
        if not same_size(seen, given):
            raise RuntimeError(
                f"expected src to have a size equal to the slice of self. src size = {list(given)}, slice size = {list(seen)}"
            )
        return None  # the result is for torch's to say

    return rule


for _scatter, _view in (
    (aten.select_scatter.default, aten.select.int),
    (aten.slice_scatter.default, aten.slice.Tensor),
    (aten.diagonal_scatter.default, aten.diagonal.default),
    (aten.as_strided_scatter.default, aten.as_strided.default),
):
    shape_rule(_scatter)(_scatter_of_a_view(_view))
