"""The entry points for those who use this package alone: `optimize`, `capture`, `export`, `explain`.

    from fxloom_dynamo import optimize

    @optimize(lambda gm, example_inputs: gm.forward)
    def f(x): ...

In: a function and, but for `optimize`, the arguments of one call. Out: the function compiled, or a `Capture` with the graphs,
guards and breaks of that call, which prints as text. The code cache does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from fxloom_dynamo.code_cache.callables import compile_callable, compile_calls
from fxloom_dynamo.config import Backend, CaptureConfig
from fxloom_dynamo.evaluation.frame_reports import ENDINGS, Break, FrameReport
from fxloom_dynamo.guard.entries import CapturedFrame
from fxloom_dynamo.guard.guards import Guard
from fxloom_interfaces import telemetry
from fxloom_interfaces.config import from_options
from fxloom_interfaces.errors import Unsupported
from fxloom_interfaces.plugins import backend_function


def optimize(backend: Backend | str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that runs a function or module with its frames captured and their graphs compiled by `backend`.

    A class stays itself: the calls of its instances are captured.

    backend: a function `(gm, example_inputs) -> callable`, or the name of an installed one ("eager" always is); None is
    eager too. options: fields of CaptureConfig. ConfigError for an unknown one or for what can't be a backend, PluginError
    for a name that nobody registered.
    """
    function = None if backend is None else backend_function(backend)
    config = from_options(CaptureConfig, {"backend": function, **options})

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        return compile_calls(fn, config) if isinstance(fn, type) else compile_callable(fn, config)

    return decorate


@dataclass(frozen=True, slots=True)
class Capture:
    """What one call was captured into, in the order in which its frames were compiled.

    result: what the call returned. seconds: by phase.
    """

    result: Any
    frames: tuple[CapturedFrame, ...]
    breaks: tuple[Break, ...]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def reports(self) -> tuple[FrameReport, ...]:
        return tuple(frame.info for frame in self.frames)

    @property
    def graphs(self) -> tuple[torch.fx.GraphModule, ...]:
        return tuple(report.graph for report in self.reports if report.graph is not None)

    @property
    def graph(self) -> torch.fx.GraphModule:
        """The only graph; ValueError if there are more or none."""
        if len(self.graphs) != 1:
            raise ValueError(f"{self.graph_count} graphs, not one; breaks:\n" + "\n".join(map(str, self.breaks)))
        return self.graphs[0]

    @property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(guard for frame in self.frames for guard in frame.guards)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """Places at which the program left a graph (`breaks`); frames that enclose each other count one place once."""
        return len(self.breaks)

    @property
    def op_count(self) -> int:
        calls = ("call_function", "call_method", "call_module")
        return sum(node.op in calls for graph in self.graphs for node in graph.graph.nodes)

    def __str__(self) -> str:
        lines = [
            f"{self.graph_count} graphs, {self.op_count} ops, {self.graph_break_count} graph breaks, {len(self.guards)} guards, "
            f"{len(self.frames)} frames"
        ]
        for report in self.reports:
            ops = 0 if report.graph is None else sum(node.op.startswith("call") for node in report.graph.graph.nodes)
            lines.append(f"  {report.name}: {ops} ops{'' if report.broke is None else f', then {report.broke.key}'}")
        for number, broke in enumerate(self.breaks, 1):
            lines.append(f"break {number}: {broke}")
        for phase, seconds in sorted(self.seconds.items()):
            lines.append(f"{phase}: {seconds:.3f} s")
        return "\n".join(lines)


def capture(
    fn: Callable[..., Any], *args: Any, backend: Backend | None = None, fullgraph: bool = False, **kwargs: Any
) -> Capture:
    """Call `fn(*args, **kwargs)` once, captured; the graphs, guards and breaks of the frames that it ran.

    fullgraph: a break raises `Unsupported` instead.
    """
    frames: list[CapturedFrame] = []
    seconds: dict[str, float] = {}

    breaks: dict[Break, None] = {}  # frames that enclose each other break at the same place

    def listen(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.PhaseEnded) and event.phase.startswith("dynamo."):
            seconds[event.phase] = seconds.get(event.phase, 0.0) + event.seconds
        if isinstance(event, telemetry.GraphBroke) and event.key not in ENDINGS:
            breaks[Break(event.key, event.details, event.site)] = None

    runs = backend is not _not_to_run
    config = CaptureConfig(backend=backend, fullgraph=fullgraph, runs=runs, on_capture=frames.append)
    result = None
    with telemetry.listen(listen), suppress(_NotRun):
        result = compile_callable(fn, config)(*args, **kwargs)
    return Capture(result, tuple(frames), tuple(breaks), seconds)


class _NotRun(BaseException):
    """In the place of a graph's results."""


def _not_to_run(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        raise _NotRun

    return run


_not_to_run.takes_integers = True  # type: ignore[attr-defined]  # nothing is computed by the graph


def export(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Capture:
    """One whole graph, which is not run: `.graph` and `.guards` of the result. Unsupported, with the break, otherwise.

    As nothing runs, the program may be for devices that this machine doesn't have.
    """
    found = capture(fn, *args, backend=_not_to_run, fullgraph=True, **kwargs)
    if len(found.graphs) != 1:
        raise Unsupported(f"{getattr(fn, '__qualname__', fn)} was captured into {found.graph_count} graphs:\n{found}")
    return found


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Capture:
    """`capture`; print it to read how the call was captured, where it broke, and what to change."""
    return capture(fn, *args, **kwargs)
