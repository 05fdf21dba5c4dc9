"""Derivatives of the margin losses, for which torch has no Meta kernels."""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.rule_registry import fresh, shape_rule

aten = torch.ops.aten


@shape_rule(aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default)
def margin_loss_backward(device: torch.device, grad: Any, x: Any, *rest: Any, **options: Any) -> Plan | None:
    """The gradient of the input; contiguous whatever the input is."""
    return fresh(x.desc.size, x.desc.dtype, device)
