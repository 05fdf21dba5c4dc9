"""Is capture sound? Change, one at a time, everything that a program read, and demand that its answer stays eager's.

    from fxloom_dynamo.testing import perturb

    def make():                      # builds the program anew, so that one run can't disturb the next
        model = Model()
        return model, (torch.ones(3),)

    report = perturb(make)
    assert not report.wrong, report

In: a function that makes a program and its arguments. Out: a `PerturbationReport`. What is changed does not come from the
guards, whose gaps are what we look for, but from the heap: everything that capture looked at, whether it guarded it or
not. For each change the program is captured and called once; then the change is made; then the captured program is called
again and so is, in a second world made the same way, the plain one. The two have to agree in results, in exceptions and in
what they did to their arguments. A guard that fires shows as a new capture; none has to, where the answer stays the same.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import Backend, CaptureConfig
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_dynamo.perturbation.comparison import same
from fxloom_dynamo.perturbation.input_changes import Change, all_changes
from fxloom_interfaces.errors import FallbackWarning

Program = tuple[Callable[..., Any], tuple[Any, ...]]

@dataclass(frozen=True, slots=True)
class Finding:
    """What happened after one change. captures: frames captured anew in the call after it."""

    change: str
    captures: int
    expected: Any
    got: Any
    agrees: bool

    def __str__(self) -> str:
        if self.agrees:
            return f"{self.change}: {'a guard fired' if self.captures else 'the answer stayed the same'}"
        fired = "although a guard fired" if self.captures else "and no guard fired"
        return f"{self.change}: eager {_show(self.expected)}, captured {_show(self.got)}, {fired}"


@dataclass(frozen=True, slots=True)
class PerturbationReport:
    """All findings of one program. skipped: changes that could not be made."""

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """Changes after which the captured program did not do what eager does."""
        return tuple(finding for finding in self.findings if not finding.agrees)

    @property
    def fired(self) -> int:
        """After how many changes a guard fired."""
        return sum(finding.captures > 0 for finding in self.findings)

    def __str__(self) -> str:
        head = (
            f"{len(self.findings)} changes: {self.fired} made a guard fire, {len(self.wrong)} gave a wrong answer; "
            f"{len(self.skipped)} could not be made"
        )
        return "\n".join([head, *(f"  {finding}" for finding in self.wrong)])


def perturb(
    make: Callable[[], Program],
    *,
    limit: int | None = None,
    seed: int = 0,
    backend: Backend | None = None,
    grad: bool | None = None,
    calls: int = 1,
    tolerance: float = 0.0,
) -> PerturbationReport:
    """Change what the program read, one thing at a time, and compare captured with plain calls.

    make: returns `(fn, args)`, equal and independent at every call but for what is global; it runs with one random seed.
    limit: look at that many changes only, drawn with `seed`. grad: run under this grad mode, the current one if None.
    calls: how often the captured program has run before the change (guards that held a few times are checked in a shorter
    way). tolerance: how far, absolutely and relatively, elements may be apart; for backends that round in another way, and
    for recurrent layers. Changes to globals, classes and torch's state are undone.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad):
        world = _World(make, backend, calls)
        labels = [change.label for change in world.changes()]
        if limit is not None and len(labels) > limit:
            labels = sorted(random.Random(seed).sample(labels, limit), key=labels.index)
        findings, skipped = [], []
        for label in labels:
            finding = _try(make, backend, calls, label, tolerance)
            if finding is None:
                skipped.append(label)
            else:
                findings.append(finding)
    return PerturbationReport(tuple(findings), tuple(skipped))


def _try(make: Callable[[], Program], backend: Backend | None, calls: int, label: str, tolerance: float) -> Finding | None:
    outcomes = []
    captures = 0
    for captured in (True, False):
        world = _World(make, backend, calls)
        change = next((change for change in world.changes() if change.label == label), None)
        if change is None:
            return None
        try:
            undo = change.apply()
        except Exception:  # read-only, or refused by the object's own code
            return None
        before = world.captures
        try:
            outcomes.append(world.call(captured))
        finally:
            undo()
        if captured:
            captures = world.captures - before
    got, expected = outcomes
    return Finding(label, captures, expected, got, same(expected, got, tolerance))


class _World:
    """One program, captured and called `calls` times."""

    def __init__(self, make: Callable[[], Program], backend: Backend | None, calls: int) -> None:
        torch.manual_seed(0)
        self.fn, args = make()
        self.args = list(args)
        self.captures = 0
        self.heaps: list[ShadowHeap] = []
        config = CaptureConfig(backend=backend, on_capture=self._count, on_heap=self.heaps.append)
        self.compiled = compile_callable(self.fn, config)
        with warnings.catch_warnings():  # a program that runs in eager anyway would pass every test
            warnings.filterwarnings("error", category=FallbackWarning)
            outcome = self.call(True)[0]
            for _ in range(calls - 1):
                self.call(True)
        if outcome[0] == "raised" and outcome[1] is FallbackWarning:
            raise AssertionError(outcome[2])

    def _count(self, _: Any) -> None:
        self.captures += 1

    def call(self, captured: bool) -> Any:
        torch.manual_seed(0)
        result: tuple[Any, ...]
        try:
            result = ("returned", (self.compiled if captured else self.fn)(*self.args))
        except Exception as error:
            result = ("raised", type(error), str(error))
        return result, self.args

    def changes(self) -> list[Change]:
        seen: dict[str, int] = {}
        out = []
        for change in all_changes(self.fn, self.args, self.heaps):
            number = seen[change.label] = seen.get(change.label, -1) + 1
            out.append(Change(f"{change.label} #{number}", change.apply) if number else change)
        return out


def _show(outcome: Any) -> str:
    text = " ".join(repr(outcome).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


__all__ = ["Finding", "PerturbationReport", "perturb", "same"]
