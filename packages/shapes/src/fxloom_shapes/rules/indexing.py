"""Indexing, gathering and scattering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import equal, is_empty
from fxloom_shapes.fake.layout import is_contiguous, is_non_overlapping_and_dense, suggested_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import assume_size, broadcast, guard_or_false, same_size
from fxloom_shapes.fake.tensor import FakeTensor, run_operator
from fxloom_shapes.rules.registry import fresh, shape_rule
from fxloom_shapes.rules.view import copy_of

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
    desc = x.desc
    used = [number for number, item in enumerate(indices) if item is not None]
    if not used or len(indices) > len(desc.size) or not is_contiguous(desc) or is_empty(desc.size):
        return None
    if used != list(range(used[0], used[-1] + 1)):
        return None  # indices that are apart move to the front
    tensors = [indices[number] for number in used]
    if any(type(item) is not FakeTensor or item.desc.dtype not in _INDEX or not is_contiguous(item.desc) for item in tensors):
        return None
    picked = broadcast(*[item.desc.size for item in tensors])
    if picked is None:
        return None
    return fresh((*desc.size[: used[0]], *picked, *desc.size[used[-1] + 1 :]), desc.dtype, device)


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
