"""Counters over everything compiled in this process: `fxloom.stats()`.

In: events of telemetry, from any thread. Out: a `Stats` record. Invariant: every count comes from an event, whichever
layer emitted it, so that nothing is counted twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import Site


@dataclass(frozen=True, slots=True)
class Break:
    """One graph break: catalogue key, what it was about, what to change, where."""

    key: str
    details: str
    remedy: str
    site: Site | None

    def __str__(self) -> str:
        where = f" at {self.site}" if self.site is not None else ""
        return f"{self.key}{where}: {self.details} {self.remedy}".rstrip()


@dataclass(slots=True)
class Stats:
    """Counts since the start or the last `reset`.

    graphs: captured. compiles: cache entries made (frames and continuations). kernels: generated, by plugin.
    compiler_runs: compilers started. cached_builds: graphs whose kernels were all found in the cache.
    library_calls, fallbacks: per run of the compiled graphs, by operator. fallbacks also counts what ran in eager though it was
    to be compiled, by kind: capture_fault, backend_failed (suppress_errors), recompile_limit, guard_fails, break_limit, plugin
    (left out), graph_raised (calls that ran from their start since a graph raised), graph_alone_raised (those where eager did not).
    fallback_reasons: the last cause of each. seconds: wall time by phase, inner phases included in outer ones.
    replay_skips: reasons of replayers. passes: changes that graph passes made, by name of the pass.
    """

    graphs: int = 0
    compiles: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    compiler_runs: int = 0
    cached_builds: int = 0
    library_calls: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    fallback_reasons: dict[str, str] = field(default_factory=dict)
    break_reasons: list[Break] = field(default_factory=list)
    recompile_reasons: list[str] = field(default_factory=list)
    replay_skips: list[str] = field(default_factory=list)
    passes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    @property
    def graph_breaks(self) -> int:
        return len(self.break_reasons)

    def add(self, event: telemetry.Event) -> None:
        """Count one event."""
        match event:
            case telemetry.PhaseEnded(phase=phase, seconds=seconds):
                self.seconds[phase] += seconds  # type: ignore[assignment]  # a Counter of floats
            case telemetry.GraphCaptured():
                self.graphs += 1
            case telemetry.GraphBroke(key=key, details=details, remedy=remedy, site=site):
                self.break_reasons.append(Break(key, details, remedy, site))
            case telemetry.FrameCompiled(name=name, recompile_reason=reason):
                self.compiles += 1
                if reason:
                    self.recompile_reasons.append(f"{name}: {reason}")
            case telemetry.PassRan(name=name, count=count):
                self.passes[name] += count
            case telemetry.KernelsBuilt(plugin=plugin, names=names, compiler_runs=runs, cached=cached):
                self.kernels[plugin] += len(names)
                self.compiler_runs += runs
                self.cached_builds += cached
            case telemetry.LibraryCalled(op=op, count=count):
                self.library_calls[op] += count
            case telemetry.FellBack(op=op, reason=reason, count=count):
                self.fallbacks[op] += count
                self.fallback_reasons[op] = reason
            case telemetry.RanEager(kind=kind, cause=cause):
                self.fallbacks[kind] += 1
                self.fallback_reasons[kind] = cause
            case telemetry.GraphRaised(error=error):
                self.fallbacks["graph_raised"] += 1
                self.fallback_reasons["graph_raised"] = error
            case telemetry.ReplaySkipped(reason=reason):
                self.replay_skips.append(reason)


class Recorder:
    """A telemetry listener that counts into `stats`; safe to call from several threads."""

    def __init__(self) -> None:
        self.stats = Stats()
        self._lock = threading.Lock()

    def __call__(self, event: telemetry.Event) -> None:
        with self._lock:
            self.stats.add(event)

    def reset(self) -> None:
        with self._lock:
            self.stats = Stats()


#: Counts everything from the import of the umbrella on.
RECORDER = Recorder()
telemetry.add_listener(RECORDER)
