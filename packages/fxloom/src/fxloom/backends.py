"""The builtin backends, wired here from the layers: `aot_eager`, `aot_eager_decomp`, `inductor`.

Nothing is imported before a backend is asked for, so that `import fxloom` stays cheap. No algorithm lives here: each
backend hands one layer to the next as an argument.

In: the options of `fxloom.compile`. Out: functions `(gm, example_inputs) -> callable`, as `fxloom_interfaces.backend` describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fxloom_interfaces import telemetry
from fxloom_interfaces.backend import Backend, BackendEntry
from fxloom_interfaces.config import from_options, nearest
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.versions import BACKEND

if TYPE_CHECKING:
    import torch.fx

    from fxloom_inductor_core import InductorOptions
    from fxloom_interfaces.signature import GraphSignature

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class InductorBackendOptions:
    """What `options=` may hold for backend "inductor", beside the fields of inductor-core's own options.

    codegen: name of the code generator to use where several serve a device; None: fxloom's own. replayer: name of the replayer that
    `mode="reduce-overhead"` uses; None records nothing.
    memory_budget: part of the bytes that training has to keep at least from forward to backward that it may keep, 0 to 1;
    below 1 expensive calls are computed again (fxloom_aot.MinCut). double_backward: keep all that eager keeps between forward and
    backward, so that gradients made with `create_graph=True` can always be differentiated again, whatever the caller frees or
    writes in between; `aot_eager` and `aot_eager_decomp` take it too. eager_numbers: random operators draw the numbers that
    eager draws, by calling eager's kernels.
    """

    codegen: str | None = None
    replayer: str | None = None
    memory_budget: float = 1.0
    double_backward: bool = False
    eager_numbers: bool = False


def _declared(backend: Any) -> Backend:
    """Graphs of the aten dialect write to nothing; the caller's tensors are written when they have run. Their sizes are symbols."""
    backend.writes_last = True
    backend.takes_integers = True
    return backend  # type: ignore[no-any-return]


def _double_backward(given: Mapping[str, Any]) -> bool:
    return bool((given.get("options") or {}).get("double_backward"))


def load_aot_eager() -> Backend:
    from fxloom_aot import aot_graph, eager_compiler

    def aot_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """Functionalized graphs, forward and backward, run operator by operator."""
        return aot_graph(gm, example_inputs, compiler=eager_compiler, double_backward=_double_backward(options))

    return _declared(aot_eager)


def load_aot_eager_decomp() -> Backend:
    from fxloom_aot import aot_graph, eager_compiler
    from fxloom_decomp import table

    def aot_eager_decomp(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """As `aot_eager`, with the decompositions that `inductor` uses."""
        twice = _double_backward(options)
        return aot_graph(gm, example_inputs, decompositions=table("inductor"), compiler=eager_compiler, double_backward=twice)

    return _declared(aot_eager_decomp)


def load_inductor() -> Backend:
    import torch

    from fxloom_aot import MinCut, aot_graph
    from fxloom_decomp import table
    from fxloom_inductor_core import prepare
    from fxloom_interfaces.errors import GraphRejected
    from fxloom_interfaces.graph_text import readable, runnable
    from fxloom_ops.script_definitions import definitions

    def inductor(
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> Callable[..., Any]:
        """Fused kernels and library calls. mode: one of MODES. Unknown modes and options raise ConfigError."""
        if unknown:
            raise ConfigError(f"backend 'inductor' takes mode and options, got {', '.join(sorted(unknown))}")
        own, core = inductor_options(mode, options or {})
        compiler = graph_compiler(own, core, mode)
        if telemetry.wants_artifacts():
            telemetry.emit(telemetry.ArtifactWritten("fx_graph_readable.py", readable(gm)))
            telemetry.emit(telemetry.ArtifactWritten("fx_graph_runnable.py", runnable(gm, definitions)))
        partitioner = MinCut(own.memory_budget)
        rules = table("inductor") if core.numerics != "exact" else {}  # the parts of an operator round more often than it does
        if own.eager_numbers:
            rules = {op: rule for op, rule in rules.items() if torch.Tag.nondeterministic_seeded not in op.tags}
        with telemetry.phase("inductor.passes"):
            prepared = prepare(gm, core)
        try:
            return aot_graph(
                prepared.gm, example_inputs, decompositions=rules, compiler=compiler, partitioner=partitioner,
                double_backward=own.double_backward, differentiable=prepared.differentiable,
            )  # fmt: skip
        except GraphRejected as error:
            node = prepared.captured(error.node)
            if node is error.node:
                raise
            raise GraphRejected(node, error.reason, raises=error.raises) from error.__cause__

    return _declared(inductor)


def inductor_options(mode: str | None, options: Mapping[str, Any]) -> tuple[InductorBackendOptions, InductorOptions]:
    """What `mode` and `options` ask of the wiring here and of inductor-core, with the passes that are registered now.

    ConfigError for what neither knows.
    """
    from fxloom_inductor_core import InductorOptions, check_disabled
    from fxloom_interfaces.passes import registered_passes

    if mode is not None and mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}{nearest(mode, list(MODES))}")
    names = InductorBackendOptions.__dataclass_fields__
    own = from_options(InductorBackendOptions, {name: value for name, value in options.items() if name in names})
    core: dict[str, Any] = {"templates": True} if mode is not None and mode.startswith("max-autotune") else {}
    core |= {name: value for name, value in options.items() if name not in names}
    given = from_options(InductorOptions, core)
    found = replace(given, passes=(*registered_passes(), *given.passes))
    check_disabled(found)
    return own, found


def graph_compiler(
    own: InductorBackendOptions, core: InductorOptions, mode: str | None
) -> Callable[[torch.fx.GraphModule, GraphSignature], Any]:
    """The compiler of aten-dialect graphs that `mode` and the options ask for."""
    from fxloom.config import cache_root
    from fxloom_inductor_core import compile_graph
    from fxloom_interfaces.artifacts import FileStore
    from fxloom_interfaces.graph_text import readable
    from fxloom_interfaces.plugins import REPLAYERS, codegens_by_device

    codegens = codegens_by_device(own.codegen)
    store = FileStore(cache_root())
    replayer_name = own.replayer or ("cudagraphs" if mode in ("reduce-overhead", "max-autotune") else None)
    replayer = REPLAYERS.load(replayer_name) if replayer_name is not None else None

    def compile_aten_graph(gm: torch.fx.GraphModule, signature: GraphSignature) -> Any:
        if telemetry.wants_artifacts():
            name = "fx_graph_transformed_backward.py" if signature.backward else "fx_graph_transformed.py"
            telemetry.emit(telemetry.ArtifactWritten(name, readable(gm)))
        compiled = compile_graph(gm, signature, options=core, codegens=codegens, store=store)
        return compiled if replayer is None else replayer.wrap(compiled, replay_signature(gm, signature))

    return compile_aten_graph


def replay_signature(gm: torch.fx.GraphModule, signature: GraphSignature) -> Any:
    """What a replayer has to know of a graph."""
    import torch

    from fxloom_interfaces.meta import get_fake
    from fxloom_interfaces.replayer import ReplaySignature

    fakes = [get_fake(node) for node in gm.graph.nodes if node.op in ("placeholder", "call_function")]
    devices = sorted({fake.device.type for fake in fakes if isinstance(fake, torch.Tensor)})
    return ReplaySignature(
        static_inputs=signature.static_inputs(), mutated_inputs=signature.mutated(), devices=tuple(devices), name=type(gm).__name__
    )


AOT_EAGER = BackendEntry("aot_eager", BACKEND, load_aot_eager)
AOT_EAGER_DECOMP = BackendEntry("aot_eager_decomp", BACKEND, load_aot_eager_decomp)
INDUCTOR = BackendEntry("inductor", BACKEND, load_inductor)
