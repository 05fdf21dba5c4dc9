"""Fused attention, and the derivatives that are library calls."""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, contiguous_stride, is_empty
from fxloom_shapes.fake.layout import elementwise_stride, is_contiguous, suggests_channels_last
from fxloom_shapes.fake.plans import Number, Plan
from fxloom_shapes.fake.rule_registry import fresh, several, shape_rule

aten = torch.ops.aten


def _heads_inside(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of (batch, heads, length, width) stored as (batch, length, heads, width)."""
    b, h, n, d = size
    s = contiguous_stride((b, n, h, d))
    return (s[0], s[2], s[1], s[3])


def _attention_sizes(q: Descriptor, k: Descriptor, v: Descriptor) -> bool:
    return (
        len(q.size) == len(k.size) == len(v.size) == 4
        and q.dtype == k.dtype == v.dtype
        and q.size[3] == k.size[3] == v.size[3]
        and q.size[0] == k.size[0] == v.size[0]
        and k.size[1:3] == v.size[1:3]
    )


@shape_rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_cpu(
    device: torch.device, q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, **options: Any
) -> Plan | None:
    if not _attention_sizes(q.desc, k.desc, v.desc):
        return None
    b, h, n, _ = q.desc.size
    wide = torch.float64 if q.desc.dtype is torch.float64 else torch.float32
    return several(
        fresh(q.desc.size, q.desc.dtype, device, elementwise_stride(q.desc.size, [q.desc])),  # as empty_like(query)
        fresh((b, h, n), wide, device, (n * h, 1, h)),
    )


@shape_rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_cpu_backward(device: torch.device, grad: Any, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Plan | None:
    if not _attention_sizes(q.desc, k.desc, v.desc):
        return None
    return several(*[fresh(x.desc.size, x.desc.dtype, device, _heads_inside(x.desc.size)) for x in (q, k, v)])


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


def _classes(x: Descriptor, target: Descriptor) -> bool:
    if len(x.size) == 1:
        return target.size in ((), (1,))
    return len(x.size) == 2 and target.size == x.size[:1]


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


@shape_rule(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(device: torch.device, grad: Any, log_probs: Any, *rest: Any) -> Plan | None:
    return fresh(log_probs.desc.size, log_probs.desc.dtype, device)


@shape_rule(aten.nll_loss_backward.default)
def nll_loss_backward(
    device: torch.device, grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total: Any
) -> Plan | None:
    if not _classes(x.desc, target.desc) or not is_contiguous(x.desc):
        return None
    return fresh(x.desc.size, x.desc.dtype, device)
