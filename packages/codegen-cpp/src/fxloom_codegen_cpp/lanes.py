"""Where the lanes of a kernel lie: along its last inner axis, or along the last outer one."""

from __future__ import annotations

from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.expr import stride_of, symbol
from fxloom_interfaces.program import Kernel, Load, Store

#: Outer points per pass when lanes lie along an outer axis: a few vectors of float32.
LANES = 64


def lanes_across(kernel: Kernel) -> bool:
    """True when lanes should lie along the last outer axis: it is contiguous where the last inner axis is not."""
    if not kernel.inner or not kernel.outer:
        return False
    down, along = symbol(kernel.inner[-1].name), symbol(kernel.outer[-1].name)
    score = 0
    for stage in kernel.stages:
        if not stage.inner:
            continue
        for instruction in stage.body:
            if isinstance(instruction, (Load, Store)) and _buffer_role(kernel, instruction.buffer) != "scratch":
                score += (stride_of(instruction.index, along) == 1) - (stride_of(instruction.index, down) == 1)
    if score <= 0:
        return False
    scratch = 0
    for buffer in kernel.buffers:
        if buffer.role == "scratch":
            if not isinstance(buffer.numel, int):
                return False
            scratch += buffer.numel * LANES * dtype_info(buffer.dtype).nbytes
    size = kernel.outer[-1].size
    return scratch <= 1 << 18 and (not isinstance(size, int) or size >= 8)


def _buffer_role(kernel: Kernel, name: str) -> str:
    return next(b.role for b in kernel.buffers if b.name == name)
