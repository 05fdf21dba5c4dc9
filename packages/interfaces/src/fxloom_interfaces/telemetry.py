"""One event sink for all layers. A layer says what happened; statistics, logs, `explain` and reports listen.

In: events, frozen dataclasses. Out: calls of all listeners in the emitting thread, in order of registration; they must not raise.
Invariant: emitting with no listener costs one truth test.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fxloom_interfaces.errors import FallbackWarning, Site


@dataclass(frozen=True, slots=True)
class Event:
    """Root of events."""


@dataclass(frozen=True, slots=True)
class PhaseEnded(Event):
    """A timed phase of a compilation ended. seconds: wall time; inner phases count in the outer ones too."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphCaptured(Event):
    """Dynamo finished one graph. ops: number of call nodes; guards: number of guards."""

    name: str
    ops: int
    guards: int
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class GraphBroke(Event):
    """Capture broke. key: catalogue key; details and remedy in words."""

    key: str
    details: str
    remedy: str
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class GraphRaised(Event):
    """A compiled graph raised this; the function runs from its start in eager, with its effects and handlers in order."""

    error: str


@dataclass(frozen=True, slots=True)
class RanEager(Event):
    """What was to be compiled runs in eager, or a plugin is left out. kind: what it is counted by; cause: in words.

    Kinds: capture_fault, backend_failed, recompile_limit, guard_fails, break_limit, graph_alone_raised, plugin.
    """

    kind: str
    cause: str
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class FrameCompiled(Event):
    """A frame got a new cache entry; recompile_reason is the failed guard in words, empty the first time."""

    name: str
    recompile_reason: str = ""
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class PassRan(Event):
    """A graph pass changed something. point: where it ran (`fxloom_interfaces.passes.POINTS`); count: how many changes it made."""

    name: str
    point: str
    count: int


@dataclass(frozen=True, slots=True)
class KernelsBuilt(Event):
    """Generated kernels of one graph became callable. cached: found in the artifact store, no compiler ran."""

    plugin: str
    names: tuple[str, ...]
    compiler_runs: int
    cached: bool


@dataclass(frozen=True, slots=True)
class LibraryCalled(Event):
    """The program of a graph calls a library on purpose (GEMM, convolution, attention). count: calls per run."""

    op: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class FellBack(Event):
    """The program of a graph runs an operator by its eager kernel for lack of a lowering."""

    op: str
    reason: str
    count: int = 1
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class KernelsKeptApart(Event):
    """Two kernels of one graph that read or write the same memory were not made one. For listeners that take artifacts only.

    first, second: names, the one that runs first in front. reason: in words. count: how often such a pair occurs in the graph.
    """

    first: str
    second: str
    reason: str
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.first}, {self.second}{times}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ReplaySkipped(Event):
    """A replayer ran the callable instead of a recording."""

    plugin: str
    reason: str


@dataclass(frozen=True, slots=True)
class ArtifactWritten(Event):
    """A named artefact of one compilation: `fx_graph_readable.py` and so on. text is its whole content."""

    name: str
    text: str = field(repr=False)


Listener = Callable[[Event], None]

_listeners: tuple[Listener, ...] = ()
_artifact_listeners: tuple[Listener, ...] = ()  # those that take ArtifactWritten too
_lock = threading.Lock()


def emit(event: Event) -> None:
    """Hand `event` to every listener; an ArtifactWritten only to those that asked for artefacts."""
    for listener in _artifact_listeners if isinstance(event, ArtifactWritten) else _listeners:
        listener(event)


_warned: dict[object, object] = {}  # what `warnings` keeps to show a text once a place


def ran_eager(kind: str, cause: str, text: str, site: Site | None = None) -> None:
    """Emit `RanEager`, and warn with `text` at the user's line; without one, where the caller was called.

    The same text at the same line is shown once, unless the program's filters say otherwise.
    """
    emit(RanEager(kind, cause, site))
    if site is None:
        warnings.warn(text, FallbackWarning, stacklevel=3)
    else:
        warnings.warn_explicit(text, FallbackWarning, site.file, site.line, registry=_warned)  # type: ignore[arg-type]  # of str or tuples


def wants_artifacts() -> bool:
    """Whether someone takes ArtifactWritten; their text is costly to make."""
    return bool(_artifact_listeners)


@contextmanager
def listen(listener: Listener, *, artifacts: bool = False) -> Iterator[None]:
    """Register `listener` for the duration of a block."""
    add_listener(listener, artifacts=artifacts)
    try:
        yield
    finally:
        remove_listener(listener)


def add_listener(listener: Listener, *, artifacts: bool = False) -> None:
    """Register `listener`. artifacts: it takes ArtifactWritten events too."""
    global _listeners, _artifact_listeners
    with _lock:
        _listeners = (*_listeners, listener)
        if artifacts:
            _artifact_listeners = (*_artifact_listeners, listener)


def remove_listener(listener: Listener) -> None:
    """Take back `add_listener`."""
    global _listeners, _artifact_listeners
    with _lock:
        _listeners = tuple(known for known in _listeners if known is not listener)
        _artifact_listeners = tuple(known for known in _artifact_listeners if known is not listener)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Time a phase: `with phase("aot.trace"): ...`. Reported also when the block raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        if _listeners:
            emit(PhaseEnded(name, time.perf_counter() - start))
