"""The runtime of a graph with backward parts: nodes of autograd, one for each stage of its outputs (`traced`).

In: the compiled forward graph, compiled backward graphs, what the trace says of them. Out: a callable like `inference_wrapper`'s
that autograd can differentiate; gradients that are to be differentiated again are eager's (`again`). A call runs the forward
graph, then gives the outputs their histories: stage by stage, each stage's node taking as its inputs what its outputs are made of.

Lifetimes: saved tensors belong to autograd (`save_for_backward`), which checks that nobody wrote over them, and go when a
backward pass went through the node; what outputs that were not differentiated yet may need stays on the call (`_Kept`). Of what
eager saves and the graph does not, only the counter of writes is held (`_Watch`). Nothing here holds an output of its own node.

A compiled backward graph may give its gradients in parts (`parts`, `in_parts`), as it makes them. Then a stage is a chain of
nodes: one for each part, the first with the outputs, each handing a token to the next. Between two parts autograd accumulates
the gradients of the first, so that they are freed before the next are made.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from fxloom_aot._torch_private import (
    batch_level,
    below_autograd,
    current_pass,
    is_plain_backward,
    pass_keeps_graph,
    rows_of,
    saved_without_check,
    standing_for,
    transforms_active,
)
from fxloom_aot.again import Again, Held, Holder, NotAgain
from fxloom_aot.backward import Variants
from fxloom_aot.hollow import written
from fxloom_aot.modes import autocast_on
from fxloom_aot.outside import History, refusal
from fxloom_aot.runtime import Compiled, StorageCheck, finishers, input_gatherer
from fxloom_aot.traced import Boundary, Given, Keep, Stage
from fxloom_aot.wanted import are_alike
from fxloom_interfaces.signature import FromOutput, GraphSignature, OutputKind


class CompiledStage:
    """A stage, its backward passes, and where what it takes is found at a call. One per compiled graph and stage."""

    def __init__(
        self, stage: Stage, variants: Variants, signature: GraphSignature, boundaries: Sequence[Boundary], again: Again,
        only_plain_backward: bool,
    ) -> None:  # fmt: skip
        whole = variants.whole
        self.again = again
        self.outputs, self.shared, self.variants, self.only_plain_backward = stage.outputs, stage.shared, variants, only_plain_backward
        self.whole, self.parts, self.device = whole, whole.parts, whole.device
        self.everything = (1 << len(stage.outputs)) - 1
        self.sources = [_finder(number, signature, boundaries) for number in whole.gradient_of]
        self.is_number = [bool(spec.symbol) for spec in whole.saved]
        self.saved_from = [(spec.of_input, spec.index) for spec in whole.saved]
        #: by saved tensor: the outputs that need it
        self.needed = [mask for mask, is_number in zip(stage.needed, self.is_number, strict=True) if not is_number]
        # what has a history that is not this node's, or gets one, or another shape, is saved as another tensor on its memory
        changes = {change.index for change in signature.metadata}
        self.apart = [
            not is_number
            and (
                (
                    keep is not Keep.TENSOR
                    or signature.inputs[spec.index].index in changes
                    or signature.inputs[spec.index].index not in whole.gradient_of
                )
                if spec.of_input
                else signature.outputs[spec.index].differentiable and spec.index not in stage.outputs
            )
            for spec, is_number, keep in zip(whole.saved, self.is_number, stage.keeps, strict=True)
        ]
        self.as_it_is = [keep is Keep.AS_IT_IS for keep in stage.keeps]
        covered = self._checked_by_autograd(signature)
        watched = [one for one in stage.watched if one.outputs & ~covered.get(_place(one.at, signature), 0)]
        self.watched = [(_finder_of(one.at, signature), one.outputs, one.at) for one in watched]
        self.saved_as_they_are = self._saved_as_they_are(signature)
        #: positions of gradients of what is not saved with its history
        self.loose = [place for place, number in enumerate(whole.gradient_of) if number not in self.saved_as_they_are]
        places = [place for place, is_number in zip(self._places(signature), self.is_number, strict=True) if not is_number]
        #: the caller's tensors that autograd checks as saved ones, with the number of each of these
        self.checked = [
            (one.at, places.index(_place(one.at, signature))) for one in stage.watched if _place(one.at, signature) in places
        ]

    def _checked_by_autograd(self, signature: GraphSignature) -> dict[tuple[bool, int], int]:
        """By caller's input (True), or flat output: the outputs that need it as a saved tensor."""
        masks = iter(self.needed)
        return {
            place: 0 if as_it_is else next(masks)
            for place, is_number, as_it_is in zip(self._places(signature), self.is_number, self.as_it_is, strict=True)
            if not is_number
        }

    def _saved_as_they_are(self, signature: GraphSignature) -> dict[int, int]:
        """By caller's input that is saved itself, with its history: which of the saved tensors it is."""
        written = {spec.index for spec in signature.outputs if spec.kind is OutputKind.NEW_VALUE}
        kinds = zip(self._places(signature), self.is_number, self.apart, self.as_it_is, strict=True)
        tensors = [(place, apart or as_it_is) for place, is_number, apart, as_it_is in kinds if not is_number]
        return {
            index: number for number, ((of_input, index), other) in enumerate(tensors) if of_input and not other and index not in written
        }

    def _places(self, signature: GraphSignature) -> list[tuple[bool, int]]:
        """By saved value: the caller's input (True) that it is, or the flat output."""
        return [(of_input, signature.inputs[place].index if of_input else place) for of_input, place in self.saved_from]


#: finds a tensor at a call: (the caller's inputs with the histories that they came with, as they are now, the graph's outputs,
#: the program's results)
Finder = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]], Any]


def _finder(number: int, signature: GraphSignature, boundaries: Sequence[Boundary]) -> Finder:
    """Of what a gradient is of: an input of the caller, or a boundary, which are numbered after these."""
    if number < signature.caller_inputs:
        return lambda given, args, outputs, results: given[number]
    return _finder_of(boundaries[number - signature.caller_inputs], signature)


def _finder_of(at: Boundary, signature: GraphSignature) -> Finder:
    of_input, place = _place(at, signature)
    if of_input:
        return lambda given, args, outputs, results: args[place]
    if place >= 0:
        return lambda given, args, outputs, results: outputs[place]
    return lambda given, args, outputs, results: results[at.result]


def _place(at: Boundary, signature: GraphSignature) -> tuple[bool, int]:
    """The caller's input (True), or the flat output, -1 where it is neither."""
    if at.input >= 0:
        return True, at.input
    result = signature.results[at.result]
    return False, result.output if isinstance(result, FromOutput) and not result.steps else -1


class _Watch:
    """Counts the writes to a tensor, without its memory. outputs: those that need it as it was."""

    __slots__ = ("_counter", "_version", "outputs", "shape")

    def __init__(self, tensor: torch.Tensor, outputs: int) -> None:
        self.outputs, self.shape = outputs, tuple(tensor.shape)
        self._counter = tensor.detach()  # shares the counter, and keeps it when it gets other memory
        self._counter.data = tensor.detach().new_empty(0)
        self._version = tensor._version

    def check(self) -> None:
        """RuntimeError, as autograd's, when it was written."""
        if self._counter._version != self._version:
            raise written(self.shape, self._counter._version, self._version)


class _Kept:
    """Saved tensors, beyond the backward pass that freed them, for outputs that may still be differentiated (a bit mask)."""

    __slots__ = ("outputs", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor | None], needed: Sequence[int], outputs: int) -> None:
        self.outputs = outputs
        self.tensors = [
            None if tensor is None or not mask & outputs else tensor.detach() if tensor.requires_grad else tensor
            for tensor, mask in zip(tensors, needed, strict=True)
        ]


_putting = threading.Lock()


class _Call:
    """One call of a stage: what its node keeps for backward passes beside autograd's saved tensors.

    tensors, outputs: what the node is to save, and to return; only until it is made. results: what it returned. held: of the inputs
    (`again`). pending: by pass of the engine and place, gradients of gradients on their way through the node; None where all that it
    has gradients of is a leaf, or saved with its history.
    """

    __slots__ = ("held", "holder", "kept", "numbers", "outputs", "pending", "results", "stage", "tensors", "versions", "watches")

    def __init__(
        self, stage: CompiledStage, values: list[Any], outputs: list[torch.Tensor], inputs: Sequence[torch.Tensor], holder: Holder,
        held: Held,
    ) -> None:  # fmt: skip
        self.stage, self.holder, self.held = stage, holder, held
        self.outputs: list[torch.Tensor] | None = outputs
        self.numbers = [value for value, is_number in zip(values, stage.is_number, strict=True) if is_number]
        self.tensors: list[torch.Tensor] | None = [
            value for value, is_number in zip(values, stage.is_number, strict=True) if not is_number
        ]
        self.versions = [tensor._version for tensor in self.tensors] if len(outputs) > 1 or not stage.shared[0] else None
        self.kept: _Kept | None = None
        self.results: list[weakref.ref[torch.Tensor]] = []
        self.watches: list[_Watch] = []
        self.pending: dict[int, dict[int, torch.Tensor]] | None = None
        for position in stage.loose:
            if inputs[position].grad_fn is not None:
                self.pending = {}
                break

    def put(self, position: int, gradient: torch.Tensor) -> torch.Tensor:
        """Take a gradient along to the node, and give what goes there in its place."""
        assert self.pending is not None
        with _putting:
            mine = self.pending.setdefault(current_pass(), {})
            mine[position] = mine[position] + gradient if position in mine else gradient
        return torch.empty(0, device="cpu")

    def take(self) -> dict[int, torch.Tensor]:
        """What was put there in this pass, by position."""
        return {} if self.pending is None else self.pending.pop(current_pass(), {})

    def saved(self, ctx: Any, chosen: Sequence[int]) -> list[Any]:
        """The saved values for gradients of the outputs `chosen`, in order. RuntimeError, as autograd's, where eager has none."""
        stage = self.stage
        each, numbers = iter(self.saved_tensors(ctx, chosen)), iter(self.numbers)
        return [next(numbers) if is_number else next(each) for is_number in stage.is_number]

    def saved_tensors(self, ctx: Any, chosen: Sequence[int]) -> Sequence[Any]:
        """Those of them that are tensors."""
        stage = self.stage
        asked = sum(1 << number for number in chosen)
        for watch in self.watches:
            if watch.outputs & asked:
                watch.check()
        tensors, possible = self._tensors(ctx, asked)
        tensors = tensors[: len(stage.needed)]
        for number in chosen:
            possible &= ~stage.shared[number]
        self.kept = _Kept(tensors, stage.needed, possible) if possible else None
        return tensors

    def checks(self, tensors: Sequence[Any]) -> dict[Boundary, Callable[[], None]]:
        """What raises when a tensor of the caller's is written from now on that eager's nodes hold. tensors: the saved ones."""
        stage = self.stage
        result: dict[Boundary, Callable[[], None]] = {
            at: partial(_check_version, tensors[number], tensors[number]._version)
            for at, number in stage.checked
            if tensors[number] is not None and not tensors[number].is_inference()
        }
        result.update({at: watch.check for watch, (_, _, at) in zip(self.watches, stage.watched, strict=True)})
        return result

    def _tensors(self, ctx: Any, asked: int) -> tuple[Sequence[torch.Tensor | None], int]:
        """The saved tensors, and the outputs that could be differentiated before this pass."""
        kept = self.kept
        try:
            return ctx.saved_tensors, self.stage.everything
        except RuntimeError:
            if kept is not None and not asked & ~kept.outputs:
                self._check(kept.tensors, asked)
                return kept.tensors, kept.outputs
            # what was written over may be needed for other outputs only
            found = saved_without_check(ctx) if self.versions is not None else None
            if found is None:
                raise
            self._check(found, asked)
            return found, self.stage.everything

    def _check(self, tensors: Sequence[torch.Tensor | None], asked: int) -> None:
        for tensor, version, mask in zip(tensors, self.versions or (), self.stage.needed, strict=False):
            if tensor is not None and mask & asked and tensor._version != version:
                raise written(tuple(tensor.shape), tensor._version, version)


def _check_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise written(tuple(tensor.shape), tensor._version, version)


class CompiledFunction(torch.autograd.Function):
    """The node of a stage. Inputs: the call, a token of the next part, what the (first part of the) gradients are of."""

    @staticmethod
    def forward(ctx: Any, call: _Call, token: torch.Tensor | None, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert call.tensors is not None and call.outputs is not None
        ctx.call = call
        # what gradients of gradients of tensors with a history come by (`_Call.put`): nothing else leads back here
        way = () if call.pending is None else (torch.empty(0, device="cpu"),)
        ctx.save_for_backward(*call.tensors, *way)
        ctx.set_materialize_grads(False)
        outputs = (*call.outputs, *way)
        call.tensors = call.outputs = None
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        call: _Call = ctx.call
        stage = call.stage
        if stage.only_plain_backward and not is_plain_backward():
            raise RuntimeError(
                "a checkpoint with use_reentrant=True is incompatible with torch.autograd.grad() and with backward(inputs=...); "
                "use_reentrant=False is compatible with both"
            )
        count = len(stage.outputs)
        more = call.take() if len(gradients) > count and gradients[count] is not None else {}
        gradients = gradients[:count]
        chosen = [number for number, gradient in enumerate(gradients) if gradient is not None]
        if not chosen and not more:  # the engine came by way of another output of what this was handed to
            return (None,) * (2 + len(stage.parts[0]))
        if more or torch.is_grad_enabled():
            running = _for_more(ctx, call, gradients, chosen, more)
        else:
            running = _running(ctx, call, gradients, chosen)
        made = _taken(running)
        return (None, _token(running, stage.device) if ctx.needs_input_grad[1] else None, *made)


class _History(torch.autograd.Function):
    """A tensor without memory that stands for another, with the history that this has now, whatever it gets later."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # what nothing reaches has no gradient, which is not one of zeros
        return tensor.new_empty(()).expand(tensor.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


class Part(torch.autograd.Function):
    """The node of a later part of the gradients. Inputs: the token of the part after it, then what the part has the gradients of.

    A pass is cut in parts because autograd accumulates a node's gradients when its `backward` returns: all at once they would
    be in memory together. The engine hands a node's results to the nodes before it, so the way on to the next part is one:
    the generator of the parts (`_running`) is made by the stage's node, belongs to this pass, and goes from part to part in
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
            gradients = _taken(token.running)
            return (None, _token(token.running, ctx.device) if ctx.needs_input_grad[1] else None, *gradients)


def _running(ctx: Any, call: _Call, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> Iterator[list[Any]]:
    """The gradients that the stage gives, part by part."""
    stage = call.stage
    if transforms_active() or batch_level(gradients):
        return iter(_split(_row_by_row(ctx, call, gradients, chosen), stage.parts))
    layouts = [stage.whole.other_layout(number, gradient) for number, gradient in enumerate(gradients) if gradient is not None]
    autocast = autocast_on()
    backward = stage.whole
    if autocast or len(chosen) < len(stage.outputs) or any(layout is not None for layout in layouts):
        backward = stage.variants.get(Given(tuple(zip(chosen, layouts, strict=True)), autocast))
    # no name for the inputs: the compiled graph lets go early of what nobody else holds
    return backward.in_parts(backward.inputs(call.saved(ctx, chosen), dict(zip(stage.outputs, gradients, strict=True))), stage.parts)


def _row_by_row(ctx: Any, call: _Call, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> Sequence[Any]:
    """Under vmap (`is_grads_batched`): compiled code can't be given tensors that stand for many, so it runs for each of them."""
    stage = call.stage
    backward = stage.whole
    if len(chosen) < len(stage.outputs) or autocast_on():
        backward = stage.variants.get(Given(tuple([(number, None) for number in chosen]), autocast_on()))
    saved = call.saved(ctx, chosen)

    def run(given: Sequence[torch.Tensor | None]) -> Sequence[Any]:
        inputs = backward.inputs(list(saved), dict(zip(stage.outputs, given, strict=True)))
        return [gradient for part in backward.in_parts(inputs, [tuple(range(len(stage.sources)))]) for gradient in part]

    if transforms_active():
        return _Rows.apply(run, *gradients)  # type: ignore[no-any-return]  # a tuple
    return _each_row(run, gradients, batch_level(gradients))


def _each_row(
    run: Callable[[Sequence[torch.Tensor | None]], Sequence[Any]], gradients: Sequence[torch.Tensor | None], level: int
) -> Sequence[Any]:
    """What `run` makes of gradients that stand for many."""
    rows = [None if gradient is None else rows_of(gradient, level) for gradient in gradients]
    count = max(len(stacked) for stacked in rows if stacked is not None)
    made = [run([None if stacked is None else stacked[row % len(stacked)] for stacked in rows]) for row in range(count)]
    if count == 1:
        return made[0]
    return [None if gradient is None else standing_for(gradient, level) for gradient in _stacked(made)]


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
        raise refusal("a transform of torch.func is at work")

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], run: Callable[..., Any], *tensors: torch.Tensor | None) -> tuple[Any, Any]:
        stacked = _stacked(
            [run([_row(tensor, dim, row) for tensor, dim in zip(tensors, in_dims[1:], strict=True)]) for row in range(info.batch_size)]
        )
        return tuple(stacked), tuple([None if gradient is None else 0 for gradient in stacked])


def _row(tensor: torch.Tensor | None, dim: int | None, row: int) -> torch.Tensor | None:
    return tensor if tensor is None or dim is None else tensor.select(dim, row)


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
    hold = Holder(signature, set.intersection(*[set(stage.saved_as_they_are) for stage in stages]))
    # the history of what one stage writes is another for the next
    written = {spec.index for spec in signature.outputs if spec.kind is OutputKind.NEW_VALUE and spec.differentiable}
    rewritten = sorted(written & {number for stage in stages[1:] for number in stage.whole.gradient_of})

    def run(*args: Any) -> list[Any]:
        inputs = gather(args)
        held = hold(args)
        with torch.no_grad(), below_autograd():  # an output that is a view of something in the graph must not look like one
            outputs = list(forward(list(inputs)))  # the compiled graph may clear the list that it is given
        given: Sequence[Any] = args
        if rewritten:
            given = list(args)
            for number in rewritten:
                given[number] = _History.apply(args[number])
        results: list[Any] = [None] * count if finish is not None else outputs
        if finish is not None:
            finish[0](args, outputs, results)
        calls = []
        for number, stage in enumerate(stages):
            calls.append(_with_histories(stage, given, args, hold, held, inputs, outputs, results))
            if finish is not None:
                finish[1 + number](args, outputs, results)
        for call in calls:  # only now, when all that the program writes is written
            call.watches = [_Watch(find(args, args, outputs, results), needing) for find, needing, _ in call.stage.watched]
        return results if finish is not None else outputs[:count]

    def run_with_grad(*args: Any) -> list[Any]:
        with torch.enable_grad():
            return run(*args)

    return run if starts_with_grad else run_with_grad


def _with_histories(
    stage: CompiledStage, given: Sequence[Any], args: Sequence[Any], holder: Holder, held: Held, inputs: Sequence[Any],
    outputs: list[Any], results: Sequence[Any],
) -> _Call:  # fmt: skip
    """Replace the stage's outputs by what autograd has a history of."""
    sources = [find(given, args, outputs, results) for find in stage.sources]
    values = [inputs[place] if of_input else outputs[place] for of_input, place in stage.saved_from]
    for number, (apart, as_it_is) in enumerate(zip(stage.apart, stage.as_it_is, strict=True)):
        if as_it_is:
            values[number] = values[number].data
        elif apart:
            values[number] = values[number].detach()
    call = _Call(stage, values, [outputs[position] for position in stage.outputs], sources, holder, held)
    token = None
    for part in reversed(stage.parts[1:]):
        token = Part.apply(stage.device, token, *[sources[position] for position in part])
    shown = CompiledFunction.apply(call, token, *[sources[position] for position in stage.parts[0]])
    for position, output in zip(stage.outputs, shown, strict=False):  # and the way back to the node
        outputs[position] = output
        call.results.append(weakref.ref(output))
    return call


def _split(gradients: Sequence[Any], parts: Sequence[Sequence[int]]) -> list[list[Any]]:
    return [[gradients[position] for position in positions] for positions in parts]


def _token(running: Iterator[list[Any]], device: torch.device) -> torch.Tensor:
    """What one part of a backward pass hands to the next in place of a gradient."""
    token = torch.empty(0, device=device)
    token.running = running  # type: ignore[attr-defined]  # it lives as long as this pass
    return token


def _taken(running: Iterator[list[Any]]) -> list[Any]:
    """The next part, which nobody else holds any more."""
    part = next(running)
    gradients = list(part)
    part.clear()
    return gradients


def _for_more(
    ctx: Any, call: _Call, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int], more: dict[int, torch.Tensor]
) -> Iterator[list[Any]]:
    """The gradients part by part where they are to have a history (`create_graph=True`), or `more` came by position."""
    parts = call.stage.parts
    if not chosen:
        running = iter(_split([None] * len(call.stage.sources), parts))
    elif torch.is_grad_enabled():
        running = iter(_split(_differentiable(ctx, call, gradients, chosen), parts))
    else:
        running = _running(ctx, call, gradients, chosen)
    return _with_more(running, more, parts) if more else running


def _with_more(
    running: Iterator[list[Any]], more: dict[int, torch.Tensor], parts: Sequence[Sequence[int]]
) -> Iterator[list[Any]]:
    """The parts with further gradients, by position, added."""
    for positions, part in zip(parts, running, strict=True):
        for place, position in enumerate(positions):
            further = more.pop(position, None)
            if further is not None:
                part[place] = further if part[place] is None else part[place] + further
        yield part


def _differentiable(ctx: Any, call: _Call, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> Sequence[Any]:
    """The gradients that the stage gives, with a history."""
    stage = call.stage
    histories = _histories(ctx, call)
    level = batch_level(gradients)
    try:
        if transforms_active():
            raise NotAgain("a transform of torch.func is at work")
        tensors = call.saved_tensors(ctx, chosen)
        results = [_as_given(reference(), ctx) for reference in call.results]

        def run(given: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
            checks = call.checks(tensors)
            return stage.again.gradients(call.holder, call.held, tensors, checks, histories, results, given, pass_keeps_graph())

        found = _each_row(run, gradients, level) if level else run(gradients)
        if stage.again.is_unproven and not level:
            if not all(map(are_alike, found, _as_compiled(ctx, call, gradients, chosen))):
                raise NotAgain("eager's nodes give other gradients than the graph")
            stage.again.is_unproven = False
        return found
    except NotAgain as reason:  # to use them is fine
        if level:
            raise refusal(str(reason)) from reason
        made = _as_compiled(ctx, call, gradients, chosen)
        depends = [history.tensor for history in histories.values()] + [g for g in gradients if g is not None and g.requires_grad]
        return _NotTwice.apply(str(reason), len(depends), *depends, *made)  # type: ignore[no-any-return]  # a tuple


def _as_compiled(ctx: Any, call: _Call, gradients: Sequence[torch.Tensor | None], chosen: Sequence[int]) -> list[Any]:
    """The gradients that the compiled graph gives, without a history."""
    parts = call.stage.parts
    with torch.no_grad():
        made = [gradient for part in _running(ctx, call, gradients, chosen) for gradient in part]
    return [gradient for _, gradient in sorted(zip([n for part in parts for n in part], made, strict=True), key=itemgetter(0))]


def _as_given(result: torch.Tensor | None, ctx: Any) -> torch.Tensor | None:
    """What the caller has of an output, where it still has the history that the node gave it."""
    return result if result is not None and result.grad_fn is ctx else None


def _histories(ctx: Any, call: _Call) -> dict[int, History]:
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
                    raise refusal("what it saved was freed, or written since") from error
    return histories


class _NotTwice(torch.autograd.Function):
    """Gradients that can't be differentiated, as results of all that they depend on: to use them is fine."""

    @staticmethod
    def forward(ctx: Any, reason: str, count: int, *tensors: Any) -> tuple[Any, ...]:
        ctx.reason = reason
        return tuple([g.view_as(g) if isinstance(g, torch.Tensor) else g for g in tensors[count:]])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise refusal(ctx.reason)
