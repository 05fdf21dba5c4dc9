"""Products of matrices, convolution, attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, describe, is_empty
from fxloom_shapes.fake.layout import channels_last_stride, is_contiguous, suggests_channels_last
from fxloom_shapes.fake.plans import Plan, Uncached
from fxloom_shapes.fake.processor import onednn_computes, threads
from fxloom_shapes.fake.rule_registry import fresh, shape_rule
from fxloom_shapes.fake.sizes import assume_equal, assume_size, broadcast, same_size

aten = torch.ops.aten


def _product(a: Descriptor, b: Descriptor, rank: int) -> tuple[int, ...] | None:
    if len(a.size) != rank or len(b.size) != rank or a.dtype != b.dtype or a.dtype.is_complex:
        return None
    if not assume_equal(a.size[-1], b.size[-2]) or not all(map(assume_equal, a.size[:-2], b.size[:-2])):
        return None
    return (*a.size[:-1], b.size[-1])


def _covers(part: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """`part` can be broadcast to `size`."""
    common = broadcast(part, size)
    return common is not None and same_size(common, size)


@shape_rule(aten.mm.default)
def mm(device: torch.device, a: Any, b: Any) -> Plan | None:
    size = _product(a.desc, b.desc, 2)
    return None if size is None else fresh(size, a.desc.dtype, device)


@shape_rule(aten.bmm.default)
def bmm(device: torch.device, a: Any, b: Any) -> Plan | None:
    size = _product(a.desc, b.desc, 3)
    return None if size is None else fresh(size, a.desc.dtype, device)


@shape_rule(aten.addmm.default)
def addmm(device: torch.device, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
    size = _product(a.desc, b.desc, 2)
    if size is None or x.desc.dtype != a.desc.dtype or not _covers(x.desc.size, size):
        return None
    return fresh(size, a.desc.dtype, device)


@shape_rule(aten.baddbmm.default)
def baddbmm(device: torch.device, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
    size = _product(a.desc, b.desc, 3)
    if size is None or x.desc.dtype != a.desc.dtype or not _covers(x.desc.size, size):
        return None
    return fresh(size, a.desc.dtype, device)


_FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_BY_TENSOR, _BY_ROW = 0, 1


@shape_rule(aten._scaled_mm.default)
def scaled_mm(
    device: torch.device, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Plan | None:  # fmt: skip
    """On the CPU, where the factors may lie in any way; other devices are particular, and torch's Meta kernel says about what."""
    recipes = [_BY_TENSOR if math.prod(scale.desc.size) == 1 else _BY_ROW for scale in (scale_a, scale_b)]
    return _scaled_product(device, a, b, (scale_a, scale_b), recipes, bias, out_dtype)


def scaled_mm_by_recipes(
    device: torch.device, a: Any, b: Any, scale_a: Any, recipe_a: Any, swizzle_a: Any, scale_b: Any, recipe_b: Any, swizzle_b: Any,
    bias: Any, out_dtype: torch.dtype | None, contraction_dim: Any = (), use_fast_accum: bool = False,
) -> Plan | None:  # fmt: skip
    if any(map(len, (scale_a[1:], scale_b[1:], contraction_dim))) or any((*swizzle_a, *swizzle_b)):
        return None
    return _scaled_product(device, a, b, (*scale_a, *scale_b), [*recipe_a, *recipe_b], bias, out_dtype)


if hasattr(aten, "_scaled_mm_v2"):  # torch 2.11 may be without
    shape_rule(aten._scaled_mm_v2.default)(scaled_mm_by_recipes)


def _scaled_product(
    device: torch.device, a: Any, b: Any, scales: tuple[Any, ...], recipes: list[int], bias: Any, out_dtype: torch.dtype | None
) -> Plan | None:
    if device.type != "cpu" or not {a.desc.dtype, b.desc.dtype} <= _FLOAT8 or len(a.desc.size) != 2 or len(b.desc.size) != 2:
        return None
    size = (a.desc.size[0], b.desc.size[1])
    if not assume_equal(a.desc.size[1], b.desc.size[0]) or any(scale.desc.dtype is not torch.float32 for scale in scales):
        return None
    for scale, recipe, by_row in zip(scales, recipes, ((size[0], 1), (1, size[1])), strict=True):
        fits = math.prod(scale.desc.size) == 1 if recipe == _BY_TENSOR else recipe == _BY_ROW and same_size(scale.desc.size, by_row)
        if not fits or recipe != recipes[0] or not is_contiguous(scale.desc):
            return None
    if bias is not None and not same_size(bias.desc.size, size[1:]):
        return None
    return fresh(size, out_dtype or a.desc.dtype, device)


@shape_rule(aten.convolution.default)
def convolution(
    device: torch.device,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Plan | Uncached | None:
    a, w = x.desc, weight.desc
    rank = len(a.size) - 2
    if len(w.size) != len(a.size) or rank not in (1, 2, 3) or a.dtype != w.dtype or is_empty(a.size) or is_empty(w.size):
        return None
    fits = a.size[1] == w.size[0] and not w.size[0] % groups if transposed else a.size[1] == w.size[1] * groups and not w.size[0] % groups
    if not fits or not a.dtype.is_floating_point:
        return None
    channels = w.size[1] * groups if transposed else w.size[0]
    if bias is not None and (bias.desc.size != (channels,) or bias.desc.dtype != a.dtype):
        return None
    stride, padding, dilation, added = (_per_axis(value, rank) for value in (stride, padding, dilation, output_padding))
    size = [a.size[0], channels]
    for axis in range(rank):
        reach = dilation[axis] * (w.size[axis + 2] - 1) + 1
        if stride[axis] <= 0 or dilation[axis] <= 0 or padding[axis] < 0:
            return None
        if transposed:
            if not 0 <= added[axis] < max(stride[axis], dilation[axis]):
                return None
            extent = (a.size[axis + 2] - 1) * stride[axis] - 2 * padding[axis] + reach + added[axis]
            if not assume_size(extent - 1):
                return None
            size.append(extent)
            continue
        room = a.size[axis + 2] + 2 * padding[axis] - reach
        if not assume_size(room):
            return None
        size.append(room // stride[axis] + 1)
    widened = transposed and any(more >= step for more, step in zip(added, stride, strict=True))
    plain = all(step == 1 for step in (*stride, *dilation))
    if not _convolves_channels_last(device, a, w, groups, plain, widened):
        made = fresh(size, a.dtype, device)
    elif rank > 1:
        made = fresh(size, a.dtype, device, channels_last_stride(tuple(size)))
    else:
        batch, step, _, last = channels_last_stride((size[0], size[1], 1, size[2]))
        made = fresh(size, a.dtype, device, (batch, step, last))
    by_threads = rank == 3 and device.type == "cpu" and a.dtype is torch.float32  # `_in_onednn` asks for their number
    return Uncached(made) if by_threads else made


def _convolves_channels_last(device: torch.device, a: Descriptor, w: Descriptor, groups: int, plain: bool, widened: bool) -> bool:
    """Whether torch picks that memory format for the result (determine_backend_memory_format in ATen's Convolution.cpp).

    plain: neither strided nor dilated. widened: has an output padding that some backends don't know.
    """
    if device.type != "cpu" and a.dtype is torch.float64:
        return False
    if len(w.size) == 3:  # worked out as of two dimensions, of the input made row-major
        return suggests_channels_last(_with_height(w))
    if not suggests_channels_last(a) and not suggests_channels_last(w):
        return False
    return len(w.size) == 4 or device.type != "cpu" or (not widened and _in_onednn(a, w, groups, plain))


def _in_onednn(a: Descriptor, w: Descriptor, groups: int, plain: bool) -> bool:
    """Whether a convolution on the CPU is oneDNN's (use_mkldnn in ATen's Convolution.cpp); others know no 3-d channels last."""
    if not onednn_computes(a.dtype):
        return False
    if a.dtype is not torch.float32:
        return True
    small = plain and a.size[0] < 16 and w.size[-1] == w.size[-2] == 1 and threads() == 1
    large_kernel = w.size[-1] > 3 and w.size[-2] > 3
    return not small and (groups > 1 or large_kernel or a.size[0] > 1 or math.prod(a.size[:4]) > 20480)


def _with_height(desc: Descriptor) -> Descriptor:
    (n, c, length), stride = desc.size, desc.stride
    return describe((n, c, 1, length), (stride[0], stride[1], length * stride[2], stride[2]), desc.dtype, desc.device)


def _per_axis(value: Any, rank: int) -> list[int]:
    return list(value) * rank if len(value) == 1 else list(value)
