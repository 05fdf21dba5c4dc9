"""What runs in eager though it was to be compiled is told once, with cause and place, and counted each time."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxloom_dynamo import optimize
from fxloom_dynamo.codegen.replacement import ReplacementCode
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import BackendCompilerFailed, FallbackWarning, GraphRejected, Unsupported

X = torch.ones(3)


def line_of(text: str) -> int:
    """Of this file."""
    lines = inspect.getsource(inspect.getmodule(line_of)).split("\n")
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def told(events: list[telemetry.Event]) -> list[str]:
    return [event.kind for event in events if isinstance(event, telemetry.RanEager)]


# ---- faults of capture -------------------------------------------------------------------------------------------------------


def mistaken(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def _mistake(ev: Any, args: Any, kwargs: Any) -> None:
    raise ZeroDivisionError("a mistake of capture's")


FUNCTIONS[mistaken] = _mistake


def meets_a_mistake(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    return mistaken(x) + 1  # the mistake


def has_it_met(x: torch.Tensor) -> torch.Tensor:
    return meets_a_mistake(x - 1) * 2


@pytest.mark.capture_fault
@pytest.mark.parametrize("program", [meets_a_mistake, has_it_met])
def test_a_fault_of_captures_is_told_at_the_users_line(program: Callable[..., Any]) -> None:
    events: list[telemetry.Event] = []
    compiled = optimize("eager")(program)
    with telemetry.listen(events.append), pytest.warns(FallbackWarning, match="ZeroDivisionError: a mistake of capture's") as warned:
        for _ in range(3):
            assert torch.equal(compiled(X), program(X))
    assert {(warning.filename, warning.lineno) for warning in warned} == {(__file__, line_of("# the mistake"))}
    assert set(told(events)) == {"capture_fault"}
    assert len(warned) == len(told(events)) <= 2, "once for each function that meets it"
    with pytest.raises(Unsupported, match="a mistake of capture's"):
        optimize("eager", fullgraph=True)(program)(X)


@pytest.mark.capture_fault
@pytest.mark.parametrize("ends", ["by a fault", "by the number of attempts"])
def test_a_function_that_capture_can_not_finish_is_told_of(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:  # not finished
        return x + 1

    def fail(self: Any) -> Any:
        raise KeyError("a mistake at the end")

    if ends == "by a fault":
        monkeypatch.setattr(ReplacementCode, "finish_return", fail)
    else:
        monkeypatch.setattr("fxloom_dynamo.evaluation.attempts._MAX_ATTEMPTS", 0)
    events: list[telemetry.Event] = []
    compiled = optimize("eager")(program)
    with telemetry.listen(events.append), pytest.warns(FallbackWarning, match="a mistake at the end|0 attempts") as warned:
        for _ in range(3):
            assert torch.equal(compiled(X), X + 1)
    assert len(warned) == 1
    assert (warned[0].filename, told(events)) == (__file__, ["capture_fault"])
    with pytest.raises(Unsupported, match="a mistake at the end|0 attempts"):
        optimize("eager", fullgraph=True)(program)(X)


# ---- backends ----------------------------------------------------------------------------------------------------------------


def fails(gm: Any, inputs: Any) -> Any:
    raise FileNotFoundError("g++")


def gives_nothing(gm: Any, inputs: Any) -> Any:
    return None


def rejects(gm: Any, inputs: Any) -> Any:
    raise GraphRejected(next(node for node in gm.graph.nodes if node.op == "placeholder"), "not this one")


@pytest.mark.parametrize(("backend", "cause"), [(fails, "FileNotFoundError: g"), (gives_nothing, "NoneType"), (rejects, "not this one")])
def test_a_backend_that_fails_is_told_of_under_suppress_errors(backend: Callable[..., Any], cause: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:  # not compiled
        return x + 1

    backend.takes_integers = True  # type: ignore[attr-defined]
    events: list[telemetry.Event] = []
    compiled = optimize(backend, suppress_errors=True)(program)
    with telemetry.listen(events.append), pytest.warns(FallbackWarning, match=f"backend '{backend.__name__}' failed.*{cause}") as warned:
        for _ in range(3):
            assert torch.equal(compiled(X), X + 1)
    assert [(warning.filename, warning.lineno) for warning in warned] == [(__file__, line_of("# not compiled"))]
    assert told(events) == ["backend_failed"]
    with pytest.raises(BackendCompilerFailed, match=cause):
        optimize(backend)(program)(X)


# ---- graphs that raise -------------------------------------------------------------------------------------------------------


NOTES: list[int] = []


def raises_when_run(gm: Any, inputs: Any) -> Any:
    def run(*inputs: Any) -> Any:
        raise RuntimeError("the kernel is wrong")

    return run


raises_when_run.takes_integers = raises_when_run.writes_last = True  # type: ignore[attr-defined]


def effects(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    return x + 1


def two_ways_out(x: torch.Tensor) -> Any:
    NOTES.append(1)
    if len(NOTES) < 0:
        return None
    return x + 1


def in_a_with(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x + 1


def in_a_try(x: torch.Tensor) -> torch.Tensor:
    try:
        return x + 1
    except ValueError:
        return x
    finally:
        NOTES.append(1)


def breaks_behind(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    y = x + 1
    try:
        y = y * (2 if y.sum() > 0 else 3)
    finally:
        NOTES.append(2)
    return y


def with_a_prediction(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    if x.sum() < 0:
        raise ValueError(x)
    return x + 1


def calls_with_a_mode(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    return in_a_with(x) * 2


@pytest.mark.parametrize("program", [effects, two_ways_out, in_a_with, in_a_try, breaks_behind, with_a_prediction, calls_with_a_mode])
def test_a_graph_that_alone_raises_is_told_of_once_and_counted_each_time(program: Callable[..., Any]) -> None:
    compiled = optimize(raises_when_run)(program)
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append), pytest.warns(FallbackWarning, match="eager did not: RuntimeError: the kernel is wrong") as warned:
        for _ in range(3):
            NOTES.clear()
            assert torch.equal(compiled(X), program(X))
            half = len(NOTES) // 2
            assert NOTES[:half] == NOTES[half:]
    mine = [warning for warning in warned if program.__name__ in str(warning.message)]
    assert [(warning.filename, warning.lineno) for warning in mine] == [(__file__, program.__code__.co_firstlineno)]
    assert len(warned) <= 2, "what it calls is told of once, too"
    assert told(events).count("graph_alone_raised") == sum(isinstance(event, telemetry.GraphRaised) for event in events) >= 3


def raises_too(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    return x[index]


def handles(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    try:
        return x[index]
    except IndexError:
        return x


def suppresses(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    with contextlib.suppress(IndexError):
        return x[index]
    return x


def calls_what_handles(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append(2)
    return handles(x, index) + 1


def calls_what_suppresses(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append(2)
    with torch.no_grad():
        return suppresses(x, index) + 1


@pytest.mark.parametrize("program", [raises_too, handles, suppresses, calls_what_handles, calls_what_suppresses])
@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_what_raises_in_eager_too_is_the_programs_and_not_told(program: Callable[..., Any]) -> None:
    compiled = optimize("eager")(program)
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append), warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in (0, 5, 1, 7):
            outcomes = []
            for run in (program, compiled):
                NOTES.clear()
                try:
                    outcomes.append((str(run(X, torch.tensor([index]))), list(NOTES)))
                except IndexError as error:
                    outcomes.append((str(error), list(NOTES)))
            assert outcomes[0] == outcomes[1]
    assert told(events) == []
    assert sum(isinstance(event, telemetry.GraphRaised) for event in events) >= 2


def test_a_warning_that_is_an_error_leaves_the_effects_in_order() -> None:
    NOTES.clear()
    with pytest.raises(FallbackWarning, match="the kernel is wrong"):
        optimize(raises_when_run)(effects)(X)
    assert NOTES == [1]


# ---- limits ------------------------------------------------------------------------------------------------------------------


def test_too_many_breaks_are_told_of() -> None:
    def program(x: torch.Tensor) -> float:  # breaks often
        total = (x + 1).sum().item()
        total += (x + total).sum().item()
        total += (x + total).sum().item()
        total += (x + total).sum().item()
        return total

    events: list[telemetry.Event] = []
    compiled = optimize("eager", break_limit=2)(program)
    with telemetry.listen(events.append), pytest.warns(FallbackWarning, match="more than 2 graph breaks") as warned:
        for _ in range(3):
            assert compiled(X) == program(X)
    assert [(warning.filename, warning.lineno) for warning in warned] == [(__file__, line_of("# breaks often"))]
    assert told(events) == ["break_limit"]


def test_too_many_compilations_are_told_of() -> None:
    events: list[telemetry.Event] = []
    compiled = optimize("eager", recompile_limit=2, dynamic=False)(effects)
    with telemetry.listen(events.append), pytest.warns(FallbackWarning, match="recompile_limit") as warned:
        for size in range(3, 8):
            compiled(torch.ones(size))
    assert [(warning.filename, warning.lineno) for warning in warned] == [(__file__, effects.__code__.co_firstlineno)]
    assert told(events) == ["recompile_limit"]
