"""A call that leaves its argument as it is and lays its gradient out as another operator would have.

In: a tensor. Out: the tensor; its gradient comes contiguous, or with the last two axes the other way round. Invariant: values are kept. The
program sees the strides of gradients of its inputs, so what stands for other operators has to give theirs.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_interfaces.regions import GraphFunction


class _LaidOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, swapped: bool) -> torch.Tensor:  # type: ignore[override]
        ctx.swapped = swapped
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        if ctx.swapped:
            return gradient.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2), None
        return gradient.clone(memory_format=torch.contiguous_format), None


def _lay_out(x: torch.Tensor, swapped: bool) -> torch.Tensor:
    laid_out: torch.Tensor = _LaidOut.apply(x, swapped)
    return laid_out


#: `lay_out_gradient(x, swapped)`, as it stands in graphs
lay_out_gradient = GraphFunction(_lay_out, "lay_out_gradient")
