"""Draws from gamma's family and from binomial, and their derivatives, for which torch has no Meta kernels."""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.rule_registry import fresh, shape_rule
from fxloom_shapes.fake.sizes import statically_same_size
from fxloom_shapes.fake.tensor import FakeTensor

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
