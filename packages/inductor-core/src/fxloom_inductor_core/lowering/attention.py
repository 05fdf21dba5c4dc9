"""Fused attention: a list of operators that are library calls of eager's kernels, whose layouts the graph's fakes know.

A code generator's template for it would be asked for here, as `matmul` does for products.
"""

from __future__ import annotations

import torch

from fxloom_inductor_core.lowering.registry import library_call, lowering

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

lowering(*(getattr(aten, name).default for name in _NAMES if hasattr(aten, name)))(library_call)
