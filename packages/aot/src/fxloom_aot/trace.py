"""Trace a torch-dialect graph into aten-dialect graphs: forward alone, or forward and backward.

In: a torch-dialect GraphModule, its example inputs (real tensors, or fakes), decompositions. Out: graphs with their
signatures. The steps: record the program on fakes; functionalize; say what each output is; where something is to be
differentiated run the autograd engine over the same fakes and functionalize what it does; split; make FX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from fxloom_aot._torch_private import no_autocast, set_grad_enabled
from fxloom_aot.apart import leaves_reached, shared_with
from fxloom_aot.build_fx import build_graph
from fxloom_aot.functionalize import Functionalizer, ProgramInput, check_checkpoints
from fxloom_aot.guessed_copies import refuse_guessed_copies
from fxloom_aot.log import Decompositions, numbers_of, values_of
from fxloom_aot.outputs import ForwardOutputs, classify_outputs
from fxloom_aot.partition import Joint, Partitioner, backward_from, save_all
from fxloom_aot.recorder import Recorder, has_history, run_graph
from fxloom_aot.runtime import StorageCheck
from fxloom_aot.views import UnsupportedView, is_dense
from fxloom_interfaces.errors import GraphBreak, GraphRejected, InternalError
from fxloom_interfaces.meta import get_fake, get_source, has_fake, is_static_address
from fxloom_interfaces.signature import GraphSignature, InputKind, InputSpec, OutputKind, OutputSpec
from fxloom_interfaces.telemetry import ArtifactWritten, emit, phase, wants_artifacts
from fxloom_shapes import (
    Descriptor,
    FakeMode,
    FakeTensor,
    SymbolEnv,
    contiguous_stride,
    describe,
    make_fake,
    saved_tensors_hooks_off,
    symbolic_kernels,
    trace_context,
)
from fxloom_shapes.devices import absent_devices
from fxloom_shapes.facts import symbols_of
from fxloom_shapes.nodes import symbol_names, symbol_number
from fxloom_shapes.propagate import SYMBOLIC

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """One aten-dialect graph and what its inputs and outputs are."""

    gm: torch.fx.GraphModule
    signature: GraphSignature
    #: torch-dialect node behind each node, by name
    causes: dict[str, torch.fx.Node] = field(default_factory=dict)


#: the gradients that came: numbers of differentiable outputs, with strides where these are not as expected
Given = tuple[tuple[int, tuple[int, ...] | None], ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """forward: always. backward, tangents: where something is differentiated. checks: for the runtime wrapper."""

    forward: TracedGraph
    backward: TracedGraph | None
    tangents: tuple[Descriptor, ...]
    checks: tuple[StorageCheck, ...]
    #: the program refuses `torch.autograd.grad` and `backward(inputs=...)`, as reentrant checkpoints do
    only_plain_backward: bool = False
    #: by differentiable output, in order: bit mask of those that can't be differentiated after it (`apart`)
    shared: tuple[int, ...] = ()
    #: by differentiable output: bit mask of the gradients, in order, that it has a part in
    reached: tuple[int, ...] = ()
    #: the backward graph, and what it expects, for gradients of some of the differentiable outputs; None where there is none
    backward_of: Callable[[Given], tuple[TracedGraph, list[Descriptor]] | None] | None = None
    #: the graph starts with grad mode on; where it starts off, it turns it on itself for what is differentiated
    starts_with_grad: bool = True


def trace_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    decompositions: Decompositions,
    partitioner: Partitioner = save_all,
) -> Traced:
    """See the module's docstring. Differentiates when grad mode is on and some output requires grad."""
    grad_mode = torch.is_grad_enabled()  # leaving inference mode turns it on
    with (
        torch.inference_mode(False), torch.set_grad_enabled(grad_mode), saved_tensors_hooks_off(), _absent_devices(), _anomalies_unseen(),
    ):  # fmt: skip
        traced = _Tracer(gm, decompositions, partitioner, list(example_inputs)).trace()
    return traced if grad_mode else replace(traced, starts_with_grad=False)


def _absent_devices() -> AbstractContextManager[Any]:
    """As capture had it: what is to run is for devices that are there."""
    context = trace_context()
    return absent_devices() if context is None or context.fake_mode.absent_devices else nullcontext()


def _anomalies_unseen() -> AbstractContextManager[Any]:
    """Fakes have no values to be looked through for NaN; the compiled function's own gradients will be."""
    return torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext()


@dataclass(slots=True)
class _Tracer:
    gm: torch.fx.GraphModule
    decompositions: Decompositions
    partitioner: Partitioner
    examples: list[Any]
    mode: FakeMode = field(init=False)
    recorder: Recorder = field(init=False)
    inputs: list[ProgramInput] = field(init=False)
    state: Functionalizer = field(init=False)

    def __post_init__(self) -> None:
        # fakes of our own: capture may have changed the metadata and the autograd state of those on the nodes
        context = trace_context()
        self.mode = FakeMode(context.env if context is not None else None)
        self.recorder = Recorder(self.mode)
        self.inputs = make_inputs(self.mode, self.examples, [n for n in self.gm.graph.nodes if n.op == "placeholder"])
        self.state = Functionalizer(self.mode, self.decompositions, self.inputs, self.recorder.constants, self.recorder.made)

    def trace(self) -> Traced:
        for node, given in zip([n for n in self.gm.graph.nodes if n.op == "placeholder"], self.inputs, strict=True):
            if given.fake is None and type(given.number) not in SYMBOLIC:
                raise GraphRejected(node, "a number as a graph input that capture did not make symbolic")
        fakes = [given.fake for given in self.inputs if given.fake is not None]
        before = {id(fake): (fake.requires_grad, fake.grad_fn) for fake in fakes}
        if self.mode.env is not None:
            self.mode.env.site = self.recorder.site
            self.mode.env.on_deferred = self.recorder.asserts
            self.mode.env.either_way = self.recorder.either_way
            self.mode.env.in_operator += 1  # the program's own questions were answered when it was captured
            self._assert_of_inputs(self.mode.env)
        with phase("aot.trace"), _restoring_modes(), symbolic_kernels(self._is_symbolic()):
            outputs = run_graph(self.gm, [given.number if given.fake is None else given.fake for given in self.inputs], self.recorder)
        self._refuse_leaves(outputs)
        if self.mode.env is not None and self.mode.env.has_unbacked:
            results = [output for output in outputs if type(output) is FakeTensor]
            refuse_guessed_copies(self.recorder.log, fakes, results, self.mode.env)
        self._refuse_detached_inputs(before)
        with phase("aot.functionalize"), self._rejecting(), torch.no_grad():
            forward_entries = list(self.recorder.log)
            self.state.start(forward_entries)
            self.state.run(forward_entries, backward=False)
            changed = {id(fake) for fake in fakes if fake.requires_grad and fake.grad_fn is not before[id(fake)][1]}
            found = classify_outputs(self.state, outputs, changed)
            self._refuse_shared_gradients()
        if any(spec.differentiable for spec in found.specs):
            check_checkpoints(self.recorder.checkpoints, forward_entries)
            return self._joint(found)
        with phase("aot.build_fx"):
            return Traced(self._forward_graph(found, self.state.log.live_calls(found.values), []), None, (), self._checks())

    def _assert_of_inputs(self, env: SymbolEnv) -> None:
        """Have the graph check what capture took for granted of unbacked sizes of its inputs; here it is a known fact."""
        for statement in list(env.deferred):
            if all(env.symbols[atom.text].sources for atom in symbols_of(statement)):
                self.recorder.asserts(statement)

    def _is_symbolic(self) -> bool:
        """Some number is a symbol: one that the caller passes, one that the trace specialized, or one that running it tells."""
        return self.mode.env is not None and bool(self.mode.env.symbols)

    def _joint(self, found: ForwardOutputs) -> Traced:
        log = self.state.log
        differentiated = [number for number, spec in enumerate(found.specs) if spec.differentiable]
        programs = [found.programs[number] for number in differentiated]
        tangent_descs = tuple(_tangent(program.desc) for program in programs if program is not None)
        tangents = [log.placeholder(desc) for desc in tangent_descs]
        wanted: list[tuple[int, FakeTensor]] = []
        for number, given in enumerate(self.inputs):
            if (
                given.fake is not None
                and self.mode.grad_leaf(given.fake).requires_grad
                and all(self.inputs[earlier].fake is not given.fake for earlier, _ in wanted)
            ):
                wanted.append((number, self.mode.grad_leaf(given.fake)))
        hidden = [fake for fake, _ in self.recorder.constants.values() if fake.requires_grad]
        if hidden or not wanted:
            with self._rejecting():
                raise UnsupportedView("a tensor that requires grad was lifted into the graph as a constant, or made in it")
        grad_fns = [program.grad_fn for program in programs if program is not None]
        leaves = [leaf for _, leaf in wanted]
        shared = shared_with(grad_fns) if len(programs) > 1 else [1]
        reached = leaves_reached(grad_fns, leaves)
        values = self._gradients(programs, tangents, leaves)
        with phase("aot.partition"):
            part = self.partitioner(Joint(log, found.values, values, tangents, self._static_placeholders()))
            if part.report and wants_artifacts():
                emit(ArtifactWritten("partition.txt", part.report + "\n"))
            saved, copies = self._protect_saved(found, part.saved)
        with phase("aot.build_fx"), self._rejecting():
            known = {id(value) for value in found.values}
            extra = [value for value in saved if log.origins[id(value)].placeholder < 0 and id(value) not in known]
            used = self._symbols_used(part.backward, [*part.saved, *tangents], values)
            late = {name: symbol_number(self.mode.env, name) for name in used if name in log.symbol_calls}
            forward_calls = sorted({*part.forward, *copies, *log.calls_for(list(late.values()))})
            forward = self._forward_graph(found, forward_calls, [*extra, *late.values()])
            flat = {id(value): place for place, value in reversed(list(enumerate([*found.values, *extra])))}
            placed: list[tuple[InputSpec, Any]] = []
            for number, (value, original) in enumerate(zip(saved, part.saved, strict=True)):
                origin = log.origins[id(value)]
                of_input = origin.placeholder >= 0
                index = origin.placeholder if of_input else flat[id(value)]
                placed.append((InputSpec(InputKind.SAVED, f"saved_{number}", index, of_input=of_input), original))
            incoming = [
                (InputSpec(InputKind.TANGENT, f"tangent_{number}", output), value)
                for number, (value, output) in enumerate(zip(tangents, differentiated, strict=True))
            ]
            numbers = list(self._numbers_used(used))
            for position, (name, late_number) in enumerate(late.items(), len(found.values) + len(extra)):
                numbers.append((InputSpec(InputKind.SAVED, f"saved_{name}", position, symbol=name), late_number))
            inputs = [number for number, _ in wanted]
            backward = self._backward_graph([*placed, *incoming, *numbers], part.backward, values, inputs)
        reentrant = any(found.reentrant for found in self.recorder.checkpoints)

        def backward_of(chosen: Given) -> tuple[TracedGraph, list[Descriptor]] | None:
            descs = [tangent_descs[n] if stride is None else _restrided(tangent_descs[n], stride) for n, stride in chosen]
            try:
                came = [tangents[n] if stride is None else log.placeholder(desc) for (n, stride), desc in zip(chosen, descs, strict=True)]
                some = self._gradients([programs[n] for n, _ in chosen], came, leaves)
                calls = backward_from(Joint(log, found.values, some, came, self._static_placeholders()), part.saved)
                if calls is None:
                    return None
                specs = [(incoming[n][0], value) for (n, _), value in zip(chosen, came, strict=True)]
                return self._backward_graph([*placed, *specs, *numbers], calls, some, inputs), descs
            except (GraphBreak, GraphRejected, InternalError):  # it asks of sizes what no guard says
                return None

        return Traced(
            forward, backward, tangent_descs, self._checks(), reentrant, tuple(shared), tuple(reached), backward_of
        )

    def _gradients(
        self, programs: Sequence[Any], tangents: Sequence[FakeTensor], leaves: Sequence[FakeTensor]
    ) -> list[FakeTensor | None]:
        """The values of the gradients of the leaves. Another call may follow."""
        start = len(self.recorder.log)
        with phase("aot.trace_backward"), _restoring_modes(), symbolic_kernels(self._is_symbolic()):
            gradients = self._run_autograd(programs, tangents, leaves)
        with phase("aot.functionalize"), self._rejecting(), torch.no_grad():
            before = {id(place.memory): place.memory.version for place in self.state.placeholders}
            self.state.run(self.recorder.log[start:], backward=True)  # entries carry the forward node they belong to
            for place in self.state.placeholders:
                if place.memory.version != before[id(place.memory)]:
                    raise UnsupportedView("the backward pass writes to an input of the forward pass")
            return [None if gradient is None else self.state.read_laid_out(gradient) for gradient in gradients]

    def _backward_graph(
        self, placed: list[tuple[InputSpec, Any]], calls: Sequence[int], values: Sequence[Any], inputs: Sequence[int]
    ) -> TracedGraph:
        """placed: its inputs but constants. inputs: of the caller, whose gradients `values` are."""
        placed = [*placed, *self._constants_used(calls, values)]
        outputs = tuple(OutputSpec(OutputKind.GRADIENT, number) for number in inputs)
        signature = GraphSignature(tuple(spec for spec, _ in placed), outputs, backward=True)
        causes: dict[str, torch.fx.Node] = {}
        return TracedGraph(build_graph(self.state.log, placed, calls, values, causes), signature, causes)

    def _run_autograd(
        self, programs: Sequence[Any], tangents: Sequence[FakeTensor], leaves: Sequence[FakeTensor]
    ) -> tuple[Any, ...]:
        """The gradients of the leaves, recorded. The fakes of the tangents stand in the program as well as in the log."""
        stand_ins = [make_fake(value.desc) for value in tangents]
        for stand_in, value in zip(stand_ins, tangents, strict=True):
            self.state.define(stand_in, value)
        self.recorder.in_backward = True
        self.recorder.node = None
        # in this thread, whatever the device: the modes are those of this thread
        try:
            # autocast is of the forward part: a backward pass is run outside, as torch asks for
            with (
                self.recorder, torch.autograd.set_multithreading_enabled(False), torch.no_grad(), _anomalies_unseen(), no_autocast(),
            ):  # fmt: skip
                return torch.autograd.grad(programs, leaves, stand_ins, retain_graph=True, allow_unused=True)
        except (RuntimeError, ArithmeticError, GraphBreak) as error:
            # eager would raise this, or ask for the values, in its backward pass only: its forward has to run there
            node = self.recorder.cause() or self._last_node()
            raise GraphRejected(node, f"the derivative raises {type(error).__name__}: {error}") from error

    def _protect_saved(self, found: ForwardOutputs, saved: Sequence[FakeTensor]) -> tuple[list[FakeTensor], list[int]]:
        """Saved values that are on an input which the epilogue overwrites are copied first; also the calls that copy."""
        log = self.state.log
        targets = {log.placeholders[spec.input].storage_token.ident for spec in found.specs if spec.kind is OutputKind.NEW_VALUE}
        result, calls = [], []
        for value in saved:
            if value.storage_token.ident in targets:
                with torch.no_grad():
                    value = log.emit(aten.clone.default, (value,), {"memory_format": torch.preserve_format}, merge=False)
                calls.append(len(log.calls) - 1)
            result.append(value)
        return result, calls

    def _static_placeholders(self) -> frozenset[int]:
        """Numbers of the placeholders whose memory outlives the call."""
        nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        return frozenset(
            number
            for number, place in enumerate(self.state.placeholders)
            if is_static_address(nodes[place.input]) or isinstance(self.examples[place.input], torch.nn.Parameter)
        )

    # --- signatures ---

    def _forward_graph(self, found: ForwardOutputs, calls: Sequence[int], saved: Sequence[Any]) -> TracedGraph:
        outputs = [*found.values, *saved]
        placed = [*self._placed(found), *self._constants_used(calls, outputs)]
        specs = (*found.specs, *[OutputSpec(OutputKind.SAVED) for _ in saved])
        signature = GraphSignature(tuple(spec for spec, _ in placed), specs, tuple(found.results), tuple(found.metadata), len(self.inputs))
        causes: dict[str, torch.fx.Node] = {}
        return TracedGraph(build_graph(self.state.log, placed, calls, outputs, causes), signature, causes)

    def _placed(self, found: ForwardOutputs) -> list[tuple[InputSpec, Any]]:
        """Spec and value of every placeholder of the forward graph but constants."""
        nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        mutated = {spec.input for spec in found.specs if spec.kind is OutputKind.NEW_VALUE}
        placed = []
        for number, place in enumerate(self.state.placeholders):
            node = nodes[place.input]
            static = is_static_address(node)
            kind = InputKind.STORAGE if place.flat else self._kind(place.input, static)
            name = f"{node.name}_storage" if place.flat else node.name
            spec = InputSpec(kind, name, place.input, get_source(node), static, number in mutated)
            placed.append((spec, self.state.log.placeholders[number]))
        for index, given in enumerate(self.inputs):
            if type(given.number) in SYMBOLIC:
                node = nodes[index]
                spec = InputSpec(InputKind.NUMBER, node.name, index, get_source(node), symbol=str(given.number))
                placed.append((spec, given.number))
        return placed

    def _symbols_used(self, calls: Sequence[int], inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, None]:
        """Names of the symbols that a backward graph needs."""
        log = self.state.log
        if not log.symbol_calls and not self._is_symbolic():
            return {}
        values: list[Any] = list(numbers_of([[log.calls[number].args, log.calls[number].kwargs] for number in calls]))
        for fake in values_of([*inputs, *outputs]):
            values += [*fake.desc.size, *fake.desc.stride]
        for number in calls:
            for fake in values_of([log.calls[number].out]):
                values += [*fake.desc.size, *fake.desc.stride]
        return symbol_names(values)

    def _numbers_used(self, used: Mapping[str, None]) -> Iterator[tuple[InputSpec, Any]]:
        """The caller's numbers among `used`, as values that the forward graph got."""
        numbers = [given.number for given in self.inputs if type(given.number) in SYMBOLIC]
        for position, number in enumerate(numbers, len(self.state.placeholders)):
            if str(number) in used:
                name = str(number)
                yield InputSpec(InputKind.SAVED, f"saved_{name}", position, of_input=True, symbol=name), number

    def _kind(self, number: int, static: bool) -> InputKind:
        example = self.examples[number]
        if isinstance(example, torch.nn.Parameter):
            return InputKind.PARAMETER
        return InputKind.BUFFER if static else InputKind.USER

    def _constants_used(self, calls: Sequence[int], outputs: Sequence[Any]) -> Iterator[tuple[InputSpec, Any]]:
        log = self.state.log
        used = {id(value) for number in calls for value in values_of([log.calls[number].args, log.calls[number].kwargs])}
        used.update(id(value) for value in values_of(list(outputs)))
        for number, (value, real) in enumerate(log.constants):
            if id(value) in used:
                yield InputSpec(InputKind.CONSTANT, f"constant_{number}", constant=real.detach()), value

    def _checks(self) -> tuple[StorageCheck, ...]:
        nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        checks = []
        for place in self.state.placeholders:
            members = place.memory.members
            if self.state.offset_sensitive.isdisjoint(members):
                continue
            for member in members:
                desc, source = self.inputs[member].initial, get_source(nodes[member])
                if self.mode.env is not None and desc is not None and source is not None:
                    self.mode.env.rely_on_offset(source, desc.offset)
            offsets = [self.inputs[member].initial for member in members]
            checks.append(StorageCheck(members, tuple(desc.offset for desc in offsets if desc is not None)))
        return tuple(checks)

    # --- what can't be ---

    def _refuse_leaves(self, outputs: Sequence[Any]) -> None:
        """A leaf that the program makes and shows: its gradient is accumulated in the real tensor, which has to be there."""
        given = {id(place.fake) for place in self.inputs}
        for output in outputs:
            if type(output) is not FakeTensor or not output.requires_grad or has_history(output) or output._is_view():
                continue
            if id(output) in self.recorder.leaves and id(output) not in given:
                raise GraphRejected(self.recorder.leaves[id(output)], "a tensor made in the graph becomes a leaf that requires grad")

    def _refuse_detached_inputs(self, before: Mapping[int, tuple[bool, Any]]) -> None:
        """Inputs that are something else to autograd afterwards, in the caller's program too, without having been written.

        before: by id, whether the input required grad, and its history.
        """
        for given in self.inputs:
            fake = given.fake
            if fake is None or (fake.requires_grad, fake.grad_fn) == before[id(fake)]:
                continue
            required, _ = before[id(fake)]
            if not required and not has_history(fake):
                raise GraphRejected(self._last_node(), "an input is made to require grad in place")
            # what is written keeps the way to its history; autograd calls no operator that would be in the log
            kept = fake.requires_grad and has_history(fake) and leaves_reached([fake.grad_fn], [self.mode.grad_leaf(fake)])[0]
            if required and not kept:
                raise GraphRejected(self._last_node(), "an input that requires grad is detached in place")

    def _refuse_shared_gradients(self) -> None:
        for place in self.state.placeholders:
            if place.flat and any(_requires_grad(self.inputs[member]) for member in place.memory.members):
                raise UnsupportedView("inputs that share memory are written, and one of them requires grad")

    @contextmanager
    def _rejecting(self) -> Iterator[None]:
        """Faults that belong to no operator become the rejection of the last node that did something."""
        try:
            yield
        except (UnsupportedView, GraphBreak) as error:
            raise GraphRejected(self._last_node(), str(error)) from error

    def _last_node(self) -> torch.fx.Node:
        logged = (entry.node for entry in reversed(self.recorder.log) if entry.node is not None)
        return next(logged, None) or next(iter(self.gm.graph.nodes))


def _requires_grad(given: ProgramInput) -> bool:
    return given.fake is not None and given.fake.requires_grad


def make_inputs(mode: FakeMode, examples: Sequence[Any], nodes: Sequence[torch.fx.Node] = ()) -> list[ProgramInput]:
    """Fakes for the example inputs; fakes among these are remade with their aliasing. nodes: the placeholders."""
    storages: dict[int, Any] = {}
    remade: dict[int, FakeTensor] = {}
    result = []
    for number, example in enumerate(examples):
        if not isinstance(example, torch.Tensor):
            # a number here is dynamic; burning it in would be a guess
            known = get_fake(nodes[number]) if nodes and has_fake(nodes[number]) else example
            result.append(ProgramInput(None, None, None, known))
            continue
        if type(example) is FakeTensor:
            fake = remade.get(id(example))
            if fake is None:
                fake = remade[id(example)] = mode.refake(example, storages)
        else:
            fake = mode.from_tensor(example)
        result.append(ProgramInput(fake, fake.desc, fake.storage_token))
    return result


def _tangent(desc: Descriptor) -> Descriptor:
    """Metadata of the gradient of an output: its layout where that is dense, else contiguous."""
    stride = desc.stride if is_dense(desc) else contiguous_stride(desc.size)
    return describe(desc.size, stride, desc.dtype, desc.device)


def _restrided(desc: Descriptor, stride: tuple[int, ...]) -> Descriptor:
    return describe(desc.size, stride, desc.dtype, desc.device)


@contextmanager
def _restoring_modes() -> Iterator[None]:
    """Grad mode and autocast as before, also when the graph raises between a mode change and its end."""
    grad_mode = torch.is_grad_enabled()
    nesting = autocast_state()
    try:
        yield
    finally:
        set_grad_enabled(grad_mode)
        _restore_autocast(nesting)


def autocast_state() -> dict[str, tuple[bool, torch.dtype]]:
    """By device type: whether autocast is on, and its dtype."""
    return {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")}


def _restore_autocast(state: dict[str, tuple[bool, torch.dtype]]) -> None:
    for device, (enabled, dtype) in state.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
