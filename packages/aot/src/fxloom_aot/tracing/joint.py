"""Make the graphs of a program that is differentiated: a joint log, split into a forward graph and a backward graph for each stage.

In: the program's log after its forward part was functionalized, what its outputs are. Out: a `Traced` with stages. The steps:
find boundaries and stages (`stages`); run the engine once for each stage (`backward_engine`); let the partitioner say what is kept;
make copies of kept values that the caller may write to; make the graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fxloom_aot.functional.functional_log import inputs_of
from fxloom_aot.functional.functionalize import Functionalizer, RejectedInBackward
from fxloom_aot.functional.outputs import ForwardOutputs
from fxloom_aot.functional.views import UnsupportedView
from fxloom_aot.nests import values_of
from fxloom_aot.partitioning.partition import Joint, Partition, Partitioner, backward_from, check_partition, made_for_checkpoints
from fxloom_aot.recording.autograd_graph import Edge
from fxloom_aot.recording.recorder import Recorder
from fxloom_aot.runtime_numbers import SymbolMissing
from fxloom_aot.storages import StorageCheck
from fxloom_aot.trace_result import (
    Boundary,
    IncomingGradients,
    NoBackwardGraph,
    SavedAs,
    Stage,
    Traced,
    TracedGraph,
    ValueInside,
    WatchedTensor,
)
from fxloom_aot.tracing.backward_engine import BackwardEngine, Rejecting
from fxloom_aot.tracing.graph_maker import GraphMaker
from fxloom_aot.tracing.stages import (
    FoundBoundary,
    Owners,
    Source,
    StagePlan,
    find_boundaries,
    order_in_stages,
    plan_stage,
)
from fxloom_aot.tracing.writes_before_backward import checked_in_eager, exposed_memories, read_by_checkpoints
from fxloom_interfaces.errors import GraphBreak, GraphRejected, InternalError
from fxloom_interfaces.signature import FromConstant, InputKind, InputSpec
from fxloom_interfaces.telemetry import ArtifactWritten, emit, phase, wants_artifacts
from fxloom_shapes import Descriptor, FakeTensor, describe
from fxloom_shapes.symbols.numbers import symbol_number

aten = torch.ops.aten


class Differentiation:
    """See the module's docstring. One per trace."""

    def __init__(
        self, recorder: Recorder, state: Functionalizer, maker: GraphMaker, partitioner: Partitioner, rejecting: Rejecting
    ) -> None:
        self.recorder, self.state, self.maker, self.partitioner = recorder, state, maker, partitioner
        self.rejecting = rejecting
        self.engine = BackwardEngine(recorder, state, maker.nodes[0], maker.symbolic, rejecting)
        self.log, self.mode = state.log, state.fake_mode
        self.count = len(state.inputs)
        #: by identity, the values that are kept for further derivatives only
        self.further: dict[int, FakeTensor] = {}
        #: memories of the log that the caller may write to, unseen by eager's backward pass
        self.copied: frozenset[int] = frozenset()
        #: the inner boundaries, numbered
        self.inner: dict[Edge, int] = {}

    def trace(
        self, found: ForwardOutputs, outputs: Sequence[Any], changed: Sequence[FakeTensor],
        checks: Callable[[], tuple[StorageCheck, ...]], further: Sequence[FakeTensor] = (),
    ) -> Traced:  # fmt: skip
        """outputs: of the program. changed: inputs that autograd saw written. further: values to keep for further derivatives."""
        leaves = self._leaves()
        boundaries = find_boundaries(self.state, found, outputs, changed)
        plans = self._plans(found, leaves, boundaries)
        ends = {edge for plan in plans for edge, mask in plan.reached.stops.items() if mask}
        boundaries = [one for one in boundaries if one.edge in ends]
        self.inner = {edge: number for number, edge in enumerate([edge for plan in plans for edge in plan.inner])}
        numbers = {edge: number for number, edge in enumerate([*[one.edge for one in boundaries], *self.inner], self.count)}
        for plan in plans:
            plan.sources = [source if source.edge is None else replace(source, number=numbers[source.edge]) for source in plan.sources]
        exposed = exposed_memories(self.state, found)
        in_eager = {ident for plan in plans for ident in plan.saved_in_eager}
        self.copied = frozenset(memory for memory, ident in exposed.items() if ident not in in_eager)
        with phase("aot.partition"):
            gradients = [gradient for plan in plans for gradient in plan.gradients]
            tangents = [tangent for plan in plans for tangent in plan.tangents]
            joint = self._joint(found, gradients, tangents, [number for plan in plans for number in plan.effects])
            part = self.partitioner(joint)
            check_partition(joint, part, self.partitioner)
            part = self._keeping(joint, part, further)
            if part.report and wants_artifacts():
                emit(ArtifactWritten("partition.txt", part.report + "\n"))
        with phase("aot.build_fx"), self.rejecting():
            forward, stages = self._graphs(found, plans, part, outputs, exposed)
        reentrant = any(one.reentrant for one in self.recorder.checkpoints)
        inner = [Boundary(inner=self._value_inside(edge)) for edge in self.inner]
        return Traced(
            forward, checks(), tuple(stages), (*[one.boundary for one in boundaries], *inner), reentrant, report=part.report
        )

    def _plans(self, found: ForwardOutputs, leaves: Sequence[Source], boundaries: Sequence[FoundBoundary]) -> list[StagePlan]:
        """The stages with their gradients, from the last one on: what a stage gives to an earlier one says what this has to expect."""
        stages = order_in_stages(found, boundaries)
        owners = Owners(self.recorder, found, stages, boundaries)
        last = self.engine.last_node()
        outer = {one.edge: one.hooked for one in boundaries}
        hooks = self.engine.registers_hooks()
        given: dict[Edge, Descriptor] = {}
        plans: list[StagePlan] = []
        for number in reversed(range(len(stages))):
            inner = [edge for edge in owners.inner[number] if edge in given]
            reached = owners.reached_by(number, inner)
            plan = plan_stage(self.recorder, self.log, found, stages[number], reached, leaves, inner, given, last)
            for source in plan.sources:
                source.hooked = outer.get(source.edge, hooks) if source.edge is not None else False
            plan.gradients, plan.effects = self.engine.gradients(plan.programs, plan.tangents, plan.sources)
            ending: list[tuple[Source, FakeTensor | None]] = []
            for source, gradient in zip(plan.sources, plan.gradients, strict=True):
                if source.edge is not None and gradient is not None:
                    given.setdefault(source.edge, gradient.desc)
                if source.edge is None or source.edge in outer or source.edge in given:  # else the derivative gives none
                    ending.append((source, gradient))
            ending = ending or [(source, None) for source in leaves]
            plan.sources, plan.gradients = [source for source, _ in ending], [gradient for _, gradient in ending]
            plans.insert(0, plan)
        return plans

    def _value_inside(self, edge: Edge) -> ValueInside:
        node, number = edge
        return ValueInside(self.inner[edge], *self.recorder.place_of(node), number)

    def _leaves(self) -> list[Source]:
        """The caller's inputs that gradients may go to."""
        sources: list[Source] = []
        seen: set[int] = set()
        for number, given in enumerate(self.state.inputs):
            if given.fake is not None and self.mode.grad_leaf(given.fake).requires_grad and id(given.fake) not in seen:
                seen.add(id(given.fake))
                sources.append(Source(number, leaf=self.mode.grad_leaf(given.fake)))
        if not sources or any(fake.requires_grad for fake, _ in self.recorder.constants.values()):
            with self.rejecting():
                raise UnsupportedView("a tensor that requires grad was lifted into the graph as a constant, or made in it")
        return sources

    def _joint(
        self, found: ForwardOutputs, gradients: Sequence[Any], tangents: Sequence[FakeTensor], effects: Sequence[int]
    ) -> Joint:
        return Joint(self.log, found.values, gradients, tangents, self.maker.static_placeholders(), self.copied, tuple(effects))

    def _keeping(self, joint: Joint, part: Partition, further: Sequence[FakeTensor]) -> Partition:
        """`part`, keeping `further` values too, but for those that live on anyway and those of checkpointed functions."""
        kept = {id(value) for value in part.saved}
        recomputed = made_for_checkpoints(joint)
        self.further = {
            id(value): value for value in further if id(value) not in kept and id(value) not in recomputed and not joint.lives_on(value)
        }
        forward = sorted({*part.forward, *self.log.calls_for(list(self.further.values()))})
        return replace(part, forward=tuple(forward), saved=(*part.saved, *self.further.values())) if self.further else part

    def _joint_of(self, found: ForwardOutputs, plan: StagePlan) -> Joint:
        """What of the joint log belongs to one stage."""
        return self._joint(found, plan.gradients, plan.tangents, plan.effects)

    def _calls(self, found: ForwardOutputs, plans: Sequence[StagePlan], plan: StagePlan, part: Partition) -> tuple[int, ...]:
        """The calls of a stage's backward pass."""
        if len(plans) == 1:
            return part.backward
        calls = backward_from(self._joint_of(found, plan), part.saved)
        if calls is None:
            raise InternalError("aot joint", f"the values kept do not suffice for the gradients of outputs {plan.outputs}")
        return calls

    def _graphs(
        self, found: ForwardOutputs, plans: Sequence[StagePlan], part: Partition, outputs: Sequence[Any], exposed: Mapping[int, int | None]
    ) -> tuple[TracedGraph, list[Stage]]:
        log = self.log
        calls = [self._calls(found, plans, plan, part) for plan in plans]
        joints = [self._joint_of(found, plan) for plan in plans]
        reread = read_by_checkpoints(log, calls, [value for joint in joints for value in values_of(list(joint.gradients))])
        used = [_used(joint, numbers) for joint, numbers in zip(joints, calls, strict=True)]
        checked = [
            checked_in_eager(exposed, plan.saved_in_eager, part.saved, [
                outputs if id(value) in taken else 0
                for value, outputs in zip(part.saved, _needed(joint, numbers, part.saved), strict=True)
            ])
            for plan, joint, numbers, taken in zip(plans, joints, calls, used, strict=True)
        ]  # fmt: skip
        saved, copies = self._protect_saved(found, part.saved, exposed, reread, set.intersection(*checked))
        known = {id(value) for value in found.values}
        extra = [value for value in saved if log.origins[id(value)].placeholder < 0 and id(value) not in known]
        symbols = [
            self.maker.symbols_used(numbers, [*part.saved, *plan.tangents], plan.gradients)
            for plan, numbers in zip(plans, calls, strict=True)
        ]
        unbacked = {name: symbol_number(self.mode.env, name) for names in symbols for name in names if name in log.symbol_calls}
        forward_calls = sorted({*part.forward, *copies, *log.calls_for(list(unbacked.values()))})
        forward = self.maker.forward(found, forward_calls, [*extra, *unbacked.values()])
        flat = {id(value): place for place, value in reversed(list(enumerate([*found.values, *extra])))}
        kept: list[tuple[InputSpec, FakeTensor]] = []
        for number, (value, original) in enumerate(zip(saved, part.saved, strict=True)):
            place = log.origins[id(value)].placeholder
            index = place if place >= 0 else flat[id(value)]
            kept.append((InputSpec(InputKind.SAVED, f"saved_{number}", index, of_input=place >= 0), original))
        unbacked_specs = {
            name: (InputSpec(InputKind.SAVED, f"saved_{name}", position, symbol=name), number)
            for position, (name, number) in enumerate(unbacked.items(), len(found.values) + len(extra))
        }
        stages = []
        for plan, numbers, names, taken in zip(plans, calls, symbols, used, strict=True):
            own = [(spec, value) for spec, value in kept if len(plans) == 1 or id(value) in taken or id(value) in self.further]
            sizes = [*self.maker.numbers_used(names), *[unbacked_specs[name] for name in names if name in unbacked_specs]]
            # flat positions go on behind the graph's outputs
            inner = [len(forward.signature.outputs) + self.inner[edge] for edge in plan.inner]
            stages.append(self._stage(found, plan, numbers, own, reread, sizes, outputs, inner))
        return forward, stages

    def _stage(
        self, found: ForwardOutputs, plan: StagePlan, calls: Sequence[int], kept: Sequence[tuple[InputSpec, Any]], reread: Container[int],
        sizes: Sequence[tuple[InputSpec, Any]], outputs: Sequence[Any], inner: Sequence[int],
    ) -> Stage:  # fmt: skip
        """kept: the saved values that it uses, `reread` those that a checkpointed function reads anew; sizes: the numbers.

        inner: flat positions of its inner boundaries.
        """
        positions = (*plan.outputs, *inner)
        specs = [InputSpec(InputKind.TANGENT, f"tangent_{number}", position) for number, position in enumerate(positions)]
        incoming = list(zip(specs, plan.tangents, strict=True))
        gradient_of = [source.number for source in plan.sources]
        graph = self.maker.backward([*kept, *incoming, *sizes], calls, plan.gradients, gradient_of)
        values = [value for _, value in kept]

        def backward_of(given: IncomingGradients) -> tuple[TracedGraph, list[Descriptor]]:
            chosen = given.gradients
            descs = [plan.tangent_descs[n] if stride is None else _restrided(plan.tangent_descs[n], stride) for n, stride in chosen]
            try:
                came = [
                    plan.tangents[n] if stride is None else self.log.placeholder(desc)
                    for (n, stride), desc in zip(chosen, descs, strict=True)
                ]
                gradients, effects = self.engine.gradients([plan.programs[n] for n, _ in chosen], came, plan.sources, given.autocast)
                some = backward_from(self._joint(found, gradients, came, effects), values)
                if some is None:
                    raise NoBackwardGraph(f"the values kept do not suffice for {given}")
                placed = [*kept, *[(specs[n], value) for (n, _), value in zip(chosen, came, strict=True)], *sizes]
                return self.maker.backward(placed, some, gradients, gradient_of), descs
            except (GraphBreak, GraphRejected, RejectedInBackward, SymbolMissing) as error:  # it needs to know of sizes what no guard says
                raise NoBackwardGraph(str(error)) from error

        at_leaves = plan.reached.leaves([source.leaf for source in plan.sources])
        reached = [
            mask if source.edge is None else plan.reached.stops[source.edge]
            for source, mask in zip(plan.sources, at_leaves, strict=True)
        ]
        needed = _needed(self._joint_of(found, plan), calls, values)
        numbers = sum(1 for spec, _ in sizes if spec.kind is InputKind.SAVED)
        return Stage(
            positions, graph, tuple(plan.tangent_descs), tuple(plan.reached.shared(len(positions))), tuple(reached),
            (*needed, *[-1] * numbers), (*[self._keep(plan, value, reread) for value in values], *[SavedAs.MEMORY] * numbers),
            tuple(self._watched(plan, found, outputs)), tuple(values), backward_of, tuple(self._value_inside(edge) for edge in plan.inner),
        )  # fmt: skip

    def _keep(self, plan: StagePlan, value: FakeTensor, reread: Container[int]) -> SavedAs:
        place = self.log.origins[id(value)].placeholder
        if id(value) in reread:
            return SavedAs.UNCHECKED_MEMORY
        fake = self.state.inputs[self.state.placeholders[place].input].fake if place >= 0 else None
        return SavedAs.TENSOR if id(fake) in plan.tensors_in_eager else SavedAs.MEMORY

    def _watched(self, plan: StagePlan, found: ForwardOutputs, outputs: Sequence[Any]) -> Iterator[WatchedTensor]:
        """The caller's tensors that eager's nodes of this stage save."""
        at: dict[int, Boundary] = {}
        for number, given in enumerate(self.state.inputs):
            if given.fake is not None:
                at.setdefault(given.fake.storage_token.ident, Boundary(input=number))
        for number, (output, what) in enumerate(zip(outputs, found.results, strict=True)):
            if type(output) is FakeTensor and not isinstance(what, FromConstant):
                at.setdefault(output.storage_token.ident, Boundary(result=number))
        return (WatchedTensor(at[ident], mask) for ident, mask in plan.saved_in_eager.items() if ident in at)

    def _protect_saved(
        self, found: ForwardOutputs, values: Sequence[FakeTensor], exposed: Mapping[int, int | None], reread: Container[int],
        checked: Container[int],
    ) -> tuple[list[FakeTensor], list[int]]:  # fmt: skip
        """`values` with copies of those that the caller may write to without autograd noticing; also the calls that copy."""
        log = self.log
        held = {id(value) for value in [*log.placeholders, *found.values]}
        result, calls = [], []
        for value in values:
            memory = value.storage_token.ident
            # autograd sees writes to the caller's very tensor, not to what a graph makes of it
            as_in_eager = id(value) in held and exposed.get(memory) is not None and (id(value) in reread or id(value) in checked)
            if memory in exposed and not as_in_eager:
                with torch.no_grad():
                    copy = log.emit(aten.clone.default, (value,), {"memory_format": torch.preserve_format}, merge=False)
                self.maker.copies[id(value)] = copy
                value = copy
                calls.append(len(log.calls) - 1)
            result.append(value)
        return result, calls


def _used(joint: Joint, calls: Sequence[int]) -> set[int]:
    """The values, by identity, that some calls and the gradients of a joint log use."""
    used = {id(value) for number in calls for value in inputs_of(joint.log, number)}
    return used | {id(value) for value in values_of(list(joint.gradients))}


def _needed(joint: Joint, calls: Sequence[int], saved: Sequence[FakeTensor]) -> list[int]:
    """By saved value: bit mask of the tangents whose gradients need it."""
    everything = (1 << len(joint.tangents)) - 1
    if everything == 1:
        return [1] * len(saved)
    depends = {id(value): 1 << number for number, value in enumerate(joint.tangents)}
    for number in calls:
        mask = 0
        for value in inputs_of(joint.log, number):
            mask |= depends.get(id(value), 0)
        depends.update((id(value), mask) for value in values_of([joint.log.calls[number].out]))
    # of what does not depend on a tangent: what is computed from it
    needs: dict[int, int] = {id(value): everything for value in values_of(list(joint.gradients))}
    for number in reversed(calls):
        mask = 0
        for value in values_of([joint.log.calls[number].out]):
            mask |= depends.get(id(value), 0) or needs.get(id(value), 0)
        for value in inputs_of(joint.log, number):
            needs[id(value)] = needs.get(id(value), 0) | mask
    return [needs.get(id(value), 0) for value in saved]


def _restrided(desc: Descriptor, stride: tuple[int, ...]) -> Descriptor:
    return describe(desc.size, stride, desc.dtype, desc.device)
