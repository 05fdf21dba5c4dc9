"""Gradients that are to be differentiated (`create_graph=True`): eager's autograd nodes, on the values of the compiled call.

In: the program (`hollow.Program`), what a call kept for its backward pass, the gradients that came. Out: the gradients, with
eager's own history, so that derivatives of any order, their `None`s and their errors are eager's.

The program runs once more on hollow tensors (`hollow`), which computes nothing and draws nothing; then autograd differentiates it,
starting from the real gradients. What its nodes saved is asked for one by one: taken from what the call kept, else computed from that
(`wanted`), else from the caller's inputs, where they are alive, were not written since, and give what the call kept. So nothing
is kept for second derivatives that the first does not need. Where a value can't be had, `NotAgain` says why.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxloom_aot.functionalize import Functionalizer, ProgramInput
from fxloom_aot.hollow import Program, Recording, Saved, concrete, last_writes, new_recorder, record
from fxloom_aot.late import late
from fxloom_aot.log import Call, FunctionalLog, has_effect, key_of_values, values_of
from fxloom_aot.outputs import ForwardOutputs, classify_outputs
from fxloom_aot.outside import History, outside, refusal
from fxloom_aot.partition import inputs_of
from fxloom_aot.runtime import whole_storage
from fxloom_aot.traced import Boundary, Stage
from fxloom_aot.wanted import NotAtHand, Values
from fxloom_interfaces.errors import FxloomError
from fxloom_interfaces.signature import FromConstant, GraphSignature, InputKind, OutputKind
from fxloom_shapes import FakeTensor, symbolic_kernels
from fxloom_shapes.symbols.numbers import SYMBOLIC, symbol_names

#: of one stage, for different sizes
_MOST_PLANS = 32


class NotAgain(Exception):
    """The gradients can't be made so that they can be differentiated; says why."""


#: what a call holds of its inputs: tensors or weak references, counts of writes, numbers
Held = tuple[Sequence[Any], Sequence[int], Sequence[Any]]


_NOTHING: Held = ((), (), ())


class Holder:
    """Makes what each call holds of its inputs. One per compiled graph.

    saved: the caller's inputs that every stage saves as they are.
    """

    def __init__(self, signature: GraphSignature, saved: Collection[int]) -> None:
        numbers = {spec.index for spec in signature.inputs if spec.kind is InputKind.NUMBER}
        # parameters and buffers live on anyway; a weak reference to one would keep `torch.utils.swap_tensors` from exchanging it
        static = {spec.index for spec in signature.inputs if spec.static_address or spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
        others = {spec.index for spec in signature.inputs if spec.index >= 0} - numbers - set(saved)
        first, user, self._numbers = sorted(others & static), sorted(others - static), sorted(numbers)
        self._tensors = [*first, *user]
        self._place = {number: place for place, number in enumerate(self._tensors)}
        self._weak = range(len(first), len(self._tensors))

    def __call__(self, args: Sequence[Any]) -> Held:
        """What a call holds: tensors, or weak references to them, with their counts of writes; numbers."""
        if not self._place and not self._numbers:
            return _NOTHING
        tensors = [args[number] for number in self._tensors]
        try:
            writes: Sequence[int] = [tensor._version for tensor in tensors]
        except RuntimeError:  # those of inference mode don't count
            writes = [_writes_to(tensor) for tensor in tensors]
        held: list[Any] = tensors
        for place in self._weak:
            held[place] = weakref.ref(tensors[place])
        return held, writes, [args[number] for number in self._numbers] if self._numbers else ()

    def numbers(self, held: Held) -> dict[int, Any]:
        """By input: the number that it was."""
        return dict(zip(self._numbers, held[2], strict=True))

    def tensor(self, held: Held, number: int) -> torch.Tensor | None:
        """Input `number` as it is; None where it is gone, or not held."""
        place = self._place.get(number)
        if place is None:
            return None
        tensor = held[0][place]
        return tensor() if isinstance(tensor, weakref.ref) else tensor  # type: ignore[no-any-return]  # a tensor or None

    def unwritten(self, held: Held, number: int) -> torch.Tensor:
        """Input `number` as it was. NotAtHand where it is gone, or was written."""
        tensor = self.tensor(held, number)
        if tensor is None:
            raise NotAtHand(f"input {number} is gone")
        if held[1][self._place[number]] != _writes_to(tensor):
            raise NotAtHand(f"input {number} was written since")
        return tensor


def _writes_to(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node saved. value: in the log of the plan; None where it is not known. at: the caller's tensor that it is part of.

    input: the caller's that it is; -1 for none.
    """

    value: FakeTensor | None
    stride: tuple[int, ...]
    at: Boundary | None
    input: int


#: by number of a boundary: the node after which it is cut, and the node that made it, or the input that it is
Cuts = dict[int, tuple[torch.fx.Node, torch.fx.Node | int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to do it for some sizes. known: by saved value of the stage, the value in `log`; None where there is none.

    programs: by output of the stage, where it is in a recording. is_saved: some node saved it.
    """

    descs: list[Any]
    log: FunctionalLog
    inputs: list[tuple[int, bool]]
    wanted: list[Wanted]
    known: list[FakeTensor | None]
    programs: list[Callable[[Recording], FakeTensor]]
    is_saved: list[bool]
    cuts: Cuts


class Again:
    """For one stage. boundaries: of the program. One per compiled graph and stage."""

    def __init__(self, program: Program, stage: Stage, signature: GraphSignature, boundaries: Sequence[Boundary]) -> None:
        self._program, self._stage, self._signature = program, stage, signature
        self._gradient_of = [spec.index for spec in stage.graph.signature.outputs]
        count = signature.caller_inputs
        self._boundaries = {number: boundaries[number - count] for number in self._gradient_of if number >= count}
        self._symbols = {spec.symbol: spec.index for spec in signature.inputs if spec.kind is InputKind.NUMBER}
        saved = [spec for spec in stage.graph.signature.inputs if spec.kind is InputKind.SAVED and not spec.symbol]
        outputs = signature.outputs
        #: by saved value: nobody but the compiled graph could have written to it
        self._private = [not spec.of_input and outputs[spec.index].kind is OutputKind.SAVED for spec in saved]
        self._written = {spec.input for spec in outputs if spec.kind is OutputKind.NEW_VALUE}
        #: gradients end within the program: whether they do where the compiled graph has them end is looked at once
        self.is_unproven = bool(self._boundaries)
        self._plans: dict[tuple[Any, ...], Plan | str] = {}
        self._lock = threading.Lock()

    def gradients(
        self, holder: Holder, held: Held, saved: Sequence[torch.Tensor], checks: Mapping[Boundary, Callable[[], None]],
        histories: Mapping[int, History], results: Sequence[torch.Tensor | None], gradients: Sequence[torch.Tensor | None],
        keep_graph: bool,
    ) -> list[torch.Tensor | None]:  # fmt: skip
        """The gradients, in the order of the stage's. NotAgain where these can't be made so.

        held: what the call holds of its inputs. saved: the saved tensors. checks: raise where the caller wrote to a tensor of theirs.
        histories: of what the gradients are of, by position. results, gradients: what the caller has of the outputs of the stage, and
        what came for it. keep_graph: whether the nodes stay, as the running pass has it.
        """
        numbers = holder.numbers(held)
        plan = self._plan_for(numbers)
        recording = record(self._program, plan.descs, self._numbers(numbers), _at(plan.cuts), new_recorder())
        if len(recording.saved) != len(plan.wanted):
            raise NotAgain("it saved other tensors than before")
        for node, original in recording.originals.items():
            if original._version != recording.versions[node]:
                raise NotAgain(f"it writes to {node}, which it returns")
        targets = self._targets(recording, plan)
        programs = [found(recording) for found in plan.programs]
        first = [True]  # in this pass a refusal is one of having a history, not of the gradients
        recording.fill(self._values(plan, holder, held, saved, checks, first))
        recording.close()
        starts = [None if g is None else g.detach().requires_grad_() if g.requires_grad else g for g in gradients]
        pairs = [(y, g) for y, g in zip(programs, starts, strict=True) if g is not None and y.requires_grad]
        if not pairs:
            return [None] * len(targets)
        with torch.enable_grad():
            found = torch.autograd.grad(
                [y for y, _ in pairs], targets, [g for _, g in pairs], create_graph=True, retain_graph=keep_graph, allow_unused=True
            )
        first[0] = False
        if any(type(one) is FakeTensor for one in found):
            raise NotAgain("it keeps tensors where autograd does not see them")
        ends: list[Any] = [targets[place] for place in histories]
        outer = list(histories.values())
        for start, gradient in zip(starts, gradients, strict=True):
            if start is not None and start is not gradient:
                assert gradient is not None
                ends.append(start)
                outer.append(History(gradient))
        for program, result, is_saved in zip(programs, results, plan.is_saved, strict=True):
            if result is not None and is_saved:  # gradients of gradients come to the caller's tensor, and go on from there
                ends.append(_ending(program))
                outer.append(History(result))
        with torch.enable_grad():
            return outside(found, ends, outer)

    def _targets(self, recording: Recording, plan: Plan) -> list[Any]:
        count = self._signature.caller_inputs
        return [recording.edges[n] if n < count else recording.cut_edges[plan.cuts[n][0]] for n in self._gradient_of]

    def _values(
        self, plan: Plan, holder: Holder, held: Held, saved: Sequence[torch.Tensor],
        checks: Mapping[Boundary, Callable[[], None]], first: list[bool],
    ) -> Callable[[int], torch.Tensor]:  # fmt: skip
        pairs = [(value, tensor) for value, tensor in zip(plan.known, saved, strict=True) if value is not None]
        private = [value for value, own in zip(plan.known, self._private, strict=True) if value is not None and own]

        def input_of(placeholder: int) -> torch.Tensor:
            number, flat = plan.inputs[placeholder]
            if placeholder in self._written:
                raise NotAtHand(f"the program itself writes to input {number}")
            tensor = holder.unwritten(held, number)
            return whole_storage(tensor) if flat else tensor.detach()

        values = Values(plan.log, {id(value): tensor.detach() for value, tensor in pairs}, private, input_of)
        lock = threading.RLock()

        def value_of(number: int) -> torch.Tensor:
            wanted = plan.wanted[number]
            check = checks.get(wanted.at) if wanted.at is not None else None
            if check is not None:
                check()
                if wanted.input >= 0 and wanted.at == Boundary(input=wanted.input):  # eager saves the very tensor
                    own = holder.tensor(held, wanted.input)
                    if own is not None:
                        return own.detach()
            try:
                if wanted.value is None:
                    raise NotAtHand("it is not known in the graph")
                with lock:
                    value = values.get(wanted.value)
            except NotAtHand as missing:
                reason = f"a value that this needs is missing, as {missing}; with options={{'double_backward': True}} a call keeps it"
                raise (NotAgain(reason) if first[0] else refusal(reason)) from None
            if value.stride() != wanted.stride and value.numel():
                with torch.no_grad():
                    value = torch.empty_strided(value.shape, wanted.stride, dtype=value.dtype, device=value.device).copy_(value)
            return value

        return value_of

    def _numbers(self, numbers: Mapping[int, Any]) -> list[Any]:
        """By input: the number that it is at this call."""
        result: list[Any] = []
        for number, given in enumerate(self._program.given):
            known = numbers.get(number)
            if known is None and given.desc is None and type(given.number) in SYMBOLIC:
                places = {name: place for place, name in enumerate(self._symbols)}
                known = late(given.number, places)([numbers[at] for at in self._symbols.values()])
            result.append(given.number if known is None else known)
        return result

    # --- once for some sizes ---

    def _plan_for(self, numbers: Mapping[int, Any]) -> Plan:
        key = tuple(numbers.values())
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                try:
                    plan = self._planned(numbers)
                except NotAgain as reason:
                    plan = str(reason)
                except FxloomError as error:
                    plan = f"it can't be recorded again: {error}"
                self._plans[key] = plan
        if isinstance(plan, str):
            raise NotAgain(plan)
        return plan

    def _planned(self, numbers: Mapping[int, Any]) -> Plan:
        program = self._program
        symbols = {name: numbers[at] for name, at in self._symbols.items()}
        cuts = self._cuts(symbols, self._numbers(numbers))
        again = _recorded(program, symbols, self._numbers(numbers), _at(cuts))
        recording, outputs = again.recording, again.outputs
        matched = _corresponding(program, again.state.log, again.found.values, symbols, self._stage.kept)
        known = [matched.get(id(value)) for value in self._stage.kept]
        at = self._places(recording, outputs, again.found.results)
        fakes = [saved.fake for saved in recording.saved if saved.fake is not None]
        wanted = [
            Wanted(value, fake.stride(), at.get(fake.storage_token.ident), _input(recording, again.descs, fake))
            for value, fake in zip(again.saved, fakes, strict=True)
        ]
        programs = [_locator(again.found.programs[position], recording, outputs) for position in self._stage.outputs]
        places = [(place.input, place.flat) for place in again.state.placeholders]
        memories = {fake.storage_token.ident for fake in fakes}
        is_saved = [program(recording).storage_token.ident in memories for program in programs]
        recording.close()
        return Plan(again.descs, again.state.log, places, wanted, known, programs, is_saved, cuts)

    def _cuts(self, symbols: Mapping[str, Any], numbers: Sequence[Any]) -> Cuts:
        nodes = _result_nodes(self._program)
        cuts: Cuts = {}
        if not self._boundaries:
            return cuts
        results = [node for node in nodes if isinstance(node, torch.fx.Node)]
        writers = last_writes(self._program, concrete(self._program, symbols), numbers, results)
        for number, boundary in self._boundaries.items():
            if boundary.result < 0:
                if boundary.input not in writers:
                    raise NotAgain("it writes to an input that later results are made of")
                cuts[number] = (writers[boundary.input], boundary.input)
            elif boundary.result >= len(nodes) or nodes[boundary.result] not in results:
                raise NotAgain("results are made of results")
            else:
                made = nodes[boundary.result]
                cuts[number] = (writers.get(made, made), made)
        if len(_at(cuts)) < len(cuts):
            raise NotAgain("results are made of what is written as it is made")
        return cuts

    def _places(self, recording: Recording, outputs: Sequence[Any], results: Sequence[Any]) -> dict[int, Boundary]:
        """By memory: the tensor of the caller's that is on it."""
        at: dict[int, Boundary] = {}
        for number, fake in enumerate(recording.fakes):
            if fake is not None:
                at.setdefault(fake.storage_token.ident, Boundary(input=number))
        for number, (output, what) in enumerate(zip(outputs, results, strict=True)):
            if type(output) is FakeTensor and not isinstance(what, FromConstant):
                at.setdefault(output.storage_token.ident, Boundary(result=number))
        return at


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The program on hollow tensors, and its functional log. outputs: before something was cut. saved: by saved tensor, its value."""

    recording: Recording
    descs: list[Any]
    state: Functionalizer
    outputs: list[Any]
    saved: list[FakeTensor | None]
    found: ForwardOutputs


def _recorded(
    program: Program, symbols: Mapping[str, Any], numbers: Sequence[Any], cuts: Mapping[torch.fx.Node, torch.fx.Node | int]
) -> _Recorded:
    recorder = new_recorder()
    descs = concrete(program, symbols)
    recording = record(program, descs, numbers, cuts, recorder)
    inputs = [
        ProgramInput(None, None, None, 0) if fake is None else ProgramInput(fake, desc, fake.storage_token)
        for fake, desc in zip(recording.fakes, descs, strict=True)
    ]
    outputs = [recording.uncut(value) for value in recording.outputs]
    with torch.no_grad(), symbolic_kernels(False):
        state = Functionalizer(recorder.fake_mode, program.decompositions, inputs, recorder.constants, recorder.made)
        state.start(list(recorder.log))
        saved = _values_saved(state, recorder.log, recording.saved)
        _forget_cuts(state, recording, outputs)
        changed = {
            id(fake)
            for number, fake in enumerate(recording.fakes)
            if fake is not None and number in recording.edges and fake.grad_fn is not recording.edges[number].node
        }
        return _Recorded(recording, descs, state, outputs, saved, classify_outputs(state, outputs, changed))


def _forget_cuts(state: Functionalizer, recording: Recording, outputs: Sequence[Any]) -> None:
    """Have outputs that are views of what was cut be made as the program makes them: of what was there before."""
    for cut, original in reversed(recording.cut):
        made, before = state.view_of(cut).made, state.view_of(original).made
        for output in outputs:
            if type(output) is FakeTensor and output is not original:
                view = state.view_of(output)
                if view.made[: len(made)] == made:
                    view.made = (*before, *view.made[len(made) :])


def _at(cuts: Cuts) -> dict[torch.fx.Node, torch.fx.Node | int]:
    return dict(cuts.values())


def _result_nodes(program: Program) -> list[Any]:
    output = next(iter(reversed(program.gm.graph.nodes))).args[0]
    return list(output) if isinstance(output, (tuple, list)) else [output]


def _values_saved(state: Functionalizer, entries: Sequence[Any], saved: Sequence[Saved]) -> list[FakeTensor | None]:
    """What each saved tensor held when it was saved."""
    values: list[FakeTensor | None] = []
    done = 0
    for one in saved:
        state.run(list(entries[done : one.position]), backward=False)
        done = max(done, one.position)
        values.append(None if one.fake is None else _read(state, one.fake))
    state.run(list(entries[done:]), backward=False)
    return values


def saved_in_eager(program: Program, symbols: Mapping[str, Any], numbers: Sequence[Any]) -> list[FakeTensor]:
    """The values of the program's log from which all that eager's nodes save can be had; nothing where that can't be told.

    symbols, numbers: of a call, by name, and by input.
    """
    try:
        again = _recorded(program, symbols, numbers, {})
        matched = _corresponding(program, again.state.log, again.found.values, symbols, ())
    except (NotAgain, FxloomError):
        return []
    again.recording.close()
    log, old = again.state.log, program.log
    values = [*old.placeholders, *[value for call in old.calls for value in values_of([call.out])]]
    back = {id(matched[id(value)]): value for value in reversed(values) if id(value) in matched}
    found: dict[int, FakeTensor] = {}
    seen: set[int] = set()
    todo = [value for value in again.saved if value is not None]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        original = back.get(id(value))
        if original is not None:
            found[id(original)] = original
        elif log.origins[id(value)].call >= 0:  # a view, for example
            todo += inputs_of(log, log.origins[id(value)].call)
    return [value for value in values if id(value) in found]


def _corresponding(
    program: Program, new: FunctionalLog, results: Sequence[Any], symbols: Mapping[str, Any], kept: Sequence[FakeTensor]
) -> dict[int, FakeTensor]:
    """What values of the program's log are in another log of it, by identity; with `kept`, whatever made these.

    NotAgain when that is not of the same program.
    """
    old = program.log
    places = {name: place for place, name in enumerate(symbols)}
    matched: dict[int, FakeTensor] = {id(a): b for a, b in zip(old.placeholders, new.placeholders, strict=False)}
    for value, real in old.constants:
        other = next((one for one, made in new.constants if made is real), None)
        if other is None:  # the program makes it, of numbers
            other = next((one for one, made in new.constants if _same(made, real)), None)
        if other is not None:
            matched[id(value)] = other

    def key_of(nest: Any) -> Any:
        kind = type(nest)
        if kind is FakeTensor:
            found = matched.get(id(nest))
            return _Unmatched if found is None else id(found)
        if kind is tuple or kind is list:
            return tuple([key_of(item) for item in nest])
        if kind in SYMBOLIC:
            if not set(symbol_names([nest])) <= set(places):
                return _Unmatched
            number = late(nest, places)(list(symbols.values()))
            return key_of_values(number)
        return key_of_values(nest)

    calls: dict[Any, list[int]] = {}
    for number, call in enumerate(new.calls):
        named = tuple((name, key_of_values(value)) for name, value in sorted(call.kwargs.items()))
        calls.setdefault((call.op, key_of_values(call.args), named), []).append(number)
    needed = set(old.calls_for(list(kept)))
    for number, call in enumerate(old.calls):
        if call.backward and number not in needed:
            continue
        named = tuple((name, key_of(value)) for name, value in sorted(call.kwargs.items()))
        same = calls.get((call.op, key_of(call.args), named))
        if same:
            made = new.calls[same[0] if len(same) == 1 else same.pop(0)].out
        elif call.backward and not has_effect(call.op):  # of a derivative, and kept rather than what it is made of
            made = _emitted(new, call, matched, symbols, places)
        else:
            continue
        a = call.out if isinstance(call.out, (tuple, list)) else [call.out]
        b = made if isinstance(made, (tuple, list)) else [made]
        matched.update({id(x): y for x, y in zip(a, b, strict=False) if type(x) is FakeTensor})
    if len(results) != len(program.values):
        raise NotAgain("it gives something else when it is recorded again")
    for mine, theirs in zip(program.values, results, strict=True):
        if type(mine) is FakeTensor and matched.get(id(mine)) is not theirs:
            raise NotAgain("it does something else when it is recorded again")
    return matched


def _emitted(
    new: FunctionalLog, call: Call, matched: Mapping[int, FakeTensor], symbols: Mapping[str, Any], places: Mapping[str, int]
) -> Any:
    """What a call of the other log gives in this one, where it is made there, too; None where what it takes is not there."""

    def filled(nest: Any) -> Any:
        kind = type(nest)
        if kind is FakeTensor:
            return matched[id(nest)]
        if kind is tuple or kind is list:
            return kind([filled(item) for item in nest])
        if kind in SYMBOLIC:
            return late(nest, places)(list(symbols.values()))
        return nest

    try:
        with torch.no_grad():
            return new.emit(call.op, filled(call.args), {name: filled(value) for name, value in call.kwargs.items()})
    except (KeyError, FxloomError):
        return None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


def _without(place: int, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([None if number == place else gradient for number, gradient in enumerate(gradients)])


def _ending(fake: FakeTensor) -> GradientEdge:
    """Where gradients come to `fake`, and from now on end."""
    edge = get_gradient_edge(fake)
    edge.node.register_prehook(partial(_without, edge.output_nr))  # which must not hold the node
    return edge


class _Unmatched:
    """Equal to nothing in the other log."""


def _input(recording: Recording, descs: Sequence[Any], fake: FakeTensor) -> int:
    """The input that `fake` is, or was when it was saved; -1 for none."""
    for number, (given, desc) in enumerate(zip(recording.fakes, descs, strict=True)):
        if given is not None and given.storage_token is fake.storage_token and fake.desc == desc:
            return number
    return -1


def _read(state: Functionalizer, fake: FakeTensor) -> FakeTensor | None:
    try:
        value = state.read(fake)
    except FxloomError:
        return None
    return value if type(value) is FakeTensor else None


def _locator(program: Any, recording: Recording, outputs: Sequence[Any]) -> Callable[[Recording], Any]:
    """Where the tensor is found in another recording; `program` is one of `recording`, `outputs` are its outputs uncut."""
    for number, output in enumerate(outputs):
        if output is program:
            return partial(_output, number)
        if type(output) is FakeTensor and output._base is program:
            return partial(_base, number)
    for number, fake in enumerate(recording.fakes):
        if fake is program:
            return partial(_input_of, number)
    raise NotAgain("it returns views of a tensor that is not found again")


def _output(number: int, recording: Recording) -> Any:
    return recording.uncut(recording.outputs[number])


def _base(number: int, recording: Recording) -> Any:
    return _output(number, recording)._base


def _input_of(number: int, recording: Recording) -> Any:
    return recording.fakes[number]
