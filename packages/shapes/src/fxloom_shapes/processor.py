"""What the results of operators on the CPU depend on beside their arguments: which dtypes this processor's oneDNN computes in.

Asked of torch, once a process and nowhere else: it looks at the processor's instructions, and at what the environment forbids
(`ONEDNN_MAX_CPU_ISA`).
"""

from __future__ import annotations

import functools

import torch

from fxloom_shapes._torch_private import onednn_has_bfloat16, onednn_has_float16


@functools.cache
def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN takes convolutions in this half-precision dtype here."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return onednn_has_bfloat16()
    return dtype is torch.float16 and onednn_has_float16()
