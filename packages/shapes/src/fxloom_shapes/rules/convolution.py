"""Shape rules of convolution and its derivative.

In: the device and the operator's arguments. Out: a plan of new tensors in the memory format that torch's choice of a kernel gives
them, or None to decline. Where that choice depends on the number of threads, the plan is not kept.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fxloom_shapes.fake.cpu_features import onednn_computes, threads
from fxloom_shapes.fake.descriptor import Descriptor, describe, is_empty
from fxloom_shapes.fake.layout import channels_last_stride, is_contiguous, suggests_channels_last
from fxloom_shapes.fake.plans import Number, Plan, Uncached
from fxloom_shapes.fake.sizes import assume_size
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


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


@shape_rule(aten.convolution_backward.default)
def convolution_backward(
    device: torch.device,
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Any,
) -> Plan | None:
    descs = (grad.desc, x.desc, weight.desc)
    if transposed or any(not is_contiguous(desc) or suggests_channels_last(desc) or is_empty(desc.size) for desc in descs):
        return None
    if len({desc.dtype for desc in descs}) != 1:
        return None
    dtype = x.desc.dtype
    nothing: Plan = Number(None)
    return several(
        fresh(x.desc.size, dtype, device) if mask[0] else nothing,
        fresh(weight.desc.size, dtype, device) if mask[1] else nothing,
        fresh((weight.desc.size[0],), dtype, device) if mask[2] else nothing,
    )


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
