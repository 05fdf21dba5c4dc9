"""Shape rules of random draws whose distribution is given by tensors, and of dropout; with their derivatives.

In: the device and the operator's arguments. Out: a plan of new tensors, or None to decline. Draws of a size alone (`rand`,
`randn_like`) are in `creation`.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.layout import is_contiguous, suggested_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import broadcast, statically_same_size
from fxloom_shapes.fake.tensor import FakeTensor
from fxloom_shapes.rules.pointwise import elementwise_plan, to_float
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


@shape_rule(aten._standard_gamma_grad.default, aten.binomial.default, aten._dirichlet_grad.default)
def of_operands(device: torch.device, x: Any, *others: Any, **options: Any) -> Plan | None:
    """One number for each of the first operand, which the others have to match."""
    descs = [x.desc, *(other.desc for other in others if type(other) is FakeTensor)]
    if not all(statically_same_size(desc.size, x.desc.size) for desc in descs):
        return None
    return fresh(x.desc.size, x.desc.dtype, device)


@shape_rule(aten._sample_dirichlet.default, aten._standard_gamma.default)
def draw(device: torch.device, x: Any, generator: Any = None) -> Plan | None:
    return fresh(x.desc.size, x.desc.dtype, device)


@shape_rule(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def normal(device: torch.device, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Plan | None:
    descs = [value.desc for value in (mean, std) if type(value) is FakeTensor]
    size = broadcast(*[desc.size for desc in descs])
    if size is None or any(not desc.dtype.is_floating_point or desc.dtype != descs[0].dtype for desc in descs):
        return None
    return fresh(size, descs[0].dtype, device)


@shape_rule(aten.native_dropout.default)
def native_dropout(device: torch.device, x: Any, p: float, train: bool | None) -> Plan | None:
    if not is_contiguous(x.desc) or not x.desc.dtype.is_floating_point:
        return None
    return several(fresh(x.desc.size, x.desc.dtype, device), fresh(x.desc.size, torch.bool, device))


@shape_rule(aten.native_dropout_backward.default)
def native_dropout_backward(device: torch.device, grad: Any, mask: Any, scale: float) -> Plan | None:
    if device.type != "cpu":  # a kernel of its own
        return fresh(grad.desc.size, grad.desc.dtype, device, suggested_stride(grad.desc, grad.desc.size))
    return elementwise_plan(device, to_float, (grad, mask))
