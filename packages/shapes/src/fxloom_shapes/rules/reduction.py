"""Shape rules of reductions, scans and softmax.

In: the device and the operator's arguments. Out: a plan of new contiguous tensors, or None to decline, as for axes out of range,
for complex numbers in some operators, and for scans and softmax of what is not contiguous.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, is_empty
from fxloom_shapes.fake.layout import is_contiguous
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


def _reduced(desc: Descriptor, dim: Any, keepdim: bool) -> tuple[int, ...] | None:
    """The size after reducing over `dim` (None or empty: all axes); None when an axis is out of range or named twice."""
    rank = len(desc.size)
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    limit = max(rank, 1)
    if any(not -limit <= axis < limit for axis in dims):
        return None
    axes = {axis % limit for axis in dims}
    if len(axes) != len(dims):
        return None
    if keepdim:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(desc.size))
    return tuple(extent for axis, extent in enumerate(desc.size) if axis not in axes)


def _widened(dtype: torch.dtype) -> torch.dtype:
    """Sums of integers and booleans are int64."""
    return dtype if dtype.is_floating_point else torch.int64


@shape_rule(aten.sum.default)
def sum_all(device: torch.device, x: Any, dtype: torch.dtype | None = None) -> Plan | None:
    return sum_dim(device, x, None, False, dtype)


@shape_rule(aten.sum.dim_IntList)
def sum_dim(device: torch.device, x: Any, dim: Any, keepdim: bool = False, dtype: torch.dtype | None = None) -> Plan | None:
    if x.desc.dtype.is_complex:
        return None
    size = _reduced(x.desc, dim, keepdim)
    return None if size is None else fresh(size, dtype or _widened(x.desc.dtype), device)


@shape_rule(aten.logsumexp.default)
def logsumexp(device: torch.device, x: Any, dim: Any, keepdim: bool = False) -> Plan | None:
    if not is_contiguous(x.desc) or not x.desc.dtype.is_floating_point:
        return None
    size = _reduced(x.desc, dim, keepdim)
    return None if size is None else fresh(size, x.desc.dtype, device)


@shape_rule(aten.linalg_vector_norm.default)
def vector_norm(
    device: torch.device, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Plan | None:
    if dtype is not None or is_empty(x.desc.size) or not x.desc.dtype.is_floating_point:
        return None
    size = _reduced(x.desc, dim, keepdim)
    return None if size is None else fresh(size, x.desc.dtype, device)


@shape_rule(aten.mean.default)
def mean_all(device: torch.device, x: Any, dtype: torch.dtype | None = None) -> Plan | None:
    return mean_dim(device, x, None, False, dtype)


@shape_rule(aten.mean.dim)
def mean_dim(device: torch.device, x: Any, dim: Any, keepdim: bool = False, dtype: torch.dtype | None = None) -> Plan | None:
    result = dtype or x.desc.dtype
    size = _reduced(x.desc, dim, keepdim)
    return fresh(size, result, device) if size is not None and result.is_floating_point else None


@shape_rule(aten.amax.default, aten.amin.default)
def extremum(device: torch.device, x: Any, dim: Any = (), keepdim: bool = False) -> Plan | None:
    size = _reduced(x.desc, dim, keepdim)
    return fresh(size, x.desc.dtype, device) if size is not None and not is_empty(x.desc.size) and not x.desc.dtype.is_complex else None


@shape_rule(aten.max.dim, aten.min.dim)
def extremum_with_index(device: torch.device, x: Any, dim: int, keepdim: bool = False) -> Plan | None:
    size = _reduced(x.desc, dim, keepdim)
    if size is None or is_empty(x.desc.size) or x.desc.dtype.is_complex:
        return None
    return several(fresh(size, x.desc.dtype, device), fresh(size, torch.int64, device))


@shape_rule(aten.argmax.default, aten.argmin.default)
def arg_extremum(device: torch.device, x: Any, dim: int | None = None, keepdim: bool = False) -> Plan | None:
    size = _reduced(x.desc, dim, keepdim)
    return fresh(size, torch.int64, device) if size is not None and not is_empty(x.desc.size) and not x.desc.dtype.is_complex else None


@shape_rule(aten.any.default, aten.all.default)
def truth_all(device: torch.device, x: Any) -> Plan | None:
    return None if x.desc.dtype is torch.uint8 else fresh((), torch.bool, device)


@shape_rule(aten.any.dim, aten.all.dim, aten.any.dims, aten.all.dims)
def truth(device: torch.device, x: Any, dim: Any = None, keepdim: bool = False) -> Plan | None:
    if dim is None or (not isinstance(dim, int) and not dim):
        return None
    size = _reduced(x.desc, dim, keepdim)
    return fresh(size, torch.bool, device) if size is not None and x.desc.dtype is not torch.uint8 else None


@shape_rule(aten.var_mean.correction)
def var_mean(device: torch.device, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Plan | None:
    size = _reduced(x.desc, dim, keepdim)
    if size is None or not x.desc.dtype.is_floating_point:
        return None
    return several(fresh(size, x.desc.dtype, device), fresh(size, x.desc.dtype, device))


@shape_rule(aten.cumsum.default)
def cumsum(device: torch.device, x: Any, dim: int, dtype: torch.dtype | None = None) -> Plan | None:
    if _reduced(x.desc, dim, True) is None or not is_contiguous(x.desc) or x.desc.dtype.is_complex:
        return None
    return fresh(x.desc.size, dtype or _widened(x.desc.dtype), device)


@shape_rule(aten._softmax.default, aten._log_softmax.default)
def softmax(device: torch.device, x: Any, dim: int, half_to_float: bool) -> Plan | None:
    if half_to_float or not is_contiguous(x.desc) or not x.desc.dtype.is_floating_point or _reduced(x.desc, dim, True) is None:
        return None
    return fresh(x.desc.size, x.desc.dtype, device)


@shape_rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(device: torch.device, grad: Any, y: Any, dim: int, input_dtype: torch.dtype) -> Plan | None:
    if not is_contiguous(grad.desc) or not is_contiguous(y.desc) or grad.desc.size != y.desc.size:
        return None
    return fresh(grad.desc.size, input_dtype, device) if input_dtype == grad.desc.dtype else None
