"""Gradients that are to be differentiated (`create_graph=True`): eager's autograd nodes, on the values of the compiled call.

In: the program, what a call kept for its backward pass, the gradients that came. Out: the gradients, with
eager's own history, so that derivatives of any order, their `None`s and their errors are eager's.

The program runs once more on fakes (`eager_nodes`), which computes nothing and draws nothing; then autograd differentiates it,
starting from the real gradients. What its nodes saved is supplied one by one: taken from what the call kept, else computed from that
(`recompute`), else from the caller's inputs, where they are alive, were not written since, and give what the call kept. So nothing
is kept for second derivatives that the first does not need. Where a value can't be had, `NotDifferentiable` says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxloom_aot.double_backward.eager_nodes import Recording, concrete_inputs, last_writes, new_recorder, record_eager_nodes
from fxloom_aot.double_backward.graph_link import History, double_backward_error, link_results
from fxloom_aot.double_backward.held_inputs import HeldInputs, InputHolder
from fxloom_aot.double_backward.log_matching import match_logs
from fxloom_aot.double_backward.recompute import RecomputedValues, ValueUnavailable
from fxloom_aot.double_backward.retrace import REFUSALS, NotDifferentiable, retrace
from fxloom_aot.double_backward.values_inside import edges_of
from fxloom_aot.functional.functional_log import FunctionalLog
from fxloom_aot.runtime_numbers import runtime_value
from fxloom_aot.storages import whole_storage
from fxloom_aot.trace_result import Boundary, Program, Stage, ValueInside
from fxloom_interfaces.signature import FromConstant, GraphSignature, InputKind, OutputKind
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

#: of one stage, for different sizes
_MOST_PLANS = 32


@dataclass(frozen=True, slots=True)
class SavedValue:
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
    """What is worked out once for some sizes. known: by kept value, the value in `log`; None where there is none.

    programs: by output of the stage, where it is in a recording. is_saved: some node saved it.
    """

    descs: list[Any]
    log: FunctionalLog
    inputs: list[tuple[int, bool]]
    saved: list[SavedValue]
    known: list[FakeTensor | None]
    programs: list[Callable[[Recording], FakeTensor]]
    is_saved: list[bool]
    cuts: Cuts


class DifferentiableGradients:
    """The gradients of one stage. boundaries: of the program. One per compiled graph and stage.

    earlier: the stages before it. What these keep helps, too: eager's nodes save more than the first derivative needs.
    """

    def __init__(
        self, program: Program, stage: Stage, signature: GraphSignature, boundaries: Sequence[Boundary], earlier: Sequence[Stage]
    ) -> None:
        self._program, self._stage, self._signature = program, stage, signature
        self._gradient_of = [spec.index for spec in stage.graph.signature.outputs]
        count = signature.caller_inputs
        ends = {number: boundaries[number - count] for number in self._gradient_of if number >= count}
        self._boundaries = {number: boundary for number, boundary in ends.items() if boundary.inner is None}
        self._inner = {number: boundary.inner for number, boundary in ends.items() if boundary.inner is not None}
        self._symbols = {spec.symbol: spec.index for spec in signature.inputs if spec.kind is InputKind.NUMBER}
        stages = (stage, *earlier)
        self._kept = [value for one in stages for value in one.kept]
        saved = [spec for one in stages for spec in one.graph.signature.inputs if spec.kind is InputKind.SAVED and not spec.symbol]
        outputs = signature.outputs
        #: by kept value: nobody but the compiled graph could have written to it
        self._private = [not spec.of_input and outputs[spec.index].kind is OutputKind.SAVED for spec in saved]
        self._written = {spec.input for spec in outputs if spec.kind is OutputKind.NEW_VALUE}
        #: gradients end within the program: the first ones are compared with those of the compiled graph
        self.is_unproven = bool(ends or stage.inner)
        self._plans: dict[tuple[Any, ...], Plan | str] = {}
        self._lock = threading.Lock()

    def gradients(
        self, holder: InputHolder, held: HeldInputs, kept: Sequence[torch.Tensor | None], checks: Mapping[Boundary, Callable[[], None]],
        histories: Mapping[int, History], results: Sequence[torch.Tensor | None], gradients: Sequence[torch.Tensor | None],
        keep_graph: bool,
    ) -> list[torch.Tensor | None]:  # fmt: skip
        """The gradients, in the order of the stage's. NotDifferentiable where these can't be made so.

        held: what the call holds of its inputs. kept: the tensors that its stages kept, in the order of the values; None for what is
        gone. checks: raise where the caller wrote to a tensor that eager saves.
        histories: of what the gradients are of, by position. results, gradients: what the caller has of the outputs of the stage, and
        what came for it. keep_graph: whether the nodes stay, as the running pass has it.
        """
        numbers = holder.numbers(held)
        plan = self._plan_for(numbers)
        recorder = new_recorder()
        recording = record_eager_nodes(self._program, plan.descs, self._numbers(numbers), _at(plan.cuts), recorder)
        if len(recording.saved) != len(plan.saved):
            raise NotDifferentiable("it saved other tensors than before")
        for node, original in recording.originals.items():
            if original._version != recording.versions[node]:
                raise NotDifferentiable(f"it writes to {node}, which it returns")
        programs: list[Any] = [found(recording) for found in plan.programs]
        inside = edges_of([*self._inner.values(), *self._stage.inner], programs, recorder)
        targets = self._targets(recording, plan, inside)
        programs += [inside[value] for value in self._stage.inner]
        first = [True]  # in this pass a missing value costs the history only, not the gradients
        recording.fill(self._values(plan, holder, held, kept, checks, first))
        recording.close()
        starts = [None if g is None else g.detach().requires_grad_() if g.requires_grad else g for g in gradients]
        pairs = [
            (y, g) for y, g in zip(programs, starts, strict=True) if g is not None and (type(y) is GradientEdge or y.requires_grad)
        ]
        if not pairs:
            return [None] * len(targets)
        with torch.enable_grad():
            found = torch.autograd.grad(
                [y for y, _ in pairs], targets, [g for _, g in pairs], create_graph=True, retain_graph=keep_graph, allow_unused=True
            )
        first[0] = False
        if any(type(one) is FakeTensor for one in found):
            raise NotDifferentiable("it keeps tensors where autograd does not see them")
        ends: list[Any] = [targets[place] for place in histories]
        outer = list(histories.values())
        for start, gradient in zip(starts, gradients, strict=True):
            if start is not None and start is not gradient:
                assert gradient is not None
                ends.append(start)
                outer.append(History(gradient))
        for program, result, is_saved in zip(programs, results, plan.is_saved, strict=True):
            if result is not None and is_saved:  # gradients of gradients come to the caller's tensor, and go on from there
                ends.append(_ending(get_gradient_edge(program)))
                outer.append(History(result))
        with torch.enable_grad():
            return link_results(found, ends, outer)

    def _targets(self, recording: Recording, plan: Plan, inside: Mapping[ValueInside, GradientEdge]) -> list[Any]:
        targets = []
        for number in self._gradient_of:
            if number < self._signature.caller_inputs:
                targets.append(recording.edges[number])
            elif number in self._inner:
                targets.append(_ending(inside[self._inner[number]]))
            else:
                targets.append(recording.cut_edges[plan.cuts[number][0]])
        return targets

    def _values(
        self, plan: Plan, holder: InputHolder, held: HeldInputs, kept: Sequence[torch.Tensor | None],
        checks: Mapping[Boundary, Callable[[], None]], first: list[bool],
    ) -> Callable[[int], torch.Tensor]:  # fmt: skip
        found = [
            (value, tensor, own)
            for value, tensor, own in zip(plan.known, kept, self._private, strict=True)
            if value is not None and tensor is not None
        ]
        private = [value for value, _, own in found if own]

        def input_of(placeholder: int) -> torch.Tensor:
            number, flat = plan.inputs[placeholder]
            if placeholder in self._written:
                raise ValueUnavailable(f"the program itself writes to input {number}")
            tensor = holder.unwritten(held, number)
            return whole_storage(tensor) if flat else tensor.detach()

        values = RecomputedValues(plan.log, {id(value): tensor.detach() for value, tensor, _ in found}, private, input_of)
        lock = threading.RLock()

        def value_of(number: int) -> torch.Tensor:
            saved = plan.saved[number]
            check = checks.get(saved.at) if saved.at is not None else None
            if check is not None:
                check()
                if saved.input >= 0 and saved.at == Boundary(input=saved.input):  # eager saves the very tensor
                    own = holder.tensor(held, saved.input)
                    if own is not None:
                        return own.detach()
            try:
                if saved.value is None:
                    raise ValueUnavailable("it is not known in the graph")
                with lock:
                    value = values.get(saved.value)
            except ValueUnavailable as missing:
                reason = f"a value that this needs is missing, as {missing}; with options={{'double_backward': True}} a call keeps it"
                raise (NotDifferentiable(reason) if first[0] else double_backward_error(reason)) from None
            if value.stride() != saved.stride and value.numel():
                with torch.no_grad():
                    value = torch.empty_strided(value.shape, saved.stride, dtype=value.dtype, device=value.device).copy_(value)
            return value

        return value_of

    def _numbers(self, numbers: Mapping[int, Any]) -> list[Any]:
        """By input: the number that it is at this call."""
        result: list[Any] = []
        for number, given in enumerate(self._program.inputs):
            known = numbers.get(number)
            if known is None and given.desc is None and type(given.number) in SYMBOLIC:
                places = {name: place for place, name in enumerate(self._symbols)}
                known = runtime_value(given.number, places)([numbers[at] for at in self._symbols.values()])
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
                except NotDifferentiable as reason:
                    plan = str(reason)
                except REFUSALS as error:
                    plan = f"it can't be recorded again: {error}"
                self._plans[key] = plan
        if isinstance(plan, str):
            raise NotDifferentiable(plan)
        return plan

    def _planned(self, numbers: Mapping[int, Any]) -> Plan:
        program = self._program
        symbols = {name: numbers[at] for name, at in self._symbols.items()}
        cuts = self._cuts(symbols, self._numbers(numbers))
        retraced = retrace(program, symbols, self._numbers(numbers), _at(cuts))
        recording, outputs = retraced.recording, retraced.outputs
        matched = match_logs(program, retraced.state.log, retraced.found.values, symbols, self._kept)
        known = [matched.get(id(value)) for value in self._kept]
        at = self._places(recording, outputs, retraced.found.results)
        fakes = [saved.fake for saved in recording.saved if saved.fake is not None]
        saved = [
            SavedValue(value, fake.stride(), at.get(fake.storage_token.ident), _input(recording, retraced.descs, fake))
            for value, fake in zip(retraced.saved, fakes, strict=True)
        ]
        shown = self._stage.outputs[: len(self._stage.outputs) - len(self._stage.inner)]
        programs = [_locator(retraced.found.programs[position], recording, outputs) for position in shown]
        places = [(place.input, place.flat) for place in retraced.state.placeholders]
        memories = {fake.storage_token.ident for fake in fakes}
        # nobody holds what stands for an inner boundary
        is_saved = [program(recording).storage_token.ident in memories for program in programs] + [False] * len(self._stage.inner)
        recording.close()
        return Plan(retraced.descs, retraced.state.log, places, saved, known, programs, is_saved, cuts)

    def _cuts(self, symbols: Mapping[str, Any], numbers: Sequence[Any]) -> Cuts:
        nodes = _result_nodes(self._program)
        cuts: Cuts = {}
        if not self._boundaries:
            return cuts
        results = [node for node in nodes if isinstance(node, torch.fx.Node)]
        writers = last_writes(self._program, concrete_inputs(self._program, symbols), numbers, results)
        for number, boundary in self._boundaries.items():
            if boundary.result < 0:
                if boundary.input not in writers:
                    raise NotDifferentiable("it writes to an input that later results are computed from")
                cuts[number] = (writers[boundary.input], boundary.input)
            elif boundary.result >= len(nodes) or nodes[boundary.result] not in results:
                raise NotDifferentiable("results are computed from results")
            else:
                made = nodes[boundary.result]
                cuts[number] = (writers.get(made, made), made)
        if len(_at(cuts)) < len(cuts):
            raise NotDifferentiable("results are computed from what is written meanwhile")
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


def _at(cuts: Cuts) -> dict[torch.fx.Node, torch.fx.Node | int]:
    return dict(cuts.values())


def _result_nodes(program: Program) -> list[Any]:
    output = next(iter(reversed(program.gm.graph.nodes))).args[0]
    return list(output) if isinstance(output, (tuple, list)) else [output]


def _without(place: int, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([None if number == place else gradient for number, gradient in enumerate(gradients)])


def _ending(edge: GradientEdge) -> GradientEdge:
    """The edge, at which gradients end from now on."""
    edge.node.register_prehook(partial(_without, edge.output_nr))  # a bound function would hold the node
    return edge


def _input(recording: Recording, descs: Sequence[Any], fake: FakeTensor) -> int:
    """The input that `fake` is, or was when it was saved; -1 for none."""
    for number, (given, desc) in enumerate(zip(recording.fakes, descs, strict=True)):
        if given is not None and given.storage_token is fake.storage_token and fake.desc == desc:
            return number
    return -1


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
    raise NotDifferentiable("it returns views of a tensor that is not found again")


def _output(number: int, recording: Recording) -> Any:
    return recording.uncut(recording.outputs[number])


def _base(number: int, recording: Recording) -> Any:
    return _output(number, recording)._base


def _input_of(number: int, recording: Recording) -> Any:
    return recording.fakes[number]
