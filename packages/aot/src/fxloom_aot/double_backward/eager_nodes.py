"""Run a program once more on fakes, so that autograd records the nodes that eager would have.

In: the program as a torch-dialect graph (`Program`), the sizes of a call. Out: a `Recording`: fakes of the results with eager's
history, node for node. What the nodes save has no elements until `Recording.fill` supplies them, so that nothing is computed or drawn
here. Gradients of these fakes can be asked for with real gradients to start from, and with `create_graph=True`: derivatives of any order
are eager's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxloom_aot.recording.modes import absent_devices_as_captured, anomaly_detection_off, restoring_modes
from fxloom_aot.recording.recorder import Recorder
from fxloom_aot.recording.run_graph import run_graph
from fxloom_aot.runtime_numbers import runtime_value
from fxloom_aot.trace_result import Program
from fxloom_shapes import Descriptor, FakeMode, FakeStorage, FakeTensor, describe, make_fake, symbolic_kernels


@dataclass(slots=True)
class PackedTensor:
    """What a node saved: the fake, how often it had been written, how many operators had run.

    final_version: how often it was written when the program had run. After that the fake is dropped: it may hold the node.
    """

    recording: Recording
    number: int
    fake: FakeTensor | None
    version: int
    position: int
    shape: tuple[int, ...]
    final_version: int = 0


def modified_since(shape: tuple[int, ...], version: int, expected: int) -> RuntimeError:
    """As autograd's, where what a node saved was written since."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"a tensor of shape {shape} is at version {version}; expected version {expected} instead"
    )


def _no_position() -> int:
    return 0


@dataclass(slots=True)
class Recording:
    """fakes: of the inputs, None for numbers. outputs: of the program. originals: by place in `cuts`, what was cut there.

    edges, cut_edges: where gradients of inputs, by number, and of what is behind a cut end. versions: how often what was cut was
    written until then. cut: what has no history, with what it was before.

    saved: what nodes saved, in order; for who plans, and empty afterwards.
    """

    fakes: list[FakeTensor | None] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    originals: dict[torch.fx.Node, FakeTensor] = field(default_factory=dict)
    edges: dict[int, GradientEdge] = field(default_factory=dict)
    cut_edges: dict[torch.fx.Node, GradientEdge] = field(default_factory=dict)
    versions: dict[torch.fx.Node, int] = field(default_factory=dict)
    cut: list[tuple[FakeTensor, FakeTensor]] = field(default_factory=list)
    saved: list[PackedTensor] = field(default_factory=list)
    value_of: Callable[[int], torch.Tensor] | None = None
    position: Callable[[], int] = field(default_factory=lambda: _no_position)

    def uncut(self, value: Any) -> Any:
        """A value of the program as it was before something was cut."""
        return next((original for cut, original in self.cut if cut is value), value)

    def fill(self, value_of: Callable[[int], torch.Tensor]) -> None:
        """From now on nodes get the values that `value_of` has for what they saved, by number."""
        self.value_of = value_of

    def close(self) -> None:
        """Drop the graph, which holds this by what its nodes saved: the garbage collector would not find the cycle."""
        for packed in self.saved:
            if packed.fake is not None:
                packed.final_version = packed.fake._version
                packed.fake = None
        for held in (self.saved, self.fakes, self.outputs, self.originals, self.edges, self.cut_edges, self.versions, self.cut):
            held.clear()  # type: ignore[attr-defined]  # lists and dicts
        self.position = _no_position

    def pack(self, tensor: Any) -> Any:
        if type(tensor) is not FakeTensor:
            return tensor
        packed = PackedTensor(self, len(self.saved), tensor, tensor._version, self.position(), tuple(tensor.shape))
        self.saved.append(packed)
        return packed

    def unpack(self, packed: Any) -> Any:
        if type(packed) is not PackedTensor:
            return packed
        if self.value_of is None:  # the program differentiates something itself
            return packed.fake
        found = packed.final_version if packed.fake is None else packed.fake._version
        if found != packed.version:
            raise modified_since(packed.shape, found, packed.version)
        return self.value_of(packed.number)


class _NonLeaf(torch.autograd.Function):
    """A fake that autograd takes for the result of an operator."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, holder: list[FakeTensor]) -> FakeTensor:
        return holder.pop()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # gradients end here
        return None, None


def _non_leaf(fake: FakeTensor) -> FakeTensor:
    with torch.enable_grad():
        start = torch.empty(0, requires_grad=True, device="cpu")
        return _NonLeaf.apply(start, [fake])  # type: ignore[no-any-return]  # a tensor


def concrete_inputs(program: Program, numbers: Mapping[str, Any]) -> list[Descriptor | None]:
    """By input: its metadata where the symbols are these numbers."""
    places = {name: place for place, name in enumerate(numbers)}
    values = list(numbers.values())
    result: list[Descriptor | None] = []
    for given in program.inputs:
        desc = given.desc
        if desc is not None and desc.env is not None:
            size, stride, offset = runtime_value((desc.size, desc.stride, desc.offset), places)(values)
            desc = describe(size, stride, desc.dtype, desc.device, offset)
        result.append(desc)
    return result


def record_eager_nodes(
    program: Program,
    descs: Sequence[Descriptor | None],
    numbers: Sequence[Any],
    cuts: Mapping[torch.fx.Node, torch.fx.Node | int],
    recorder: Recorder,
    recording: Recording | None = None,
) -> Recording:
    """Run the program. descs, numbers: by input.

    cuts: nodes after which something has no history for what follows: what a node made, this one or an earlier, or an input, by number.
    """
    recording = recording or Recording()
    recording.position = lambda: len(recorder.log)
    storages: dict[int, FakeStorage] = {}
    values: list[Any] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(recording.pack, recording.unpack)
    with (
        torch.inference_mode(False), restoring_modes(), absent_devices_as_captured(), anomaly_detection_off(), symbolic_kernels(False),
        torch.autograd.set_multithreading_enabled(False), hooks,
    ):  # fmt: skip
        for device, (enabled, dtype) in program.autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        for number, given in enumerate(program.inputs):
            desc = descs[number]
            if desc is None:
                values.append(numbers[number])
                recording.fakes.append(None)
                continue
            if given.same < number:
                fake = recording.fakes[given.same]
            else:
                with torch.no_grad():
                    fake = make_fake(desc, storages.setdefault(given.storage, FakeStorage()), False)
                if given.requires_grad:
                    fake = _non_leaf(fake)
                    recording.edges[number] = get_gradient_edge(fake)
                if given.is_parameter:
                    fake._is_param = True  # type: ignore[attr-defined]  # what isinstance(fake, Parameter) asks
            values.append(fake)
            recording.fakes.append(fake)
        torch.set_grad_enabled(program.starts_with_grad)
        if cuts:
            recorder.replaces = _cutting(recording, cuts)
        recording.outputs = run_graph(program.gm, values, recorder)
    return recording


def _cutting(
    recording: Recording, cuts: Mapping[torch.fx.Node, torch.fx.Node | int]
) -> Callable[[torch.fx.Node, Any], tuple[Any, Any]]:
    made_by: dict[torch.fx.Node, Any] = {}
    results = {what for what in cuts.values() if isinstance(what, torch.fx.Node)}

    def replaces(node: torch.fx.Node, made: Any) -> tuple[Any, Any]:
        if node in results:
            made_by[node] = made
        if node not in cuts:
            return made, made
        what = cuts[node]
        value = made_by.get(what) if isinstance(what, torch.fx.Node) else recording.fakes[what]
        if type(value) is not FakeTensor:
            return made, made
        recording.originals[node] = value
        recording.versions[node] = value._version
        with torch.no_grad():
            alias = value.detach()
        cut = _non_leaf(alias)  # type: ignore[arg-type]  # a fake
        recording.cut_edges[node] = get_gradient_edge(cut)
        recording.cut.append((cut, value))
        return value, cut

    return replaces


def last_writes(
    program: Program, descs: Sequence[Descriptor | None], numbers: Sequence[Any], results: Collection[torch.fx.Node]
) -> dict[torch.fx.Node | int, torch.fx.Node]:
    """By input, and by node of `results`, that the program writes to: the node that did so last."""
    recorder = new_recorder()
    versions: dict[torch.fx.Node | int, int] = {}
    writers: dict[torch.fx.Node | int, torch.fx.Node] = {}
    recording = Recording()
    made_by: dict[torch.fx.Node | int, Any] = {}

    def look(node: torch.fx.Node, made: Any) -> tuple[Any, Any]:
        if node in results:
            made_by[node] = made
        for what, fake in (*enumerate(recording.fakes), *made_by.items()):
            if type(fake) is FakeTensor and fake._version != versions.setdefault(what, fake._version if what in made_by else 0):
                versions[what] = fake._version
                writers[what] = node
        return made, made

    recorder.replaces = look
    record_eager_nodes(program, descs, numbers, {}, recorder, recording)
    recording.close()
    return writers


def new_recorder() -> Recorder:
    """For one recording with sizes that are plain numbers."""
    return Recorder(FakeMode(None))
