"""Which results are differentiated together, and where their gradients end.

In: the program's outputs with the history that autograd recorded of them. Out: boundaries, the caller's tensors that other results
are computed from; stages, the differentiable outputs in groups of which each comes after what it is computed from; a `StagePlan` for each.
Invariants: gradients of a stage end at the caller's inputs and at boundaries of earlier stages, inner ones among them. A node of
autograd that costs something belongs to one stage, the first that reaches it: its derivative is computed once, from all that
comes there, as in eager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx
from torch.autograd.graph import GradientEdge

from fxloom_aot.functional.functional_log import FunctionalLog
from fxloom_aot.functional.functionalize import Functionalizer
from fxloom_aot.functional.outputs import ForwardOutputs
from fxloom_aot.functional.views import is_dense
from fxloom_aot.recording.autograd_graph import Edge, Reached, checks_phase, has_history, is_python, reached_from, saved_by, saves
from fxloom_aot.recording.recorder import Recorder
from fxloom_aot.trace_result import Boundary
from fxloom_interfaces.errors import GraphRejected, InternalError
from fxloom_interfaces.signature import FromConstant, FromInput, FromOutput, FromResult, OutputKind, SameResult
from fxloom_shapes import Descriptor, FakeTensor, contiguous_stride, describe


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
class FoundBoundary:
    """A boundary and where autograd has it.

    output: the flat output that it comes with, so that the caller has it after that one's stage; -1 for none, then it is there
    before all stages. hooked: the program registered hooks on it.
    """

    boundary: Boundary
    edge: Edge
    output: int
    hooked: bool


@dataclass(slots=True)
class StagePlan:
    """A stage before its graph is made.

    outputs: flat positions. inner: where gradients come to it besides, from later stages. programs, tangents, tangent_descs: of both, in
    this order. gradients: the values, one for each source.
    """

    outputs: list[int]
    inner: list[Edge]
    programs: list[FakeTensor | GradientEdge]
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


def find_boundaries(
    state: Functionalizer, found: ForwardOutputs, outputs: Sequence[Any], changed: Sequence[FakeTensor]
) -> list[FoundBoundary]:
    """The tensors that the caller holds after the call and that have a history in this program."""
    new_values = [(number, spec) for number, spec in enumerate(found.specs) if spec.kind is OutputKind.NEW_VALUE]
    written = {spec.index: number for number, spec in new_values if spec.differentiable}
    result: list[FoundBoundary] = []
    seen: set[Edge] = set()

    def add(boundary: Boundary, fake: FakeTensor, output: int) -> None:
        edge = (fake.grad_fn, fake.output_nr)
        if edge not in seen:
            seen.add(edge)
            result.append(FoundBoundary(boundary, edge, output, bool(fake._backward_hooks)))

    for number, given in enumerate(state.inputs):
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


def order_in_stages(found: ForwardOutputs, boundaries: Sequence[FoundBoundary]) -> list[list[int]]:
    """The differentiable flat outputs, each after those that it is computed from."""
    positions = [number for number, spec in enumerate(found.specs) if spec.differentiable]
    if len(positions) == 1:
        return [positions]
    stops = reached_from([_program(found, number).grad_fn for number in positions], [one.edge for one in boundaries]).stops
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
            raise InternalError("aot joint", f"outputs {sorted(set(positions) - placed)} are computed from each other")
        stages.append(stage)
        placed.update(stage)
    return stages


def _program(found: ForwardOutputs, position: int) -> FakeTensor:
    program = found.programs[position]
    assert program is not None
    return program


class Owners:
    """Which stage a node of autograd belongs to, where several reach it: the first.

    A node that saves nothing and only leads to leaves, a view of a parameter for example, belongs to none: gradients from
    several stages may as well meet at the leaf. Nor does one that the program did not make, but stands for an input.
    """

    def __init__(
        self, recorder: Recorder, found: ForwardOutputs, stages: Sequence[list[int]], boundaries: Sequence[FoundBoundary]
    ) -> None:
        self._stage: dict[Any, int] = {}
        self._stops = dict.fromkeys(one.edge for one in boundaries)
        self._roots = [[_program(found, position).grad_fn for position in positions] for positions in stages]
        #: by stage: where gradients of later ones come to it
        self.inner: list[dict[Edge, None]] = [{} for _ in stages]
        for number, roots in enumerate(self._roots):
            reached = self._reached(number, roots)
            for edge, mask in reached.stops.items():
                if mask and edge[0] in self._stage and edge not in self._stops:
                    self.inner[self._stage[edge[0]]][edge] = None
            if number + 1 < len(stages):
                free: set[Any] = set()
                for node in reversed(reached.nodes):
                    if recorder.maker(node) is None or _leads_to_leaves(node, free):
                        free.add(node)
                    else:
                        self._stage[node] = number

    def reached_by(self, stage: int, inner: Iterable[Edge]) -> Reached:
        """What gradients of a stage flow through, those of its outputs and those that come to it at `inner`."""
        return self._reached(stage, [*self._roots[stage], *[node for node, _ in inner]])

    def _reached(self, stage: int, grad_fns: Sequence[Any]) -> Reached:
        return reached_from(grad_fns, list(self._stops), lambda node: self._stage.get(node, stage) < stage)


def _leads_to_leaves(node: Any, free: set[Any]) -> bool:
    below = [edge[0] for edge in node.next_functions if edge[0] is not None]
    return not is_python(node) and not saves(node) and all(node in free for node in below)


def plan_stage(
    recorder: Recorder, log: FunctionalLog, found: ForwardOutputs, positions: list[int], reached: Reached, leaves: Sequence[Source],
    inner: Sequence[Edge], given: Mapping[Edge, Descriptor], last_node: torch.fx.Node,
) -> StagePlan:  # fmt: skip
    """The plan for the outputs at `positions`.

    inner: where gradients of later stages come to it besides. given: what the gradients are like that later stages give.
    GraphRejected at `last_node`, or earlier, for a derivative that looks at values.
    """
    outputs = [_program(found, position) for position in positions]
    edges = [*[(program.grad_fn, program.output_nr) for program in outputs], *inner]
    asking = checks_phase(reached, edges)
    if asking is not None:
        reason = "the derivative of complex eigenvectors or singular vectors checks values"
        raise GraphRejected(recorder.maker(asking) or last_node, reason)
    masks = reached.leaves([source.leaf for source in leaves])
    sources = [source for source, mask in zip(leaves, masks, strict=True) if mask]
    sources += [Source(-1, edge=edge) for edge, mask in reached.stops.items() if mask]
    expected = [given.get((program.grad_fn, program.output_nr), program.desc) for program in outputs]
    descs = [_tangent(desc) for desc in [*expected, *[given[edge] for edge in inner]]]
    programs: list[FakeTensor | GradientEdge] = [*outputs, *[GradientEdge(*edge) for edge in inner]]
    tangents = [log.placeholder(desc) for desc in descs]
    # a tensor that no gradient flows to may still require grad: autograd derives that from its inputs
    saved = list(_saved_in_eager(recorder, reached))
    memories: dict[int, int] = {}
    for tensor, mask in saved:
        memories[tensor.storage_token.ident] = memories.get(tensor.storage_token.ident, 0) | mask
    held = {id(tensor) for tensor, _ in saved}
    return StagePlan(positions, list(inner), programs, reached, sources or list(leaves), descs, tangents, [], [], memories, held)


def _saved_in_eager(recorder: Recorder, reached: Reached) -> Iterator[tuple[FakeTensor, int]]:
    """What nodes save, with the outputs that need it."""
    for node, mask in reached.nodes.items():
        if not recorder.is_checkpointed(node):  # else backward computes it again from its inputs as they are by then
            yield from ((saved, mask) for saved in saved_by(node) if type(saved) is FakeTensor)


def _tangent(desc: Descriptor) -> Descriptor:
    """Metadata of a gradient that is expected to be like `desc`: its layout where that is dense, else contiguous."""
    stride = desc.stride if is_dense(desc) else contiguous_stride(desc.size)
    return describe(desc.size, stride, desc.dtype, desc.device)
