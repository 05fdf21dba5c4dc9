"""Shape rules of fused attention on the CPU and its derivative.

In: the device and the operator's arguments. Out: a plan with the strides that the kernels give their results, or None to decline.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, contiguous_stride
from fxloom_shapes.fake.layout import elementwise_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.rules.registry import fresh, several, shape_rule

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
