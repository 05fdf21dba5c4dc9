"""Run a function of gradients for each row of batched ones (`is_grads_batched`, `torch.func.vmap`).

In: a function of gradients, gradients that stand for a batch, and the level at which they do. Out: the function's results,
standing for the batch in their turn. Compiled code can't be given a tensor that stands for a batch, so it runs once for each row,
and the results are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import rebatched, unbatched
from fxloom_aot.double_backward.graph_link import double_backward_error


def for_each_row(
    run: Callable[[Sequence[torch.Tensor | None]], Sequence[Any]], gradients: Sequence[torch.Tensor | None], level: int
) -> Sequence[Any]:
    """What `run` makes of gradients that stand for many."""
    rows = [None if gradient is None else unbatched(gradient, level) for gradient in gradients]
    count = max(len(stacked) for stacked in rows if stacked is not None)
    made = [run([None if stacked is None else stacked[row % len(stacked)] for stacked in rows]) for row in range(count)]
    if count == 1:
        return made[0]
    return [None if gradient is None else rebatched(gradient, level) for gradient in _stacked(made)]


def _stacked(rows: Sequence[Sequence[torch.Tensor | None]]) -> list[torch.Tensor | None]:
    """What each row has, as one tensor."""
    return [None if each[0] is None else torch.stack(each) for each in zip(*rows, strict=True)]


class _Rows(torch.autograd.Function):
    """Calls a function of tensors; under vmap once for each row."""

    @staticmethod
    def forward(run: Callable[[Sequence[Any]], Sequence[Any]], *tensors: torch.Tensor | None) -> tuple[Any, ...]:
        return tuple(run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise double_backward_error("a transform of torch.func is at work")

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], run: Callable[..., Any], *tensors: torch.Tensor | None) -> tuple[Any, Any]:
        stacked = _stacked(
            [run([_row(tensor, dim, row) for tensor, dim in zip(tensors, in_dims[1:], strict=True)]) for row in range(info.batch_size)]
        )
        return tuple(stacked), tuple([None if gradient is None else 0 for gradient in stacked])


def _row(tensor: torch.Tensor | None, dim: int | None, row: int) -> torch.Tensor | None:
    return tensor if tensor is None or dim is None else tensor.select(dim, row)
