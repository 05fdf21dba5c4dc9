"""Make results of one autograd graph results of tensors of another.

In: results with a history (the inner graph), the tensors or edges where that history ends, and for each end the tensor of the outer
graph that it stands for. Out: the same values as results of the outer tensors. Their gradients are computed by the inner graph, for
the ends that the running pass needs; so are gradients of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_aot._torch_private import batch_level


@dataclass(frozen=True, slots=True)
class History:
    """What gradients go to in the outer graph. convert: makes of a gradient what goes there; None for the gradient itself."""

    tensor: torch.Tensor
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class _InnerGraph:
    """results: with a history. ends: tensors or edges, one for each of `histories`."""

    results: list[torch.Tensor]
    ends: list[Any]
    histories: list[History]


def double_backward_error(reason: str) -> RuntimeError:
    """What is raised where a derivative of a derivative can't be made."""
    return RuntimeError(
        f"a graph that fxloom compiled is differentiated twice, which can't be done here: {reason}. Run this part with "
        "fxloom.disable(function), or compile it with backend='eager'."
    )


def link_results(results: Sequence[torch.Tensor | None], ends: Sequence[Any], histories: Sequence[History]) -> list[torch.Tensor | None]:
    """See the module's docstring. Results that have no history, and None, are returned as they are."""
    places = [place for place, result in enumerate(results) if result is not None and result.requires_grad]
    if not places:
        return list(results)
    inner = _InnerGraph([result for result in results if result is not None and result.requires_grad], list(ends), list(histories))
    shown = _LinkedResults.apply(inner, *[history.tensor for history in histories])
    found = list(results)
    for place, result in zip(places, shown, strict=True):
        found[place] = result
    return found


class _LinkedResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner: _InnerGraph, *outer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.inner = inner
        # the inner graph is kept while a pass may reach it by several paths; this tensor records whether a pass freed it
        ctx.save_for_backward(torch.empty(0, device="cpu"))
        ctx.set_materialize_grads(False)
        return tuple([result.detach() for result in inner.results])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        inner: _InnerGraph = ctx.inner
        ctx.saved_tensors  # noqa: B018  # raises, as autograd does, where an earlier pass freed it
        found: list[Any] = [None] * (1 + len(inner.ends))
        wanted = [place for place in range(len(inner.ends)) if ctx.needs_input_grad[1 + place]]
        came = [(result, gradient) for result, gradient in zip(inner.results, gradients, strict=True) if gradient is not None]
        if not came or not wanted:
            return tuple(found)
        results, given = [result for result, _ in came], [gradient for _, gradient in came]
        ends = [inner.ends[place] for place in wanted]
        if torch.is_grad_enabled():
            if batch_level(given):  # a batched tensor does not report whether it has a history
                raise double_backward_error("gradients of gradients that stand for many (`is_grads_batched`) are to have a history")
            starts = [gradient.detach().requires_grad_() if gradient.requires_grad else gradient for gradient in given]
            made = _grad(results, ends, starts, create_graph=True)
            further = [(start, gradient) for start, gradient in zip(starts, given, strict=True) if start is not gradient]
            shown = link_results(
                made, [*inner.ends, *[start for start, _ in further]],
                [*inner.histories, *[History(gradient) for _, gradient in further]],
            )  # fmt: skip
        else:
            shown = list(_grad(results, ends, given, create_graph=False))
        for place, gradient in zip(wanted, shown, strict=True):
            convert = inner.histories[place].convert
            found[1 + place] = gradient if convert is None or gradient is None else convert(gradient)
        return tuple(found)


def _grad(results: Any, ends: Any, given: Any, create_graph: bool) -> Sequence[torch.Tensor | None]:
    return torch.autograd.grad(results, ends, given, create_graph=create_graph, retain_graph=True, allow_unused=True)
