"""Trace a torch-dialect graph into aten-dialect graphs: forward alone, or forward and backward.

In: a torch-dialect GraphModule, its example inputs (real tensors, or fakes), decompositions. Out: graphs with their
signatures. The steps: record the program on fakes; functionalize; say what each output is; where something is to be
differentiated run the autograd engine over the same fakes and functionalize what it does; split; make FX (`joint`, `graph_maker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from fxloom_aot.double_backward.kept_values import saved_in_eager
from fxloom_aot.functional.ambiguous_aliasing import refuse_ambiguous_aliasing
from fxloom_aot.functional.checkpoints import check_checkpoints
from fxloom_aot.functional.functional_log import Decompositions
from fxloom_aot.functional.functionalize import Functionalizer
from fxloom_aot.functional.memory import ProgramInput
from fxloom_aot.functional.outputs import classify_outputs
from fxloom_aot.functional.views import UnsupportedView
from fxloom_aot.partitioning.partition import Partitioner, save_all
from fxloom_aot.recording.autograd_graph import flows_to, has_history
from fxloom_aot.recording.modes import absent_devices_as_captured, anomaly_detection_off, autocast_state, restoring_modes
from fxloom_aot.recording.recorder import Recorder
from fxloom_aot.recording.run_graph import run_graph
from fxloom_aot.runtime_numbers import SymbolMissing, runtime_value
from fxloom_aot.storages import StorageCheck
from fxloom_aot.trace_result import InputMetadata, Program, Traced
from fxloom_aot.tracing.graph_maker import GraphMaker
from fxloom_aot.tracing.joint import Differentiation
from fxloom_interfaces.errors import GraphBreak, GraphRejected
from fxloom_interfaces.meta import get_fake, get_source, has_fake
from fxloom_interfaces.telemetry import phase
from fxloom_shapes import FakeMode, FakeTensor, SymbolEnv, saved_tensors_hooks_off, symbolic_kernels, trace_context
from fxloom_shapes.expressions.statements import symbols_of
from fxloom_shapes.symbols.numbers import SYMBOLIC
from fxloom_shapes.symbols.options import Tracer


def trace_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    decompositions: Decompositions,
    partitioner: Partitioner = save_all,
    double_backward: bool = False,
    differentiable: torch.fx.GraphModule | None = None,
) -> Traced:
    """See the module's docstring. Differentiates when grad mode is on and some output requires grad.

    double_backward: keep all that eager keeps, so that gradients can always be differentiated again. differentiable: the graph
    that further derivatives are taken of, in the place of `gm`.
    """
    grad_mode = torch.is_grad_enabled()  # leaving inference mode turns it on
    inference = torch.is_inference_mode_enabled()
    with (
        torch.inference_mode(False), torch.set_grad_enabled(grad_mode), saved_tensors_hooks_off(), absent_devices_as_captured(),
        anomaly_detection_off(),
    ):  # fmt: skip
        tracer = _Tracer(gm, decompositions, partitioner, list(example_inputs), inference, double_backward, differentiable or gm)
        try:
            traced = tracer.trace()
        finally:
            # backward graphs that are made later need the fakes; the program's tensors may go, or be exchanged
            tracer.mode.forget_tensors()
            tracer.examples.clear()
    return traced if grad_mode else replace(traced, starts_with_grad=False)


@dataclass(slots=True)
class _Tracer:
    gm: torch.fx.GraphModule
    decompositions: Decompositions
    partitioner: Partitioner
    examples: list[Any]
    inference: bool
    double_backward: bool
    differentiable: torch.fx.GraphModule
    nodes: list[torch.fx.Node] = field(init=False)
    mode: FakeMode = field(init=False)
    recorder: Recorder = field(init=False)
    inputs: list[ProgramInput] = field(init=False)
    state: Functionalizer = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        # fakes of our own: capture may have changed the metadata and the autograd state of those on the nodes
        context = trace_context()
        self.mode = FakeMode(context.env if context is not None else None)
        self.recorder = Recorder(self.mode, self.inference)
        self.inputs = make_inputs(self.mode, self.examples, self.nodes)
        self.state = Functionalizer(self.mode, self.decompositions, self.inputs, self.recorder.constants, self.recorder.made)

    def trace(self) -> Traced:
        for node, given in zip(self.nodes, self.inputs, strict=True):
            if given.fake is None and type(given.number) not in SYMBOLIC:
                raise GraphRejected(node, "a number as a graph input that capture did not make symbolic")
        fakes = [given.fake for given in self.inputs if given.fake is not None]
        before = {id(fake): (fake.requires_grad, fake.grad_fn) for fake in fakes}
        like = self._input_metadata()
        if self.mode.env is not None:
            recorder = self.recorder
            self.mode.env.begin_retrace(
                Tracer(
                    recorder.site, on_deferred=recorder.record_assertion, answers_equivalent=recorder.answers_equivalent,
                    expression=recorder.expression,
                )
            )
            self._assert_of_inputs(self.mode.env)
        with phase("aot.trace"), restoring_modes(), symbolic_kernels(self._is_symbolic()):
            outputs = run_graph(self.gm, [given.number if given.fake is None else given.fake for given in self.inputs], self.recorder)
        self._refuse_leaves(outputs)
        if self.mode.env is not None and self.mode.env.has_unbacked:
            results = [output for output in outputs if type(output) is FakeTensor]
            refuse_ambiguous_aliasing(self.recorder.log, fakes, results, self.mode.env)
        self._refuse_detached_inputs(before)
        with phase("aot.functionalize"), self._rejecting(), torch.no_grad():
            forward_entries = list(self.recorder.log)
            self.state.start(forward_entries)
            self.state.run(forward_entries, backward=False)
            changed = {id(fake) for fake in fakes if fake.requires_grad and fake.grad_fn is not before[id(fake)][1]}
            found = classify_outputs(self.state, outputs, changed)
            self._refuse_shared_gradients()
        parameters = [isinstance(example, torch.nn.Parameter) for example in self.examples]
        maker = GraphMaker(self.state, self.nodes, parameters, self._is_symbolic())
        if any(spec.differentiable for spec in found.specs):
            check_checkpoints(self.recorder.checkpoints, forward_entries)
            joint = Differentiation(self.recorder, self.state, maker, self.partitioner, self._rejecting)
            program = Program(
                self.differentiable, like, self.decompositions, self.state.log, tuple(found.values), autocast_state(),
                torch.is_grad_enabled(), self.differentiable is not self.gm,
            )  # fmt: skip
            changed_fakes = [fake for fake in fakes if id(fake) in changed]
            further = self._saved_in_eager(program) if self.double_backward else []
            traced = joint.trace(found, outputs, changed_fakes, self._checks, further)
            return replace(traced, program=program)
        with phase("aot.build_fx"):
            return Traced(maker.forward(found, self.state.log.live_calls(found.values), []), self._checks())

    def _saved_in_eager(self, program: Program) -> list[FakeTensor]:
        """What to keep for further derivatives, found for the sizes of the traced call: all sizes run the same operators."""
        env = self.mode.env
        symbols = {} if env is None else {name: hint for name, hint in env.hints.items() if hint is not None}
        numbers = [given.number if given.fake is None else None for given in self.inputs]
        places = {name: place for place, name in enumerate(symbols)}
        try:
            plain = runtime_value(numbers, places)(list(symbols.values()))
        except SymbolMissing:  # of unbacked numbers
            return []
        return saved_in_eager(program, symbols, plain)

    def _input_metadata(self) -> tuple[InputMetadata, ...]:
        """What the inputs are like, before the program runs."""
        first: dict[int, int] = {}
        result = []
        for number, given in enumerate(self.inputs):
            fake = given.fake
            if fake is None:
                result.append(InputMetadata(None, given.number))
                continue
            same = first.setdefault(id(fake), number)
            is_parameter = isinstance(self.examples[number], torch.nn.Parameter)
            result.append(InputMetadata(given.initial, None, fake.storage_token.ident, same, is_parameter, fake.requires_grad))
        return tuple(result)

    def _assert_of_inputs(self, env: SymbolEnv) -> None:
        """Have the graph check what capture assumed of unbacked sizes of its inputs; this trace takes it as known."""
        for statement in list(env.deferred):
            if all(env.symbols[atom.text].sources for atom in symbols_of(statement)):
                self.recorder.record_assertion(statement)

    def _is_symbolic(self) -> bool:
        """True when the environment has symbols: for inputs, also those that were specialized since, or unbacked ones."""
        return self.mode.env is not None and bool(self.mode.env.symbols)

    def _checks(self) -> tuple[StorageCheck, ...]:
        checks = []
        for place in self.state.placeholders:
            members = place.memory.members
            if self.state.offset_sensitive.isdisjoint(members):
                continue
            for member in members:
                desc, source = self.inputs[member].initial, get_source(self.nodes[member])
                if self.mode.env is not None and desc is not None and source is not None:
                    self.mode.env.rely_on_offset(source, desc.offset)
            offsets = [self.inputs[member].initial for member in members]
            checks.append(StorageCheck(members, tuple(desc.offset for desc in offsets if desc is not None)))
        return tuple(checks)

    # --- what is rejected ---

    def _refuse_leaves(self, outputs: Sequence[Any]) -> None:
        """Reject a program that makes a leaf and returns it: its gradient is accumulated in the real tensor, which has to exist."""
        given = {id(place.fake) for place in self.inputs}
        for output in outputs:
            if type(output) is not FakeTensor or not output.requires_grad or has_history(output) or output._is_view():
                continue
            if id(output) in self.recorder.leaves and id(output) not in given:
                raise GraphRejected(self.recorder.leaves[id(output)], "a tensor made in the graph becomes a leaf that requires grad")

    def _refuse_detached_inputs(self, before: Mapping[int, tuple[bool, Any]]) -> None:
        """Reject inputs whose autograd state the program changes other than by writing to them.

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
            kept = fake.requires_grad and has_history(fake) and flows_to(fake.grad_fn, self.mode.grad_leaf(fake))
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
        return self.recorder.last_node() or next(iter(self.gm.graph.nodes))


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
            fake = mode.from_tensor(example, as_stored=True)
        result.append(ProgramInput(fake, fake.desc, fake.storage_token, version=fake._version))
    return result
