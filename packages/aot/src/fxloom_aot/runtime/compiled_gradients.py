"""Gradients of a stage by its compiled backward graph, part by part.

In: what the stage's node saved, the gradients that came. Out: an iterator of lists of gradients, one for each part of the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import batch_level, transforms_active
from fxloom_aot.recording.modes import autocast_on
from fxloom_aot.runtime.batched_gradients import _Rows, for_each_row
from fxloom_aot.runtime.saved_state import StageCall
from fxloom_aot.trace_result import IncomingGradients


def compiled_gradients(ctx: Any, call: StageCall, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> Iterator[list[Any]]:
    """The gradients that the stage gives, part by part."""
    stage = call.stage
    if transforms_active() or batch_level(gradients):
        return iter(split_in_parts(_row_by_row(ctx, call, gradients, chosen), stage.parts))
    layouts = [stage.whole.other_layout(number, gradient) for number, gradient in enumerate(gradients) if gradient is not None]
    autocast = autocast_on()
    backward = stage.whole
    if autocast or len(chosen) < len(stage.outputs) or any(layout is not None for layout in layouts):
        backward = stage.variants.get(IncomingGradients(tuple(zip(chosen, layouts, strict=True)), autocast))
    # no name for the inputs: the compiled graph frees early what nobody else holds
    return backward.in_parts(backward.inputs(call.saved(ctx, chosen), dict(zip(stage.outputs, gradients, strict=True))), stage.parts)


def _row_by_row(ctx: Any, call: StageCall, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> Sequence[Any]:
    """Under vmap (`is_grads_batched`): compiled code can't be given tensors that stand for many, so it runs for each of them."""
    stage = call.stage
    backward = stage.whole
    if len(chosen) < len(stage.outputs) or autocast_on():
        backward = stage.variants.get(IncomingGradients(tuple([(number, None) for number in chosen]), autocast_on()))
    saved = call.saved(ctx, chosen)

    def run(given: Sequence[torch.Tensor | None]) -> Sequence[Any]:
        inputs = backward.inputs(list(saved), dict(zip(stage.outputs, given, strict=True)))
        return [gradient for part in backward.in_parts(inputs, [tuple(range(len(stage.sources)))]) for gradient in part]

    if transforms_active():
        return _Rows.apply(run, *gradients)  # type: ignore[no-any-return]  # a tuple
    return for_each_row(run, gradients, batch_level(gradients))


def split_in_parts(gradients: Sequence[Any], parts: Sequence[Sequence[int]]) -> list[list[Any]]:
    return [[gradients[position] for position in positions] for positions in parts]
