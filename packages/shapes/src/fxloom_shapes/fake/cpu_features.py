"""What the results of operators on the CPU depend on beside their arguments: instructions, oneDNN, the number of threads.

In: nothing, or a dtype. Out: torch's own answer. Instruction sets are looked up once a process: torch detects the processor and
respects the environment (`ATEN_CPU_CAPABILITY`, `ONEDNN_MAX_CPU_ISA`). The number of threads may be changed by the program at any
time.
"""

from __future__ import annotations

import functools

import torch

from fxloom_shapes._torch_private import onednn_has_bfloat16, onednn_has_float16


def capability() -> str:
    """The instructions that torch's own kernels use here: `AVX512`, `AVX2`, `DEFAULT` and the like."""
    return torch.backends.cpu.get_cpu_capability()


def threads() -> int:
    """How many threads an operator may use now."""
    return torch.get_num_threads()


def has_onednn() -> bool:
    """Whether this torch has oneDNN."""
    return torch.backends.mkldnn.is_available()


@functools.cache
def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN takes convolutions in this dtype here: float32 wherever it is, half-precision ones by the processor."""
    if not has_onednn():
        return False
    if dtype is torch.bfloat16:
        return onednn_has_bfloat16()
    if dtype is torch.float16:
        return onednn_has_float16()
    return dtype is torch.float32
