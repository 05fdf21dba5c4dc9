"""Trace functions, debuggers, coverage and profilers see the program's own lines; `warnings` and `sys._getframe` too."""

from __future__ import annotations

import cProfile
import inspect
import linecache
import pstats
import sys
import threading
import traceback
import warnings
from typing import Any

import pytest
import torch
from programs import check

from fxloom_dynamo import graph_break, optimize
from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig


def helper(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y * 2


def program(x: torch.Tensor, n: int) -> torch.Tensor:
    x = helper(x)
    for i in range(n):
        graph_break()
        x = x + i
    return x


def _lines(run: Any) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []

    def follow(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename == __file__ and event == "line" and frame.f_code.co_name in ("helper", "program"):
            seen.append((frame.f_code.co_name, frame.f_lineno))
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        run()
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize("warm", [False, True])
def test_a_trace_function_sees_every_line(warm: bool) -> None:
    compiled = optimize()(program)
    x = torch.ones(2)
    if warm:
        compiled(x, 2)
    assert _lines(lambda: compiled(x, 2)) == _lines(lambda: program(x, 2))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
@pytest.mark.parametrize("tool", [0, 1, 4])
def test_monitoring_sees_every_line(tool: int) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]  # new in 3.12

    def lines(run: Any) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        def note(code: Any, line: int) -> None:
            if code.co_filename == __file__ and code.co_name in ("helper", "program"):
                seen.append((code.co_name, line))

        monitoring.use_tool_id(tool, "test")
        monitoring.register_callback(tool, monitoring.events.LINE, note)
        monitoring.set_events(tool, monitoring.events.LINE)
        try:
            run()
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
        return seen

    compiled = optimize()(program)
    x = torch.ones(2)
    compiled(x, 2)
    assert lines(lambda: compiled(x, 2)) == lines(lambda: program(x, 2))


def test_a_profiler_names_the_programs_functions_and_sees_compiled_code() -> None:
    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(on_capture=frames.append))
    profiler = cProfile.Profile()
    with profiler:
        compiled(torch.ones(2), 2)
    assert any(frame.info.graph is not None for frame in frames)
    stats: Any = pstats.Stats(profiler)
    assert (__file__, program.__code__.co_firstlineno, "program") in stats.stats


def counts(n: int) -> int:
    total = 0
    for i in range(n):
        total += i
    return total


def test_a_trace_function_that_the_program_sets_sees_what_is_called_from_then_on() -> None:
    def traces(x: torch.Tensor) -> Any:
        seen: list[Any] = []

        def follow(frame: Any, event: str, arg: Any) -> Any:
            seen.append((frame.f_code.co_name, event, frame.f_lineno))
            return follow

        x = x + 1
        before = sys.gettrace()
        sys.settrace(follow)
        counts(2)
        sys.settrace(before)
        return x * 2, seen

    def caller(x: torch.Tensor) -> Any:
        return traces(x + 1)

    counted = check(caller, torch.ones(2))
    assert counted.graphs == 2  # in each function what is before sys.settrace; the rest runs as it is


def test_a_trace_function_that_raises_takes_itself_away() -> None:
    def traces(x: torch.Tensor) -> Any:
        def follow(frame: Any, event: str, arg: Any) -> Any:
            raise ValueError(frame.f_code.co_name)

        x = x + 1
        sys.settrace(follow)
        try:
            counts(2)
        except ValueError as error:
            return x * 2, str(error), sys.gettrace()
        finally:
            sys.settrace(None)
        return x

    before = sys.gettrace()
    check(traces, torch.ones(2))
    sys.settrace(before)


def test_reports_leave_the_cache_of_source_lines_as_it_was() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        graph_break()
        return x * 2

    linecache.clearcache()
    optimize()(breaks)(torch.ones(2))
    assert __file__ not in linecache.cache
    linecache.checkcache()


def where() -> tuple[str, int]:
    frame = sys._getframe(1)
    return frame.f_code.co_name, frame.f_lineno


def test_frames_of_a_broken_function_are_those_of_one_function() -> None:
    def names(depth: int) -> list[str]:
        frame: Any = sys._getframe(1)
        found = []
        for _ in range(depth):
            found.append(frame.f_code.co_name)
            frame = frame.f_back
        return found

    def looks(x: torch.Tensor) -> Any:
        x = x + 1
        graph_break()
        first = where()
        for _ in range(3):
            graph_break()
            x = x * 2
        return x, first, where(), names(2)

    def caller(x: torch.Tensor) -> Any:
        return looks(x + 1)

    check(caller, torch.ones(2))


def test_warnings_name_the_callers_line() -> None:
    def warns(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        graph_break()
        warnings.warn("one", stacklevel=1)
        graph_break()
        warnings.warn("two", stacklevel=2)
        return x * 2

    def caller(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        return warns(x)

    def noted(fn: Any) -> list[tuple[str, int, str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn(torch.ones(2))
        return [(str(item.message), item.lineno, item.filename) for item in caught if item.filename == __file__]

    compiled = optimize()(caller)
    expected = noted(caller)
    assert len(expected) == 2
    assert noted(compiled) == expected
    assert noted(compiled) == expected


def test_tracebacks_have_one_entry_for_a_function() -> None:
    def fails(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
        x = x + 1
        for _ in range(3):
            graph_break()
        return x + d["absent"]

    def caller(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        return fails(x, {})

    def entries(fn: Any) -> list[tuple[str, int | None]]:
        try:
            fn(torch.ones(2))
        except KeyError as error:
            return [(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)[1:]]
        raise AssertionError("no exception")

    compiled = optimize()(caller)
    assert entries(compiled) == entries(caller)
    assert entries(compiled) == entries(caller)


def test_the_programs_stack_as_inspect_shows_it() -> None:
    def shows(x: torch.Tensor) -> Any:
        x = x + 1
        graph_break()
        return x, [(entry.function, entry.lineno) for entry in inspect.stack()[:1]]

    check(shows, torch.ones(2))


def test_recursion_limit_is_the_programs() -> None:
    def deep(x: torch.Tensor, n: int) -> torch.Tensor:
        graph_break()
        return x + 1 if n == 0 else deep(x, n - 1)

    def within(x: torch.Tensor, limit: int, n: int) -> Any:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        try:
            return deep(x, n)
        except RecursionError:
            return "too deep"
        finally:
            sys.setrecursionlimit(before)

    depth = len(inspect.stack())
    x = torch.ones(2)
    assert torch.equal(optimize()(within)(x, depth + 150, 60), x + 1)
    assert optimize()(within)(x, depth + 60, 400) == "too deep"


def test_threads_with_trace_functions_of_their_own() -> None:
    compiled = optimize()(program)
    x = torch.ones(2)
    expected = program(x, 2)
    results: list[Any] = []

    def traced() -> None:
        results.append(_lines(lambda: results.append(torch.equal(compiled(x, 2), expected))))

    def untraced() -> None:
        results.append(torch.equal(compiled(x, 2), expected))

    threads = [threading.Thread(target=target) for target in (traced, untraced, traced, untraced)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [item for item in results if isinstance(item, list)]
    assert results.count(True) == 4
    assert len(lines) == 2 and lines[0] == lines[1] and lines[0]
