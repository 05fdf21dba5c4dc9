"""Fused attention: library calls of the eager kernels, whose layouts the graph's fakes know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.lowering.registry import lowering

if TYPE_CHECKING:
    from fxloom_inductor_core.graph import Lowering

aten = torch.ops.aten

_NAMES = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
)


def _attention(cx: Lowering, *args: Any, **kwargs: Any) -> Any:
    return cx.eager(cx.current, library=True)


lowering(*(getattr(aten, name).default for name in _NAMES if hasattr(aten, name)))(_attention)
