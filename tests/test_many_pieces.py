"""Operators of many tensors: a loop that reads as many buffers as a kernel takes arguments."""

from __future__ import annotations

import torch

import fxloom


def test_a_loop_as_wide_as_a_kernel_is_scheduled() -> None:
    """It has no partner: the scheduler never lists what it reads."""
    fxloom.reset()
    pieces = [torch.randn(3) for _ in range(130)]

    def double(*pieces: torch.Tensor) -> torch.Tensor:
        return torch.cat(pieces) * 2

    assert torch.equal(fxloom.compile(double, fullgraph=True)(*pieces), double(*pieces))
    assert fxloom.stats().fallbacks.total() == 0
