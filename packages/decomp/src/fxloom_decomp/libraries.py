"""Whether rules may leave an operator to eager's library.

In: a tensor or dtype that a rule is asked for. Out: whether the rule should decline because eager's kernel is faster
(`on_cpu_library`), and whether it may take sums in another order than that kernel (`may_reorder_sums`). By default rules decline
where its kernel is faster, and where theirs would take the sums of float64 in another order. Rules on the way to prims run
`without_libraries`: there is nobody to leave an operator to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_AVAILABLE: ContextVar[bool] = ContextVar("fxloom_decomp_libraries", default=True)


@contextmanager
def without_libraries() -> Iterator[None]:
    """Rules take what they can."""
    token = _AVAILABLE.set(False)
    try:
        yield
    finally:
        _AVAILABLE.reset(token)


def on_cpu_library(x: Tensor) -> bool:
    """True for tensors on the CPU, where there is eager's library: for operators whose kernels there are faster."""
    return x.device.type == "cpu" and _AVAILABLE.get()


def may_reorder_sums(dtype: torch.dtype) -> bool:
    """True for types in which a rule may take sums in another order than eager's kernel.

    float64 has no wider type to judge the difference by, and where terms cancel each other it is more than a last bit.
    """
    return dtype in (torch.float32, torch.float16, torch.bfloat16) or (dtype is torch.float64 and not _AVAILABLE.get())
