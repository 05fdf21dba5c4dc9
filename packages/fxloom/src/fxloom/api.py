"""`compile` and its companions, named as torch.compile's users expect.

In: a function or module and options. Out: a callable of the same arguments, whose results are eager's; what can't be compiled runs in
eager and is reported. Options are checked here, before anything is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import fxloom_dynamo
from fxloom.config import settings
from fxloom.debug import DebugFolder
from fxloom.stats import RECORDER, Stats
from fxloom_dynamo.guard.dynamic_shapes import parse_dynamic_shapes
from fxloom_dynamo.public_api import controls
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.plugins import BACKENDS, CODEGENS, REPLAYERS, Found, backend_function
from fxloom_interfaces.replayer import begin_step

F = TypeVar("F", bound=Callable[..., Any])

#: options that are no backend's
_CAPTURE_OPTIONS = frozenset(
    {"capture_scalar_outputs", "capture_dynamic_output_shape_ops", "duck_shapes", "recompile_limit", "break_limit", "step_limit"}
)

_debug_listener: DebugFolder | None = None


@overload
def compile(model: F, **options: Any) -> F: ...
@overload
def compile(model: None = None, **options: Any) -> Callable[[F], F]: ...
def compile(  # type: ignore[misc]  # the overloads are short on purpose: what is accepted is below
    model: Any = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    dynamic_shapes: Mapping[str, Any] | None = None,
    fullgraph: bool = False,
    suppress_errors: bool | None = None,
    options: Mapping[str, Any] | None = None,
    debug_dir: str | Path | None = None,
) -> Any:
    """A callable (or module) that gives the results of `model`, compiled when it is first called.

    model: a function, method or nn.Module; left out, `compile(...)` is a decorator. A module stays one: parameters,
    `state_dict` and hooks are the original's.
    backend: a name (see `list_backends`) or a function `(gm, example_inputs) -> callable`. A function without an
    attribute `takes_integers = True` that makes anything of graphs gets such of tensors only, one per size and number, whatever
    `dynamic` says: numbers would become constants where it traces.
    mode, options: for the backend; but the options capture_scalar_outputs and capture_dynamic_output_shape_ops are capture's:
    they keep numbers and shapes that depend on values in the graph, and are on with fullgraph for backends that take integers. So is
    duck_shapes: sizes that are equal in the first call are taken for one size unless it is False (FXLOOM_DUCK_SHAPES=0 for all
    regions), and a call where they differ compiles anew. So are the limits: recompile_limit, break_limit, and step_limit, the
    instructions that are evaluated without an operator.
    dynamic: None compiles for the sizes that it sees, and once more for any size of what turns out to change; True for any
    size at once; False for each size anew, up to the recompile limit.
    dynamic_shapes: by argument, which dimensions are dynamic, `{"x": {0: True, 1: (2, 512)}}`: None or "static", True (an error
    if the program needs one size), "auto" (if it can be), a name for dimensions of one size, or (low, high).
    debug_dir: folder for the artefacts of every compilation from now on, as FXLOOM_DEBUG=1 writes them.
    fullgraph: a graph break raises `exc.Unsupported`. suppress_errors: what a backend fails at runs eager, with a warning.

    Raises ConfigError or PluginError at once for arguments that can't be right; everything else at the first call.
    """
    if model is None:
        return functools.partial(
            compile,
            backend=backend,
            mode=mode,
            dynamic=dynamic,
            dynamic_shapes=dynamic_shapes,
            fullgraph=fullgraph,
            suppress_errors=suppress_errors,
            options=options,
            debug_dir=debug_dir,
        )
    if not callable(model):
        raise ConfigError(f"fxloom.compile takes a function or an nn.Module, got {type(model).__name__}")
    parse_dynamic_shapes(dynamic_shapes)  # refused here, not at the first call
    now = settings()
    if now.disable:
        return model
    if now.debug or debug_dir is not None:
        _write_debug_folder(Path(debug_dir if debug_dir is not None else now.debug_dir))
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"options must be a mapping of names to values, got {type(options).__name__}")
    capture = {"duck_shapes": now.duck_shapes}
    capture |= {name: value for name, value in (options or {}).items() if name in _CAPTURE_OPTIONS}
    options = {name: value for name, value in (options or {}).items() if name not in capture}
    return fxloom_dynamo.optimize(
        resolve_backend(backend, mode, options),
        **capture,
        fullgraph=fullgraph,
        dynamic=dynamic,
        dynamic_shapes=dynamic_shapes,
        suppress_errors=bool(suppress_errors),
    )(model)


def cudagraph_mark_step_begin() -> None:
    """Say that a new step begins: a training step, a request, a token.

    As in torch.compile, results of the modes with CUDA graphs are only promised to live until the next step begins, so that a
    replayer may use their memory again. The builtin replayer hands out copies: what it returned stays valid whether or not steps are
    marked. Callable anywhere; inside a compiled function it is no graph break, and counts once its graph has run.
    """
    begin_step()


def resolve_backend(backend: str | Callable[..., Any], mode: str | None, options: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The backend function with mode and options bound. PluginError for an unknown name, ConfigError for unknown options."""
    if backend == "inductor":  # refused here, since at the first call suppress_errors could hide it
        from fxloom.backends import inductor_options

        own, _ = inductor_options(mode, options or {})
        if own.codegen is not None:
            CODEGENS.load(own.codegen)
        if own.replayer is not None:
            REPLAYERS.load(own.replayer)
    function = backend_function(backend)
    bound: dict[str, Any] = {}
    if mode is not None:
        bound["mode"] = mode
    if options:
        bound["options"] = dict(options)
    if not bound:
        return function
    return functools.update_wrapper(functools.partial(function, **bound), function)  # keeps its name for messages


def compile_fx(gm: Any, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The builtin inductor on a torch-dialect graph that someone else captured: a callable of the graph's flat inputs."""
    return BACKENDS.load("inductor").load()(gm, example_inputs, **options)


compile_fx.takes_integers = compile_fx.writes_last = True  # type: ignore[attr-defined]  # as a backend it is the inductor


def explain(fn: Callable[..., Any]) -> Callable[..., fxloom_dynamo.Capture]:
    """`explain(fn)(*args)` runs `fn` once, captured with backend "eager": what it prints as says graphs, breaks with places
    and remedies, guards and seconds."""
    return functools.partial(fxloom_dynamo.capture, fn)


def explain_fusion(fn: Callable[..., Any], **options: Any) -> Callable[..., tuple[telemetry.KernelsKeptApart, ...]]:
    """`explain_fusion(fn)(*args)` compiles `fn` anew, runs it once, and lists the pairs of kernels that could have been one: each has the
    names `first` and `second`, as in `output_code.py`, a `reason` in words, and a `count`; each prints as a line.

    options: as `compile` takes them. Of a function that is trained the kernels of its backward pass are among them. What other threads
    compile meanwhile is listed too.
    """

    @functools.wraps(fn)
    def explained(*args: Any, **kwargs: Any) -> tuple[telemetry.KernelsKeptApart, ...]:
        found: list[telemetry.KernelsKeptApart] = []

        def keep(event: telemetry.Event) -> None:
            if isinstance(event, telemetry.KernelsKeptApart):
                found.append(event)

        with telemetry.listen(keep, artifacts=True):
            compile(fn, **options)(*args, **kwargs)
        return tuple(found)

    return explained


def export(fn: Callable[..., Any]) -> Callable[..., fxloom_dynamo.Capture]:
    """`export(fn)(*args)` runs `fn` once and gives its one whole graph (`.graph`) and guards; `exc.Unsupported` where it breaks."""
    return functools.partial(fxloom_dynamo.export, fn)


def list_backends() -> tuple[str, ...]:
    """Names of all backends: builtin, installed and registered."""
    return BACKENDS.names()


def plugins() -> tuple[Found, ...]:
    """All plugins that are installed, by group; each prints as one line. None is loaded, so what is broken isn't told."""
    return (*BACKENDS.found(), *CODEGENS.found(), *REPLAYERS.found())


def stats() -> Stats:
    """Counters over everything compiled since the start or the last `reset`."""
    return RECORDER.stats


def reset() -> None:
    """Forget everything that was compiled, and the counters. Compiled callables compile again when called."""
    controls.reset()
    RECORDER.reset()


def _write_debug_folder(root: Path) -> None:
    """From now on every compilation of this process leaves its artefacts below `root`."""
    global _debug_listener
    if _debug_listener is None:
        _debug_listener = DebugFolder(root)
        telemetry.add_listener(_debug_listener, artifacts=True)
