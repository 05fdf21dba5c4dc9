"""The nodes of autograd that a compiled stage puts into the caller's graph.

In: what a call of the stage keeps (`StageCall`) and the tensors that its outputs are computed from; in backward, the gradients of the
outputs that have one. Out: the outputs with their history; in backward, the gradients in the order of the stage's inputs.
Invariant: saved tensors belong to autograd, which checks that nobody wrote to them and frees them after a pass; gradients that
nobody asks for stay None.

A stage is one node, or a chain of them where its compiled backward graph gives gradients in parts, as it makes them: one node for
each part, the first with the outputs, each handing a token to the next. Between two parts autograd accumulates the gradients of
the first, so that they are freed before the next are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import is_plain_backward
from fxloom_aot.runtime.compiled_gradients import compiled_gradients, split_in_parts
from fxloom_aot.runtime.create_graph import gradients_with_history
from fxloom_aot.runtime.saved_state import StageCall


class CompiledFunction(torch.autograd.Function):
    """The node of a stage. Inputs: the call, a token of the next part, what the (first part of the) gradients are of."""

    @staticmethod
    def forward(ctx: Any, call: StageCall, token: torch.Tensor | None, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert call.tensors is not None and call.outputs is not None
        ctx.call = call
        # gradients of gradients reach this node by this output (`StageCall.put`): no other edge leads back here
        way = () if call.pending is None else (torch.empty(0, device="cpu"),)
        ctx.save_for_backward(*call.tensors, *way)
        ctx.set_materialize_grads(False)
        outputs = (*call.outputs, *way)
        call.tensors = call.outputs = None
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        call: StageCall = ctx.call
        stage = call.stage
        if stage.only_plain_backward and not is_plain_backward():
            raise RuntimeError(
                "a checkpoint with use_reentrant=True is incompatible with torch.autograd.grad() and with backward(inputs=...); "
                "use_reentrant=False is compatible with both"
            )
        count = len(stage.outputs)
        pending = call.take() if len(gradients) > count and gradients[count] is not None else {}
        gradients = gradients[:count]
        chosen = [number for number, gradient in enumerate(gradients) if gradient is not None]
        if not chosen and not pending:  # the engine runs this node for another output of its consumer
            return (None,) * (2 + len(stage.parts[0]))
        if pending or torch.is_grad_enabled():
            running = _with_pending(ctx, call, gradients, chosen, pending)
        else:
            running = compiled_gradients(ctx, call, gradients, chosen)
        made = _next_part(running)
        return (None, _token(running, stage.device) if ctx.needs_input_grad[1] else None, *made)


class Part(torch.autograd.Function):
    """The node of a later part of the gradients. Inputs: the token of the part after it, then what the part has the gradients of.

    A pass is cut in parts because autograd accumulates a node's gradients when its `backward` returns: all at once they would
    be in memory together. The engine hands a node's results to the nodes before it, so the way on to the next part is one:
    the generator of the parts (`compiled_gradients`) is made by the stage's node, belongs to this pass, and goes from part to part in
    place of a gradient (`_token`), which is why each part's node has the next one's token as its first input.
    """

    @staticmethod
    def forward(ctx: Any, device: torch.device, token: torch.Tensor | None, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.device = device
        ctx.count = len(inputs)
        ctx.is_part = True
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, token: Any) -> tuple[Any, ...]:
        if token is None:
            return (None,) * (2 + ctx.count)
        with torch.no_grad():
            gradients = _next_part(token.running)
            return (None, _token(token.running, ctx.device) if ctx.needs_input_grad[1] else None, *gradients)


def _token(running: Iterator[list[Any]], device: torch.device) -> torch.Tensor:
    """What one part of a backward pass hands to the next in place of a gradient."""
    token = torch.empty(0, device=device)
    token.running = running  # type: ignore[attr-defined]  # it lives as long as this pass
    return token


def _next_part(running: Iterator[list[Any]]) -> list[Any]:
    """The next part, which nobody else holds any more."""
    part = next(running)
    gradients = list(part)
    part.clear()
    return gradients


def _with_pending(
    ctx: Any, call: StageCall, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int], pending: dict[int, torch.Tensor]
) -> Iterator[list[Any]]:
    """The gradients, part by part: with a history where that is asked for (`create_graph=True`), and `pending` ones added."""
    parts = call.stage.parts
    if not chosen:
        running = iter(split_in_parts([None] * len(call.stage.sources), parts))
    elif torch.is_grad_enabled():
        running = iter(split_in_parts(gradients_with_history(ctx, call, gradients, chosen), parts))
    else:
        running = compiled_gradients(ctx, call, gradients, chosen)
    return _add_pending(running, pending, parts) if pending else running


def _add_pending(
    running: Iterator[list[Any]], pending: dict[int, torch.Tensor], parts: Sequence[Sequence[int]]
) -> Iterator[list[Any]]:
    """The parts with further gradients, by position, added."""
    for positions, part in zip(parts, running, strict=True):
        for place, position in enumerate(positions):
            further = pending.pop(position, None)
            if further is not None:
                part[place] = further if part[place] is None else part[place] + further
        yield part
