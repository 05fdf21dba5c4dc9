"""Differentiate a recorded program: run the autograd engine over its fakes, split the joint log, make graphs.

In: the program's log after its forward part was functionalized, what its outputs are. Out: a `Traced` with stages. The steps:
find the results that other results are made of; put the differentiable outputs into stages; run the engine once for each stage,
with its gradients ending at the caller's inputs and at results of earlier stages; let the partitioner say what is kept; make one
forward graph and a backward graph for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from fxloom_aot._torch_private import no_autocast
from fxloom_aot.functionalize import Functionalizer
from fxloom_aot.graphs import GraphMaker
from fxloom_aot.history import Edge, Reached, checks_phase, reached_from, saved_by
from fxloom_aot.later_writes import checked_in_eager, exposed_memories, read_anew
from fxloom_aot.log import values_of
from fxloom_aot.modes import anomalies_unseen, restoring_modes
from fxloom_aot.outputs import ForwardOutputs
from fxloom_aot.partition import Joint, Partition, Partitioner, backward_from, check_partition, inputs_of, made_for_checkpoints
from fxloom_aot.recorder import Recorder, has_history
from fxloom_aot.runtime import StorageCheck
from fxloom_aot.through import without_marked
from fxloom_aot.traced import Boundary, Declined, Given, Keep, Stage, Traced, TracedGraph, Watched
from fxloom_aot.views import UnsupportedView, is_dense
from fxloom_interfaces.errors import GraphBreak, GraphRejected, InternalError
from fxloom_interfaces.signature import FromConstant, FromInput, FromOutput, FromResult, InputKind, InputSpec, OutputKind, SameResult
from fxloom_interfaces.telemetry import ArtifactWritten, emit, phase, wants_artifacts
from fxloom_shapes import Descriptor, FakeTensor, contiguous_stride, describe, make_fake, symbolic_kernels
from fxloom_shapes.symbols.numbers import symbol_number

aten = torch.ops.aten

#: turns faults that belong to no operator into the rejection of a node
Rejecting = Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class Source:
    """Where gradients of a stage end: a caller's input (its number) or a boundary.

    Boundaries are numbered after the inputs, in their order among those that some stage ends at; -1 before these are known.
    """

    number: int
    leaf: FakeTensor | None = None
    edge: Edge | None = None
    #: the program registered hooks on the boundary
    hooked: bool = False


@dataclass(slots=True)
class Found:
    """A boundary and where autograd has it.

    output: the flat output that it comes with, so that the caller has it after that one's stage; -1 for none, then it is there
    before all stages. hooked: the program registered hooks on it.
    """

    boundary: Boundary
    edge: Edge
    output: int
    hooked: bool


@dataclass(slots=True)
class Plan:
    """A stage before its graph is made. outputs: flat positions. gradients: the values, one for each source."""

    outputs: list[int]
    programs: list[FakeTensor]
    reached: Reached
    sources: list[Source]
    tangent_descs: list[Descriptor]
    tangents: list[FakeTensor]
    gradients: list[FakeTensor | None]
    #: numbers of the calls of this stage that count beyond their result
    effects: list[int]
    #: memory of the program that eager's nodes save, by number, with the outputs that need it
    saved_in_eager: dict[int, int]
    #: the tensors, by identity, that eager's nodes hold
    tensors_in_eager: set[int]


class Differentiation:
    """See the module's docstring. One per trace."""

    def __init__(
        self, recorder: Recorder, state: Functionalizer, maker: GraphMaker, partitioner: Partitioner, rejecting: Rejecting
    ) -> None:
        self.recorder, self.state, self.maker, self.partitioner = recorder, state, maker, partitioner
        self.rejecting, self.symbolic = rejecting, maker.symbolic
        self.log, self.mode = state.log, state.fake_mode
        self.count = len(state.inputs)
        #: by identity, the values that are kept for further derivatives only
        self.further: dict[int, FakeTensor] = {}
        #: memories of the log that the caller may write to, unseen by eager's backward pass
        self.copied: frozenset[int] = frozenset()

    def trace(
        self, found: ForwardOutputs, outputs: Sequence[Any], changed: Sequence[FakeTensor],
        checks: Callable[[], tuple[StorageCheck, ...]], further: Sequence[FakeTensor] = (),
    ) -> Traced:  # fmt: skip
        """outputs: of the program. changed: inputs that autograd saw written. further: values to keep for further derivatives."""
        leaves = self._leaves()
        boundaries = self._boundaries(found, outputs, changed)
        plans = [self._plan(found, positions, leaves, boundaries) for positions in self._in_stages(found, boundaries)]
        ends = {edge for plan in plans for edge, mask in plan.reached.stops.items() if mask}
        boundaries = [one for one in boundaries if one.edge in ends]
        numbers = {one.edge: number for number, one in enumerate(boundaries, self.count)}
        for plan in plans:
            plan.sources = [source if source.edge is None else replace(source, number=numbers[source.edge]) for source in plan.sources]
            self._differentiate(plan)
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
        return Traced(forward, checks(), tuple(stages), tuple(one.boundary for one in boundaries), reentrant, report=part.report)

    def _last_node(self) -> torch.fx.Node:
        return self.recorder.last_node() or self.maker.nodes[0]

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

    # --- stages ---

    def _boundaries(self, found: ForwardOutputs, outputs: Sequence[Any], changed: Sequence[FakeTensor]) -> list[Found]:
        """The tensors with a history of this program that the caller gets, or has, afterwards."""
        new_values = [(number, spec) for number, spec in enumerate(found.specs) if spec.kind is OutputKind.NEW_VALUE]
        written = {spec.index: number for number, spec in new_values if spec.differentiable}
        result: list[Found] = []
        seen: set[Edge] = set()

        def add(boundary: Boundary, fake: FakeTensor, output: int) -> None:
            edge = (fake.grad_fn, fake.output_nr)
            if edge not in seen:
                seen.add(edge)
                result.append(Found(boundary, edge, output, bool(fake._backward_hooks)))

        for number, given in enumerate(self.state.inputs):
            if given.fake is not None and number in written and any(given.fake is fake for fake in changed):
                add(Boundary(input=number), given.fake, written[number])
        for number, (output, what) in enumerate(zip(outputs, found.results, strict=True)):
            if type(output) is not FakeTensor or not output.requires_grad or not has_history(output):
                continue
            root = what
            while isinstance(root, FromResult):
                root = found.results[root.result]
            match root:
                case FromOutput(position):
                    add(Boundary(result=number), output, position)
                case FromInput(index, steps) if steps:
                    add(Boundary(result=number), output, written.get(index, -1))
                case FromInput() | FromConstant() | SameResult() | FromResult():
                    pass
        return result

    def _in_stages(self, found: ForwardOutputs, boundaries: Sequence[Found]) -> list[list[int]]:
        """The differentiable flat outputs, each after those that it is made of."""
        positions = [number for number, spec in enumerate(found.specs) if spec.differentiable]
        if len(positions) == 1:
            return [positions]
        stops = reached_from([self._program(found, number).grad_fn for number in positions], [one.edge for one in boundaries]).stops
        below: dict[int, set[int]] = {position: set() for position in positions}
        for one in boundaries:
            for number, position in enumerate(positions):
                if stops[one.edge] >> number & 1 and one.output >= 0:
                    below[position].add(one.output)
        stages: list[list[int]] = []
        placed: set[int] = set()
        while len(placed) < len(positions):
            stage = [position for position in positions if position not in placed and below[position] <= placed]
            if not stage:
                raise InternalError("aot joint", f"outputs {sorted(set(positions) - placed)} are made of each other")
            stages.append(stage)
            placed.update(stage)
        return stages

    @staticmethod
    def _program(found: ForwardOutputs, position: int) -> FakeTensor:
        program = found.programs[position]
        assert program is not None
        return program

    def _plan(
        self, found: ForwardOutputs, positions: list[int], leaves: Sequence[Source], boundaries: Sequence[Found]
    ) -> Plan:
        programs = [self._program(found, position) for position in positions]
        reached = reached_from([program.grad_fn for program in programs], [one.edge for one in boundaries])
        asking = checks_phase(reached, [(program.grad_fn, program.output_nr) for program in programs])
        if asking is not None:
            reason = "the derivative of complex eigenvectors or singular vectors checks values"
            raise GraphRejected(self.recorder.maker(asking) or self._last_node(), reason)
        masks = reached.leaves([source.leaf for source in leaves])
        sources = [source for source, mask in zip(leaves, masks, strict=True) if mask]
        sources += [Source(-1, edge=one.edge, hooked=one.hooked) for one in boundaries if reached.stops[one.edge]]
        descs = [_tangent(program.desc) for program in programs]
        tangents = [self.log.placeholder(desc) for desc in descs]
        # what flows nowhere requires grad all the same: autograd tells it by what goes in
        saved = list(self._saved_in_eager(reached))
        memories: dict[int, int] = {}
        for tensor, mask in saved:
            memories[tensor.storage_token.ident] = memories.get(tensor.storage_token.ident, 0) | mask
        held = {id(tensor) for tensor, _ in saved}
        return Plan(positions, programs, reached, sources or list(leaves), descs, tangents, [], [], memories, held)

    # --- the engine ---

    def _differentiate(self, plan: Plan) -> None:
        plan.gradients, plan.effects = self._gradients(plan.programs, plan.tangents, plan.sources)

    def _gradients(
        self, programs: Sequence[FakeTensor], tangents: Sequence[FakeTensor], sources: Sequence[Source], autocast: Any = ()
    ) -> tuple[list[FakeTensor | None], list[int]]:
        """The values of the gradients of the sources, and the numbers of the calls made that count beyond their result.

        Another call may follow.
        """
        start, first = len(self.recorder.log), len(self.log.calls)
        state = self.state
        marks: list[FakeTensor] = []
        with phase("aot.trace_backward"), restoring_modes(), symbolic_kernels(self.symbolic):
            gradients = self._run_engine(programs, tangents, sources, autocast, marks)
        with phase("aot.functionalize"), self.rejecting(), torch.no_grad():
            before = {id(place.memory): place.memory.version for place in state.placeholders}
            state.run(self.recorder.log[start:], backward=True)  # entries carry the forward node they belong to
            for place in state.placeholders:
                if place.memory.version != before[id(place.memory)]:
                    raise UnsupportedView("the backward pass writes to an input of the forward pass")
            values = [None if gradient is None else state.read_laid_out(gradient) for gradient in gradients]
            effects = self.log.effects(first)
            return without_marked(self.log, values, tangents, marks, effects) if marks else (values, effects)

    def _run_engine(
        self, programs: Sequence[FakeTensor], tangents: Sequence[FakeTensor], sources: Sequence[Source], autocast: Any,
        marks: list[FakeTensor],
    ) -> Sequence[Any]:  # fmt: skip
        """The gradients of the sources, recorded. The fakes of the tangents stand in the program as well as in the log."""
        stand_ins = [make_fake(value.desc) for value in tangents]
        for stand_in, value in zip(stand_ins, tangents, strict=True):
            self.state.define(stand_in, value)
        inputs: list[Any] = [source.leaf if source.edge is None else GradientEdge(*source.edge) for source in sources]
        self.recorder.in_backward = True
        self.recorder.node = None
        try:
            # in this thread, whatever the device: the modes are those of this thread
            with (
                self.recorder, torch.autograd.set_multithreading_enabled(False), torch.no_grad(), anomalies_unseen(),
                _autocast(autocast), self._marking(sources, marks) as further,
            ):  # fmt: skip
                found = torch.autograd.grad(programs, [*inputs, *further], stand_ins, retain_graph=True, allow_unused=True)
                return found[: len(inputs)]
        except (RuntimeError, ArithmeticError, GraphBreak) as error:
            # eager would raise this, or ask for the values, in its backward pass only: its forward has to run there
            node = self.recorder.cause() or self._last_node()
            raise GraphRejected(node, f"the derivative raises {type(error).__name__}: {error}") from error

    @contextmanager
    def _marking(self, sources: Sequence[Source], marks: list[FakeTensor]) -> Iterator[list[GradientEdge]]:
        """Within, a boundary's node that runs gets a value of its own for the gradient that came there, which goes into `marks`.

        It runs where something that is asked for is behind it. Gives edges to ask for as well: the engine runs the hooks of a
        tensor before it takes a gradient where nobody needs the node itself, and these hooks are for all that comes to the tensor,
        in the stage that makes it.
        """
        numbers: dict[Any, list[int]] = {}
        further: list[GradientEdge] = []
        for source in sources:
            if source.edge is not None:
                node, number = source.edge
                numbers.setdefault(node, []).append(number)
                if source.hooked:
                    further += [GradientEdge(*below) for below in node.next_functions if below[0] is not None]

        def marked(gradient: Any) -> Any:
            stand_in = make_fake(gradient.desc)
            marks.append(self.log.placeholder(gradient.desc))
            self.state.define(stand_in, marks[-1])
            return stand_in

        def marking(given: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
            return lambda gradients: tuple(
                [marked(gradient) if number in given and gradient is not None else gradient for number, gradient in enumerate(gradients)]
            )

        with ExitStack() as stack:
            for node, given in numbers.items():
                stack.callback(node.register_prehook(marking(given)).remove)
            yield further

    # --- graphs ---

    def _joint(
        self, found: ForwardOutputs, gradients: Sequence[Any], tangents: Sequence[FakeTensor], effects: Sequence[int]
    ) -> Joint:
        return Joint(self.log, found.values, gradients, tangents, self.maker.static_placeholders(), self.copied, tuple(effects))

    def _keeping(self, joint: Joint, part: Partition, further: Sequence[FakeTensor]) -> Partition:
        """`part`, keeping `further` values too, but for those that live on anyway and those of checkpointed functions."""
        kept = {id(value) for value in part.saved}
        again = made_for_checkpoints(joint)
        self.further = {
            id(value): value for value in further if id(value) not in kept and id(value) not in again and not joint.lives_on(value)
        }
        forward = sorted({*part.forward, *self.log.calls_for(list(self.further.values()))})
        return replace(part, forward=tuple(forward), saved=(*part.saved, *self.further.values())) if self.further else part

    def _joint_of(self, found: ForwardOutputs, plan: Plan) -> Joint:
        """What of the joint log belongs to one stage."""
        return self._joint(found, plan.gradients, plan.tangents, plan.effects)

    def _calls(self, found: ForwardOutputs, plans: Sequence[Plan], plan: Plan, part: Partition) -> tuple[int, ...]:
        """The calls of a stage's backward pass."""
        if len(plans) == 1:
            return part.backward
        calls = backward_from(self._joint_of(found, plan), part.saved)
        if calls is None:
            raise InternalError("aot joint", f"the values kept do not suffice for the gradients of outputs {plan.outputs}")
        return calls

    def _graphs(
        self, found: ForwardOutputs, plans: Sequence[Plan], part: Partition, outputs: Sequence[Any], exposed: Mapping[int, int | None]
    ) -> tuple[TracedGraph, list[Stage]]:
        log = self.log
        calls = [self._calls(found, plans, plan, part) for plan in plans]
        joints = [self._joint_of(found, plan) for plan in plans]
        anew = read_anew(log, calls, [value for joint in joints for value in values_of(list(joint.gradients))])
        used = [_used(joint, numbers) for joint, numbers in zip(joints, calls, strict=True)]
        checked = [
            checked_in_eager(exposed, plan.saved_in_eager, part.saved, [
                outputs if id(value) in taken else 0
                for value, outputs in zip(part.saved, _needed(joint, numbers, part.saved), strict=True)
            ])
            for plan, joint, numbers, taken in zip(plans, joints, calls, used, strict=True)
        ]  # fmt: skip
        saved, copies = self._protect_saved(found, part.saved, exposed, anew, set.intersection(*checked))
        known = {id(value) for value in found.values}
        extra = [value for value in saved if log.origins[id(value)].placeholder < 0 and id(value) not in known]
        symbols = [
            self.maker.symbols_used(numbers, [*part.saved, *plan.tangents], plan.gradients)
            for plan, numbers in zip(plans, calls, strict=True)
        ]
        late = {name: symbol_number(self.mode.env, name) for names in symbols for name in names if name in log.symbol_calls}
        forward_calls = sorted({*part.forward, *copies, *log.calls_for(list(late.values()))})
        forward = self.maker.forward(found, forward_calls, [*extra, *late.values()])
        flat = {id(value): place for place, value in reversed(list(enumerate([*found.values, *extra])))}
        kept: list[tuple[InputSpec, FakeTensor]] = []
        for number, (value, original) in enumerate(zip(saved, part.saved, strict=True)):
            place = log.origins[id(value)].placeholder
            index = place if place >= 0 else flat[id(value)]
            kept.append((InputSpec(InputKind.SAVED, f"saved_{number}", index, of_input=place >= 0), original))
        late_specs = {
            name: (InputSpec(InputKind.SAVED, f"saved_{name}", position, symbol=name), number)
            for position, (name, number) in enumerate(late.items(), len(found.values) + len(extra))
        }
        stages = []
        for plan, numbers, names, taken in zip(plans, calls, symbols, used, strict=True):
            own = [(spec, value) for spec, value in kept if len(plans) == 1 or id(value) in taken or id(value) in self.further]
            sizes = [*self.maker.numbers_used(names), *[late_specs[name] for name in names if name in late_specs]]
            stages.append(self._stage(found, plan, numbers, own, anew, sizes, outputs))
        return forward, stages

    def _stage(
        self, found: ForwardOutputs, plan: Plan, calls: Sequence[int], kept: Sequence[tuple[InputSpec, Any]], anew: Container[int],
        sizes: Sequence[tuple[InputSpec, Any]], outputs: Sequence[Any],
    ) -> Stage:  # fmt: skip
        """kept: the saved values that it uses, `anew` those that are read as they then are; sizes: the numbers."""
        specs = [InputSpec(InputKind.TANGENT, f"tangent_{number}", position) for number, position in enumerate(plan.outputs)]
        incoming = list(zip(specs, plan.tangents, strict=True))
        gradient_of = [source.number for source in plan.sources]
        graph = self.maker.backward([*kept, *incoming, *sizes], calls, plan.gradients, gradient_of)
        values = [value for _, value in kept]

        def backward_of(given: Given) -> tuple[TracedGraph, list[Descriptor]]:
            chosen = given.gradients
            descs = [plan.tangent_descs[n] if stride is None else _restrided(plan.tangent_descs[n], stride) for n, stride in chosen]
            try:
                came = [
                    plan.tangents[n] if stride is None else self.log.placeholder(desc)
                    for (n, stride), desc in zip(chosen, descs, strict=True)
                ]
                gradients, effects = self._gradients([plan.programs[n] for n, _ in chosen], came, plan.sources, given.autocast)
                some = backward_from(self._joint(found, gradients, came, effects), values)
                if some is None:
                    raise Declined(f"the values kept do not suffice for {given}")
                placed = [*kept, *[(specs[n], value) for (n, _), value in zip(chosen, came, strict=True)], *sizes]
                return self.maker.backward(placed, some, gradients, gradient_of), descs
            except (GraphBreak, GraphRejected, InternalError) as error:  # it asks of sizes what no guard says
                raise Declined(str(error)) from error

        at_leaves = plan.reached.leaves([source.leaf for source in plan.sources])
        reached = [
            mask if source.edge is None else plan.reached.stops[source.edge]
            for source, mask in zip(plan.sources, at_leaves, strict=True)
        ]
        needed = _needed(self._joint_of(found, plan), calls, values)
        numbers = sum(1 for spec, _ in sizes if spec.kind is InputKind.SAVED)
        return Stage(
            tuple(plan.outputs), graph, tuple(plan.tangent_descs), tuple(plan.reached.shared(len(plan.outputs))), tuple(reached),
            (*needed, *[-1] * numbers), (*[self._keep(plan, value, anew) for value in values], *[Keep.MEMORY] * numbers),
            tuple(self._watched(plan, found, outputs)), tuple(values), backward_of,
        )  # fmt: skip

    def _keep(self, plan: Plan, value: FakeTensor, anew: Container[int]) -> Keep:
        place = self.log.origins[id(value)].placeholder
        if id(value) in anew:
            return Keep.AS_IT_IS
        fake = self.state.inputs[self.state.placeholders[place].input].fake if place >= 0 else None
        return Keep.TENSOR if id(fake) in plan.tensors_in_eager else Keep.MEMORY

    def _watched(self, plan: Plan, found: ForwardOutputs, outputs: Sequence[Any]) -> Iterator[Watched]:
        """The caller's tensors that eager's nodes of this stage save."""
        at: dict[int, Boundary] = {}
        for number, given in enumerate(self.state.inputs):
            if given.fake is not None:
                at.setdefault(given.fake.storage_token.ident, Boundary(input=number))
        for number, (output, what) in enumerate(zip(outputs, found.results, strict=True)):
            if type(output) is FakeTensor and not isinstance(what, FromConstant):
                at.setdefault(output.storage_token.ident, Boundary(result=number))
        return (Watched(at[ident], mask) for ident, mask in plan.saved_in_eager.items() if ident in at)

    def _saved_in_eager(self, reached: Reached) -> Iterator[tuple[FakeTensor, int]]:
        """What nodes save, with the outputs that need it."""
        for node, mask in reached.nodes.items():
            if not self.recorder.is_checkpointed(node):  # else it will be computed again, from what its inputs then are
                yield from ((saved, mask) for saved in saved_by(node) if type(saved) is FakeTensor)

    def _protect_saved(
        self, found: ForwardOutputs, values: Sequence[FakeTensor], exposed: Mapping[int, int | None], anew: Container[int],
        checked: Container[int],
    ) -> tuple[list[FakeTensor], list[int]]:  # fmt: skip
        """`values` with copies of those that somebody may write to unseen; also the calls that copy."""
        log = self.log
        held = {id(value) for value in [*log.placeholders, *found.values]}
        result, calls = [], []
        for value in values:
            memory = value.storage_token.ident
            # autograd sees writes to the caller's very tensor, not to what a graph makes of it
            as_in_eager = id(value) in held and exposed.get(memory) is not None and (id(value) in anew or id(value) in checked)
            if memory in exposed and not as_in_eager:
                with torch.no_grad():
                    value = log.emit(aten.clone.default, (value,), {"memory_format": torch.preserve_format}, merge=False)
                calls.append(len(log.calls) - 1)
            result.append(value)
        return result, calls


@contextmanager
def _autocast(state: Any) -> Iterator[None]:
    """Autocast as a backward pass is run under; off, as torch asks for, unless it is said."""
    with ExitStack() as stack:
        if not state:
            stack.enter_context(no_autocast())
        for device, dtype in state:
            stack.enter_context(torch.autocast(device, dtype))
        yield


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
    # of what does not depend on a tangent: what is made of it
    needs: dict[int, int] = {id(value): everything for value in values_of(list(joint.gradients))}
    for number in reversed(calls):
        mask = 0
        for value in values_of([joint.log.calls[number].out]):
            mask |= depends.get(id(value), 0) or needs.get(id(value), 0)
        for value in inputs_of(joint.log, number):
            needs[id(value)] = needs.get(id(value), 0) | mask
    return [needs.get(id(value), 0) for value in saved]


def _tangent(desc: Descriptor) -> Descriptor:
    """Metadata of the gradient of an output: its layout where that is dense, else contiguous."""
    stride = desc.stride if is_dense(desc) else contiguous_stride(desc.size)
    return describe(desc.size, stride, desc.dtype, desc.device)


def _restrided(desc: Descriptor, stride: tuple[int, ...]) -> Descriptor:
    return describe(desc.size, stride, desc.dtype, desc.device)
