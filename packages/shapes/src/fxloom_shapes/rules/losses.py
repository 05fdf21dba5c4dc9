"""Shape rules of losses that are operators of their own, and their derivatives: margin losses, negative log-likelihood, CTC.

In: the device and the operator's arguments. Out: a plan of new tensors, or None to decline, as where eager would raise.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, is_empty
from fxloom_shapes.fake.layout import is_contiguous
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.rules.registry import fresh, several, shape_rule

aten = torch.ops.aten


@shape_rule(aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default)
def margin_loss_backward(device: torch.device, grad: Any, x: Any, *rest: Any, **options: Any) -> Plan | None:
    """The gradient of the input; contiguous whatever the input is."""
    return fresh(x.desc.size, x.desc.dtype, device)


def _classes(x: Descriptor, target: Descriptor) -> bool:
    if len(x.size) == 1:
        return target.size in ((), (1,))
    return len(x.size) == 2 and target.size == x.size[:1]


@shape_rule(aten.multi_margin_loss.default)
def multi_margin_loss(
    device: torch.device, x: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Plan | None:
    """torch's Meta kernel gives a target without axes a loss of one axis, which eager does not."""
    refused = not _classes(x.desc, target.desc) or is_empty(x.desc.size) or target.desc.dtype is not torch.int64
    if refused or not x.desc.dtype.is_floating_point or p not in (1, 2):
        return None
    return fresh(() if reduction else target.desc.size, x.desc.dtype, device)


@shape_rule(aten.nll_loss_forward.default)
def nll_loss_forward(device: torch.device, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Plan | None:
    if not _classes(x.desc, target.desc) or not x.desc.dtype.is_floating_point or is_empty(x.desc.size):
        return None
    if weight is not None and weight.desc.size != (x.desc.size[-1],):
        return None
    size = target.desc.size if reduction == 0 and len(x.desc.size) == 2 else ()
    return several(fresh(size, x.desc.dtype, device), fresh((), x.desc.dtype, device))


@shape_rule(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(device: torch.device, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Plan | None:
    a, labels = x.desc, target.desc
    if len(a.size) != 4 or labels.size != (a.size[0], *a.size[2:]) or not a.dtype.is_floating_point or is_empty(a.size):
        return None
    if labels.dtype not in (torch.int64, torch.uint8) or (weight is not None and weight.desc.size != (a.size[1],)):
        return None
    return several(fresh(labels.size if reduction == 0 else (), a.dtype, device), fresh((), a.dtype, device))


@shape_rule(aten.nll_loss_backward.default)
def nll_loss_backward(
    device: torch.device, grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total: Any
) -> Plan | None:
    if not _classes(x.desc, target.desc) or not is_contiguous(x.desc):
        return None
    return fresh(x.desc.size, x.desc.dtype, device)


@shape_rule(aten._ctc_loss.default)
def ctc_loss(
    device: torch.device, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *rest: Any, **options: Any
) -> Plan | None:
    """The lengths are numbers of the call, so the shape depends on no tensor's values."""
    desc = log_probs.desc
    if len(desc.size) != 3 or device.type != "cpu" or not input_lengths or len(input_lengths) != len(target_lengths):
        return None
    steps, batch, _ = desc.size
    if batch != len(input_lengths) or max(input_lengths) > steps:
        return None
    alpha = (batch, steps, 2 * max(target_lengths) + 1)
    return several(fresh((batch,), desc.dtype, device), fresh(alpha, desc.dtype, device))


@shape_rule(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(device: torch.device, grad: Any, log_probs: Any, *rest: Any) -> Plan | None:
    return fresh(log_probs.desc.size, log_probs.desc.dtype, device)
