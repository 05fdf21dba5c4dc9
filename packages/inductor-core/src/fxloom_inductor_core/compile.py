"""The way through inductor-core: passes -> lower -> (passes of users) -> schedule -> plan -> emit (plugins) -> build (plugins) -> wrapper.

In: a graph in the aten dialect, its signature, a code generator by device type. Out: `CompiledGraph`, a callable.
Invariant: what comes out is a function of the graph, the signature, the options and the plugins alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from fxloom_inductor_core.ir.graph import LoweredGraph
from fxloom_inductor_core.ir.loops import Loop
from fxloom_inductor_core.lowering.lower import lower
from fxloom_inductor_core.memory.liveness import donated_inputs, yield_nbytes
from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.pipeline import run_passes, run_user_passes
from fxloom_inductor_core.scheduler.fusion import Scheduler
from fxloom_inductor_core.scheduler.groups import Group
from fxloom_inductor_core.scheduler.kept_apart import as_text, kept_apart
from fxloom_inductor_core.wrapper.program import Planned, plan
from fxloom_inductor_core.wrapper.python import parts_of, print_runnable, print_wrapper
from fxloom_interfaces import telemetry
from fxloom_interfaces.codegen import Codegen, EmitsGrouped, KernelSource, OffersTemplates, check_codegen
from fxloom_interfaces.errors import PluginError, UserError
from fxloom_interfaces.program import Kernel, Program
from fxloom_interfaces.signature import GraphSignature, OutputKind

#: Language of a code generator's sources -> the file that they are in, in the debug folder.
_FILES = {"c++": "kernels.cpp", "triton": "kernels_triton.py"}


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGraph:
    """A compiled graph. Called with the flat inputs as a list, which it empties; returns the flat outputs.

    program: what it runs. wrapper_source, kernel_sources: generated text. library_calls, fallbacks: (op, calls per run).
    """

    program: Program
    wrapper_source: str
    kernel_sources: tuple[KernelSource, ...]
    library_calls: tuple[tuple[str, int], ...]
    fallbacks: tuple[tuple[str, int], ...]
    call: Callable[[list[Any]], list[Any]]
    device_types: tuple[str, ...] = ("cpu",)
    #: positions of the outputs in each of the parts that `in_parts` gives; one part where they come all at once
    parts: tuple[tuple[int, ...], ...] = ()
    part_call: Callable[[list[Any]], Iterator[list[Any]]] | None = None

    def in_parts(self, inputs: list[Any]) -> Iterator[list[Any]]:
        """The outputs as they are made, part by part. Who takes a part empties the list, or its tensors stay alive."""
        if self.part_call is None:
            yield self(inputs)
            return
        running = self.part_call(inputs)
        while True:
            part = self._guarded(lambda: next(running, None))
            if part is None:
                return
            yield part
            del part

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run. Autograd and autocast are off meanwhile: the graph already says what they would do."""
        if torch.is_grad_enabled():
            return self._guarded(lambda: self.call(inputs))
        for device in self.device_types:
            if torch.is_autocast_enabled(device):
                return self._guarded(lambda: self.call(inputs))
        return self.call(inputs)

    def _guarded(self, run: Callable[[], Any]) -> Any:
        active = [d for d in self.device_types if torch.is_autocast_enabled(d)]
        with torch.no_grad():
            for device in active:
                torch.set_autocast_enabled(device, False)
            try:
                return run()
            finally:
                for device in active:
                    torch.set_autocast_enabled(device, True)


def compile_graph(
    gm: torch.fx.GraphModule,
    signature: GraphSignature | None = None,
    *,
    options: InductorOptions | None = None,
    codegens: Mapping[str, Codegen],
    store: Any,
) -> CompiledGraph:
    """Compile a graph in the aten dialect; passes edit it in place. codegens: plugin by device type. store: the ArtifactStore for
    built kernels.

    signature: says whether values are kept for a backward graph, which is compiled for the strides that they were traced with.
    """
    options = options or InductorOptions()
    for plugin in codegens.values():
        check_codegen(plugin)
    listening = telemetry.wants_artifacts()
    with telemetry.phase("inductor.passes"):
        run_passes(gm, options)
    with telemetry.phase("inductor.lower"):
        trains = signature is not None and bool(signature.outputs_of(OutputKind.SAVED))
        graph = lower(gm, codegens, options, keep_ir=listening, trains=trains)
    run_user_passes(graph, "loop_ir", options, None)
    _check_devices(graph, codegens)
    if listening:
        telemetry.emit(telemetry.ArtifactWritten("ir_pre_fusion.txt", _pre_fusion_text(graph)))
    with telemetry.phase("inductor.schedule"):
        scheduler = Scheduler(graph, codegens, options)
        groups = scheduler.run()
    with telemetry.phase("inductor.plan"):
        donated, early = donated_inputs(graph, signature), yield_nbytes(graph, signature, options)
        planned = plan(graph, groups, codegens, options, signature, donated, early)
    if listening:
        telemetry.emit(telemetry.ArtifactWritten("ir_post_fusion.txt", planned.program.text()))
        apart = kept_apart(scheduler, groups, planned.kernel_names)
        telemetry.emit(telemetry.ArtifactWritten("kept_apart.txt", as_text(apart)))
        for pair in apart:
            telemetry.emit(pair)
    return _finish(graph, groups, planned, codegens, store)


def _check_devices(graph: LoweredGraph, codegens: Mapping[str, Codegen]) -> None:
    for work in graph.work:
        kind = work.device.split(":")[0]
        if isinstance(work, Loop) and kind not in codegens:
            raise UserError(f"no code generator for device {work.device!r}; there are ones for {', '.join(sorted(codegens))}")


def _finish(
    graph: LoweredGraph, groups: Sequence[Group], planned: Planned, codegens: Mapping[str, Codegen], store: Any
) -> CompiledGraph:
    program = planned.program
    sources: dict[str, list[KernelSource]] = {}
    with telemetry.phase("codegen.emit"):
        devices, grouped = dict(program.devices), program.grouped()
        for name, kernel in program.kernels:
            device = devices[name].split(":")[0]
            sources.setdefault(device, []).append(_emit(codegens[device], kernel, name, grouped))
        for name, (device, kind, parameters) in graph.templates.items():
            plugin = codegens[device]
            if not isinstance(plugin, OffersTemplates):
                raise PluginError(plugin.name, f"says that it has template {kind!r}, and has no method `template`")
            sources.setdefault(device, []).append(plugin.template(kind, name, parameters))
    namespace: dict[str, Any] = dict(graph.constants)
    with telemetry.phase("codegen.build"):
        for device, batch in sources.items():
            built = codegens[device].build(batch, store)
            namespace.update(built.callables)
            telemetry.emit(
                telemetry.KernelsBuilt(codegens[device].name, tuple(s.name for s in batch), built.compiler_runs, built.cached)
            )
            if built.source and telemetry.wants_artifacts():
                name = _FILES.get(batch[0].language, f"kernels_{codegens[device].name}.txt")
                telemetry.emit(telemetry.ArtifactWritten(name, built.source))
    with telemetry.phase("inductor.wrapper"):
        wrapper = print_wrapper(program, codegens, list(graph.constants))
        exec(compile(wrapper, "<fxloom output_code>", "exec"), namespace)  # text printed above
    for op, count in planned.library_calls:
        telemetry.emit(telemetry.LibraryCalled(op, count))
    for op, count in planned.fallbacks:
        telemetry.emit(telemetry.FellBack(op, _reason(graph, op), count))
    if telemetry.wants_artifacts():
        text = print_runnable(program, wrapper, codegens, sources, _size_hints(graph), graph.constants)
        telemetry.emit(telemetry.ArtifactWritten("output_code.py", text))
    used = {i.device.split(":")[0] for i in program.inputs if i.device} | {d.split(":")[0] for _, d in program.devices}
    return CompiledGraph(
        program,
        wrapper,
        tuple(s for batch in sources.values() for s in batch),
        planned.library_calls,
        planned.fallbacks,
        namespace["call"],
        tuple(sorted(used)) or ("cpu",),
        parts_of(program),
        namespace.get("parts"),
    )


def _emit(plugin: Codegen, kernel: Kernel, name: str, grouped: Container[str]) -> KernelSource:
    if name not in grouped:
        return plugin.emit(kernel, name)
    if not isinstance(plugin, EmitsGrouped):
        raise PluginError(plugin.name, "says that it fuses 'grouped', and has no method `emit_grouped`")
    return plugin.emit_grouped(kernel, name)


def _reason(graph: LoweredGraph, op: str) -> str:
    return graph.fallback_reasons.get(op) or graph.fallback_reasons.get(f"{op}.default", "no lowering")


def _pre_fusion_text(graph: LoweredGraph) -> str:
    """Inputs, then every node with what one point of its loop does."""
    inputs = [f"{name}: {layout}" for name, layout in graph.layouts.items() if not name.startswith("buf")]
    loops = {work.name: work for work in graph.work if isinstance(work, Loop)}
    nodes: list[str] = []
    for node in graph.nodes:
        nodes.append(str(node))
        if node.out.name in loops:
            nodes += [f"    {instruction}" for instruction in loops[node.out.name].instructions]
    return "\n".join([*inputs, "", *nodes, ""])


def _size_hints(graph: LoweredGraph) -> dict[str, int]:
    return dict.fromkeys(graph.sizes, 8)
