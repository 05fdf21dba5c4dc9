"""The runtime of a graph with backward parts: nodes of autograd, one for each stage of its outputs (`trace_result`).

In: the compiled forward graph, compiled backward graphs, what the trace says of them. Out: a callable like `inference_wrapper`'s
that autograd can differentiate; gradients that are to be differentiated again are eager's (`double_backward`). A call runs the forward
graph, then gives the outputs their histories: stage by stage, each stage's node taking as its inputs what its outputs are computed from.

Lifetimes: saved tensors belong to autograd (`save_for_backward`), which checks that nobody wrote over them, and go when a
backward pass went through the node; what outputs that were not differentiated yet may need stays on the call (`RetainedTensors`). Of what
eager saves and the graph does not, only the counter of writes is held (`WriteCounter`). Nothing here holds an output of its own node.

A compiled backward graph may give its gradients in parts (`parts`, `in_parts`), as it makes them. Then a stage is a chain of
nodes: one for each part, the first with the outputs, each handing a token to the next. Between two parts autograd accumulates
the gradients of the first, so that they are freed before the next are made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import below_autograd
from fxloom_aot.double_backward.held_inputs import HeldInputs, InputHolder
from fxloom_aot.runtime.autograd_nodes import CompiledFunction, Part
from fxloom_aot.runtime.inference import Compiled
from fxloom_aot.runtime.inputs import input_gatherer
from fxloom_aot.runtime.saved_state import StageCall, WriteCounter
from fxloom_aot.runtime.stage import CompiledStage
from fxloom_aot.runtime.write_back import finishers
from fxloom_aot.storages import StorageCheck
from fxloom_interfaces.signature import GraphSignature, OutputKind


class _History(torch.autograd.Function):
    """A tensor without memory that stands for another, with the history that this has now, whatever it gets later."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # what nothing reaches has no gradient, which is not one of zeros
        return tensor.new_empty(()).expand(tensor.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


def training_wrapper(
    forward: Compiled,
    stages: Sequence[CompiledStage],
    signature: GraphSignature,
    checks: Sequence[StorageCheck] = (),
    *,
    starts_with_grad: bool = True,
) -> Callable[..., list[Any]]:
    """See the module's docstring. starts_with_grad: False for a graph that is entered with grad mode off and turns it on itself."""
    gather = input_gatherer(signature, checks)
    stage_of = {position: number for number, stage in enumerate(stages) for position in stage.outputs}
    finish = finishers(signature, stage_of)
    count = len(signature.results)
    hold = InputHolder(signature, set.intersection(*[set(stage.saved_as_they_are) for stage in stages]))
    # the history of what one stage writes is another for the next
    written = {spec.index for spec in signature.outputs if spec.kind is OutputKind.NEW_VALUE and spec.differentiable}
    inner = sum(len(stage.inner_outputs.positions) for stage in stages)
    rewritten = sorted(written & {number for stage in stages[1:] for number in stage.whole.gradient_of})

    def run(*args: Any) -> list[Any]:
        inputs = gather(args)
        held = hold(args)
        with torch.no_grad(), below_autograd():  # an output that is a view of a tensor inside of the graph must not be one for autograd
            outputs = list(forward(list(inputs)))  # the compiled graph may clear the list that it is given
        outputs += [None] * inner
        given: Sequence[Any] = args
        if rewritten:
            given = list(args)
            for number in rewritten:
                given[number] = _History.apply(args[number])
        results: list[Any] = [None] * count if finish is not None else outputs
        if finish is not None:
            finish[0](args, outputs, results)
        calls = []
        this = object()
        for number, stage in enumerate(stages):
            calls.append(_with_histories(stage, given, args, hold, held, inputs, outputs, results, this))
            if finish is not None:
                finish[1 + number](args, outputs, results)
        for call in calls:  # only now, when all that the program writes is written
            call.watches = [WriteCounter(find(args, args, outputs, results), needing) for find, needing, _ in call.stage.watched]
        return results if finish is not None else outputs[:count]

    def run_with_grad(*args: Any) -> list[Any]:
        with torch.enable_grad():
            return run(*args)

    return run if starts_with_grad else run_with_grad


def _with_histories(
    stage: CompiledStage, given: Sequence[Any], args: Sequence[Any], holder: InputHolder, held: HeldInputs, inputs: Sequence[Any],
    outputs: list[Any], results: Sequence[Any], this: object,
) -> StageCall:  # fmt: skip
    """Replace the stage's outputs by what autograd has a history of. this: stands for this run of the graph."""
    sources = [find(given, args, outputs, results) for find in stage.sources]
    values = [inputs[place] if of_input else outputs[place] for of_input, place in stage.saved_from]
    for number, (apart, unchecked) in enumerate(zip(stage.apart, stage.unchecked, strict=True)):
        if unchecked:
            values[number] = values[number].data
        elif apart:
            values[number] = values[number].detach()
    with torch.no_grad(), below_autograd():
        stage.inner_outputs.put(outputs, values)
    call = StageCall(stage, values, [outputs[position] for position in stage.outputs], sources, holder, held, this)
    token = None
    for part in reversed(stage.parts[1:]):
        token = Part.apply(stage.device, token, *[sources[position] for position in part])
    shown = CompiledFunction.apply(call, token, *[sources[position] for position in stage.parts[0]])
    for position, output in zip(stage.outputs, shown, strict=False):  # and the way back to the node
        outputs[position] = output
        call.results.append(weakref.ref(output))
    return call
