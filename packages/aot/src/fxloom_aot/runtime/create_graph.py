"""Gradients with a history of their own (`create_graph=True`): eager's, else gradients that refuse to be differentiated.

In: what the stage's node saved, the gradients that came. Out: the gradients in the stage's order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from fxloom_aot._torch_private import batch_level, pass_keeps_graph, transforms_active
from fxloom_aot.double_backward.graph_link import History, double_backward_error
from fxloom_aot.double_backward.recompute import are_alike
from fxloom_aot.double_backward.retrace import NotDifferentiable
from fxloom_aot.runtime.batched_gradients import for_each_row
from fxloom_aot.runtime.compiled_gradients import compiled_gradients
from fxloom_aot.runtime.saved_state import StageCall
from fxloom_aot.runtime.stage import CompiledStage


def gradients_with_history(ctx: Any, call: StageCall, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> Sequence[Any]:
    """The gradients that the stage gives, with a history."""
    stage = call.stage
    histories = _histories(ctx, call)
    level = batch_level(gradients)
    try:
        if transforms_active():
            raise NotDifferentiable("a transform of torch.func is at work")
        tensors = call.saved_tensors(ctx, chosen)
        kept = [*tensors, *_kept_by_earlier(ctx, call)]
        results = [_as_given(reference(), ctx) for reference in call.results]

        def run(given: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
            checks = call.checks(tensors)
            return stage.differentiable.gradients(call.holder, call.held, kept, checks, histories, results, given, pass_keeps_graph())

        found = for_each_row(run, gradients, level) if level else run(gradients)
        if stage.differentiable.is_unproven and not level:
            if not all(map(are_alike, found, _compiled_without_history(ctx, call, gradients, chosen))):
                raise NotDifferentiable("eager's nodes give other gradients than the graph")
            stage.differentiable.is_unproven = False
        return found
    except NotDifferentiable as reason:  # the gradients may still be used
        if level:
            raise double_backward_error(str(reason)) from reason
        made = _compiled_without_history(ctx, call, gradients, chosen)
        depends = [history.tensor for history in histories.values()] + [g for g in gradients if g is not None and g.requires_grad]
        return _OnceDifferentiable.apply(str(reason), len(depends), *depends, *made)  # type: ignore[no-any-return]  # a tuple


def _kept_by_earlier(ctx: Any, call: StageCall) -> list[torch.Tensor | None]:
    """What the nodes of earlier stages saved at the same call of the graph, in the order of the stages; None for what is gone."""
    found: dict[CompiledStage, Sequence[torch.Tensor]] = {}
    seen = {ctx}
    todo = [ctx]
    while todo:
        for node, _ in todo.pop().next_functions:
            other = getattr(node, "call", None)
            if node in seen or not (getattr(node, "is_part", False) or (isinstance(other, StageCall) and other.run is call.run)):
                continue
            seen.add(node)
            todo.append(node)
            if other is not None:
                with contextlib.suppress(RuntimeError):  # freed by an earlier pass, or written since
                    found[other.stage] = node.saved_tensors
    result: list[torch.Tensor | None] = []
    for stage in call.stage.earlier:
        result += found[stage][: len(stage.needed)] if stage in found else [None] * len(stage.needed)
    return result


def _compiled_without_history(ctx: Any, call: StageCall, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> list[Any]:
    """The gradients that the compiled graph gives, without a history."""
    parts = call.stage.parts
    with torch.no_grad():
        made = [gradient for part in compiled_gradients(ctx, call, gradients, chosen) for gradient in part]
    return [gradient for _, gradient in sorted(zip([n for part in parts for n in part], made, strict=True), key=itemgetter(0))]


def _as_given(result: torch.Tensor | None, ctx: Any) -> torch.Tensor | None:
    """What the caller has of an output, where it still has the history that the node gave it."""
    return result if result is not None and result.grad_fn is ctx else None


def _histories(ctx: Any, call: StageCall) -> dict[int, History]:
    """By position, what the gradients are of, for the history that it had at the call."""
    node, parts = ctx, call.stage.parts
    histories: dict[int, History] = {}
    for number, positions in enumerate(parts):
        edges = node.next_functions
        if number + 1 < len(parts):
            (node, _), *edges = edges
        for position, (below, _) in zip(positions, edges, strict=True):
            if hasattr(below, "variable"):
                histories[position] = History(below.variable)
            elif below is not None:
                saved = call.stage.saved_as_they_are.get(call.stage.whole.gradient_of[position])
                try:
                    tensors = ctx.saved_tensors
                    histories[position] = History(tensors[-1], partial(call.put, position)) if saved is None else History(tensors[saved])
                except RuntimeError as error:
                    raise double_backward_error("what it saved was freed, or written since") from error
    return histories


class _OnceDifferentiable(torch.autograd.Function):
    """Gradients that may be used, and raise when they are differentiated; inputs are all that they depend on."""

    @staticmethod
    def forward(ctx: Any, reason: str, count: int, *tensors: Any) -> tuple[Any, ...]:
        ctx.reason = reason
        return tuple([g.view_as(g) if isinstance(g, torch.Tensor) else g for g in tensors[count:]])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise double_backward_error(ctx.reason)
