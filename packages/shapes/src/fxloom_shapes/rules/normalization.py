"""Shape rules of normalization layers and their derivatives.

In: the device and the operator's arguments. Out: a plan: the normalized tensor and the statistics that the kernel keeps, in its
dtypes; None to decline.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, is_empty
from fxloom_shapes.fake.layout import is_contiguous, suggested_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)


def _statistics(device: torch.device, x: Any, *affine: Any) -> torch.dtype | None:
    """Type of the statistics that the kernel keeps; None for a mix of types that is left to torch.

    On CPU half types keep theirs when all is of one half type, float32 when the affine part is float32.
    """
    dtypes = {value.desc.dtype for value in affine if value is not None}
    own: torch.dtype = x.desc.dtype
    if dtypes <= {own}:
        return own if own in _WIDE or (device.type == "cpu" and own.is_floating_point) else None
    return torch.float32 if device.type == "cpu" and dtypes == {torch.float32} and own.itemsize == 2 else None


def _one_type(*values: Any) -> bool:
    """True when all are float32 or all float64."""
    dtypes = {value.desc.dtype for value in values if value is not None}
    return len(dtypes) == 1 and next(iter(dtypes)) in _WIDE


@shape_rule(aten.native_layer_norm.default)
def native_layer_norm(device: torch.device, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Plan | None:
    desc = x.desc
    inner = tuple(normalized_shape)
    outer = len(desc.size) - len(inner)
    if not inner or outer < 0 or desc.size[outer:] != inner or not is_contiguous(desc):
        return None
    dtype = _statistics(device, x, weight, bias)
    if dtype is None:
        return None
    if any(value is not None and value.desc.size != inner for value in (weight, bias)):
        return None
    kept = (*desc.size[:outer], *[1] * len(inner))
    return several(fresh(desc.size, desc.dtype, device), fresh(kept, dtype, device), fresh(kept, dtype, device))


@shape_rule(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    device: torch.device, grad: Any, x: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Plan | None:
    if not all(mask) or weight is None or bias is None or not _one_type(grad, x, weight, bias):
        return None
    if not is_contiguous(x.desc) or not is_contiguous(grad.desc):
        return None
    return several(*[fresh(value.desc.size, value.desc.dtype, device) for value in (x, weight, bias)])


@shape_rule(aten.native_group_norm.default)
def native_group_norm(
    device: torch.device, x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, group: int, eps: float
) -> Plan | None:
    dtype = _statistics(device, x, weight, bias)
    if dtype is None or (device.type != "cpu" and not is_contiguous(x.desc)) or math.prod(x.desc.size) != n * c * hxw:
        return None
    kept = fresh((n, group), dtype, device)
    stride = suggested_stride(x.desc, x.desc.size) if device.type == "cpu" else None
    return several(fresh(x.desc.size, x.desc.dtype, device, stride), kept, kept)


def _batch_norm(device: torch.device, x: Any, others: tuple[Any, ...], training: bool) -> list[Plan] | None:
    desc: Descriptor = x.desc
    if len(desc.size) == 1:  # torch's kernels for metadata let it pass
        raise IndexError("Dimension out of range (expected to be in range of [-1, 0], but got 1)")
    if len(desc.size) < 2 or is_empty(desc.size) or (device.type != "cpu" and not is_contiguous(desc)):
        return None
    dtype = _statistics(device, x, *others)
    if dtype is None:
        return None
    channels = (desc.size[1],)
    if any(value is not None and value.desc.size != channels for value in others):
        return None
    kept = channels if training else (0,)
    return [fresh(desc.size, desc.dtype, device, suggested_stride(desc, desc.size)), *[fresh(kept, dtype, device)] * 2]


@shape_rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def native_batch_norm(
    device: torch.device, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Plan | None:
    if device.type != "cpu" and not training:
        return None
    plans = _batch_norm(device, x, (weight, bias, mean, var), training)
    return None if plans is None else several(*plans)


@shape_rule(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    device: torch.device, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Plan | None:
    plans = _batch_norm(device, x, (weight, bias, mean, var), training)
    if plans is None:
        return None
    statistics = [fresh(value.desc.size, value.desc.dtype, device) for value in (mean, var)]
    return several(*plans, *statistics)


@shape_rule(aten._batch_norm_with_update.default)
def batch_norm_with_update(
    device: torch.device, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Plan | None:
    plans = _batch_norm(device, x, (weight, bias, mean, var), True) if device.type == "cpu" else None  # others reserve memory
    return None if plans is None else several(*plans, fresh((0,), torch.uint8, device))


@shape_rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    device: torch.device, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Plan | None:
    plans = _batch_norm(device, x, (weight, bias), training) if training else None
    return None if plans is None else several(*plans)


@shape_rule(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    device: torch.device,
    grad: Any,
    x: Any,
    weight: Any,
    mean: Any,
    var: Any,
    save_mean: Any,
    save_rstd: Any,
    train: bool,
    eps: float,
    mask: Any,
) -> Plan | None:
    if not all(mask) or not _one_type(grad, x, weight) or not is_contiguous(x.desc) or not is_contiguous(grad.desc):
        return None
    channels = fresh((x.desc.size[1],), x.desc.dtype, device)
    return several(fresh(x.desc.size, x.desc.dtype, device), channels, channels)
