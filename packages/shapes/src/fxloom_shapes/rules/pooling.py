"""Shape rules of pooling, unpooling and their derivatives.

In: the device and the operator's arguments. Out: a plan of new tensors, in the memory format that the input suggests where the
kernels keep it; None to decline, as where eager would raise.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, is_empty
from fxloom_shapes.fake.layout import is_contiguous, suggested_stride, suggests_channels_last
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import assume_size, is_unbacked
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


def _pooled(extent: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int | None:
    """Number of windows along an axis (aten/src/ATen/native/Pool.h, pooling_output_shape)."""
    if kernel <= 0 or stride <= 0 or pad < 0 or 2 * pad > (kernel - 1) * dilation + 1:
        return None
    room = extent + 2 * pad - dilation * (kernel - 1) - 1
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and is_unbacked(extent):
        return None
    if ceil_mode and (count - 1) * stride >= extent + pad:
        count -= 1
    return count if assume_size(count - 1) else None


def _pair(value: Any, default: list[int] | None = None) -> list[int]:
    if not len(value) and default is not None:
        return default
    return list(value) * 2 if len(value) == 1 else list(value)


def _pool2d(desc: Descriptor, kernel: Any, stride: Any, pad: Any, dilation: Any, ceil_mode: bool) -> tuple[int, ...] | None:
    if len(desc.size) not in (3, 4) or is_empty(desc.size):
        return None
    kernel, pad, dilation = _pair(kernel), _pair(pad), _pair(dilation)
    stride = _pair(stride, kernel)
    sizes = [_pooled(desc.size[axis - 2], kernel[axis], stride[axis], pad[axis], dilation[axis], ceil_mode) for axis in range(2)]
    if sizes[0] is None or sizes[1] is None:
        return None
    return (*desc.size[:-2], sizes[0], sizes[1])


@shape_rule(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    device: torch.device, x: Any, kernel: Any, stride: Any = (), pad: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> Plan | None:
    size = _pool2d(x.desc, kernel, stride, pad, dilation, ceil_mode)
    if size is None:
        return None
    layout = suggested_stride(x.desc, size)
    return several(fresh(size, x.desc.dtype, device, layout), fresh(size, torch.int64, device, layout))


@shape_rule(aten.avg_pool2d.default)
def avg_pool2d(
    device: torch.device,
    x: Any,
    kernel: Any,
    stride: Any = (),
    pad: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Plan | None:
    size = _pool2d(x.desc, kernel, stride, pad, (1,), ceil_mode)
    if size is None or divisor_override == 0:
        return None
    return fresh(size, x.desc.dtype, device, suggested_stride(x.desc, size))


@shape_rule(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(device: torch.device, x: Any, output_size: Any) -> Plan | None:
    if len(x.desc.size) not in (3, 4) or is_empty(x.desc.size) or not x.desc.dtype.is_floating_point:
        return None
    size = (*x.desc.size[:-2], *output_size)
    return fresh(size, x.desc.dtype, device, suggested_stride(x.desc, size))


@shape_rule(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(device: torch.device, grad: Any, x: Any, *rest: Any) -> Plan | None:
    return fresh(x.desc.size, x.desc.dtype, device) if is_contiguous(x.desc) and not suggests_channels_last(x.desc) else None


@shape_rule(aten.avg_pool2d_backward.default, aten._adaptive_avg_pool2d_backward.default)
def avg_pool2d_backward(device: torch.device, grad: Any, x: Any, *rest: Any) -> Plan | None:
    return fresh(x.desc.size, x.desc.dtype, device) if is_contiguous(x.desc) and not suggests_channels_last(x.desc) else None


@shape_rule(aten.max_unpool2d.default)
def max_unpool2d(device: torch.device, x: Any, indices: Any, output_size: Any) -> Plan | None:
    desc = x.desc
    if len(desc.size) not in (3, 4) or len(output_size) != 2 or indices.desc.size != desc.size or is_empty(desc.size):
        return None
    if indices.desc.dtype is not torch.int64:
        return None
    size = (*desc.size[:-2], *output_size)
    return fresh(size, desc.dtype, device, suggested_stride(desc, size) if device.type == "cpu" else None)


@shape_rule(aten.fractional_max_pool3d_backward.default)
def fractional_max_pool3d_backward(device: torch.device, grad: Any, x: Any, *rest: Any) -> Plan | None:
    return fresh(x.desc.size, x.desc.dtype, device)


@shape_rule(aten._upsample_bicubic2d_aa_backward.default)
def upsample_bicubic2d_aa_backward(device: torch.device, grad: Any, output_size: Any, input_size: Any, *rest: Any) -> Plan | None:
    """torch's Meta kernel takes no symbolic sizes."""
    desc = grad.desc
    if len(desc.size) != 4 or len(input_size) != 4 or (*input_size[:2], *output_size) != tuple(desc.size) or is_empty(tuple(input_size)):
        return None
    return fresh(input_size, desc.dtype, device, suggested_stride(desc, tuple(input_size)))
