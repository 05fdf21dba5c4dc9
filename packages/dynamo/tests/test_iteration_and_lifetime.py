"""Iterators that live across a break notice changes as they do in plain Python; dropped generators run their `finally`."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import check

from fxloom_dynamo import graph_break, optimize


def dict_grows_after_break(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
    for _ in d:
        graph_break()
        d["new"] = 1
    return x + 1


def items_with_break(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
    for _, value in d.items():
        x = x + value
        graph_break()
    return x


def values_with_break(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
    for value in d.values():
        d["p"] = value + 1
        graph_break()
        x = x * value
    return x


def dict_shrinks(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
    x.add_(1)
    for _ in d:
        d.pop("p")
    return x


def set_grows(x: torch.Tensor, s: set[int]) -> torch.Tensor:
    for item in s:
        s.add(item + 50)
    return x


def set_grows_after_break(x: torch.Tensor, s: set[int]) -> torch.Tensor:
    for item in s:
        graph_break()
        s.add(item + 50)
    return x


@pytest.mark.parametrize("program", [dict_grows_after_break, items_with_break, values_with_break, dict_shrinks])
def test_iterator_of_dict_is_the_programs(program: Any) -> None:
    check(program, torch.ones(2), {"p": 1, "q": 2})


@pytest.mark.parametrize("program", [set_grows, set_grows_after_break])
def test_iterator_of_set_is_the_programs(program: Any) -> None:
    check(program, torch.ones(2), {1, 2, 3})


def drops_generator_in_try(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    def steps() -> Any:
        try:
            yield 1
            yield 2
        finally:
            log.append("end")

    next(steps())
    log.append("after")
    return x + 1


def drops_generator_before_break(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    def steps() -> Any:
        try:
            yield from range(3)
        finally:
            log.append("end")

    next(steps())
    graph_break()
    log.append("after")
    return x + 1


@pytest.mark.parametrize("program", [drops_generator_in_try, drops_generator_before_break])
def test_dropped_generator_runs_its_finally_at_once(program: Any) -> None:
    check(program, torch.ones(2), [])


def test_dropped_generator_outside_of_try_is_captured() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + next(number for number in (1, 2))

    assert check(program, torch.ones(2), fullgraph=True).graphs == 1


def test_finders_that_an_import_calls_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        looked: list[str] = []

        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
            cls.looked.append(name)

    def program(x: torch.Tensor) -> torch.Tensor:
        graph_break()
        import stringprep

        return x + isinstance(stringprep, types.ModuleType)

    frames: list[Any] = []
    from fxloom_dynamo.code_cache.callables import compile_callable
    from fxloom_dynamo.config import CaptureConfig

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "stringprep", raising=False)
    compiled = compile_callable(program, CaptureConfig(on_capture=frames.append))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert "stringprep" in Finder.looked
    assert all("find_spec" not in frame.info.name for frame in frames)


def test_what_an_imported_module_calls_is_not_captured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "module_that_computes.py").write_text("import torch\n\ndef table():\n    return torch.ones(2) * 3\n\nTABLE = table()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program(x: torch.Tensor) -> torch.Tensor:
        graph_break()
        import module_that_computes

        return x + module_that_computes.TABLE

    from fxloom_dynamo.code_cache.callables import compile_callable
    from fxloom_dynamo.config import CaptureConfig

    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(on_capture=frames.append))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert frames and all(frame.info.name != "table" for frame in frames)


def test_a_librarys_function_is_captured_where_it_is_what_was_compiled() -> None:
    """Other regions, which met it as part of a library, run it as it is."""
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def program(x: torch.Tensor) -> torch.Tensor:
        graph_break()
        inner.step(lambda: graph_break())  # type: ignore[arg-type, return-value]  # a break, so that the frame is met
        return x + 1

    optimize()(program)(torch.ones(2))
    model.weight.grad = torch.ones(1, 2)
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    optimize(backend)(torch.optim.SGD(model.parameters(), lr=0.1).step)()
    assert len(graphs) == 1


def test_error_of_replacement_code_comes_from_the_users_line() -> None:
    def program(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
        x = x + 1
        graph_break()
        return x + d["absent"]  # the line

    with pytest.raises(KeyError) as caught:
        optimize()(program)(torch.ones(2), {})
    trace = caught.value.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    assert trace.tb_frame.f_code.co_filename == __file__
    assert trace.tb_lineno == program.__code__.co_firstlineno + 3


def list_changes_under_reversed(x: torch.Tensor, xs: list[int], s: set[int]) -> torch.Tensor:
    for a in reversed(xs):
        xs[1:2] = [a, 0]
        s.add(a)
        graph_break()
        x = x + a
        if len(xs) > 8:
            break
    return x


def list_changes_under_its_iterator(x: torch.Tensor, xs: list[int], s: set[int]) -> torch.Tensor:
    for a in xs:
        xs.append(a + 1)
        graph_break()
        s.add(a)
        x = x + a
        if len(xs) > 8:
            break
    return x


@pytest.mark.parametrize("program", [list_changes_under_reversed, list_changes_under_its_iterator])
def test_iterator_of_a_list_that_changes_is_where_the_program_had_it(program: Any) -> None:
    check(program, torch.ones(2), [3, 1], {1})


def unbound_after_break(x: torch.Tensor) -> Any:
    value = 1

    def inner() -> int:
        return value  # noqa: F821  # deleted below

    graph_break()
    del value
    try:
        return x + value  # type: ignore[used-before-def]  # noqa: F821
    except NameError as error:
        return x, type(error).__name__, str(error)


def test_a_deleted_variable_of_a_closure_across_a_break() -> None:
    """The rest of a function has the function's own cells as free variables; the exception is that of a local one."""
    check(unbound_after_break, torch.ones(2))


@pytest.mark.xfail(strict=True, reason="the interpreter runs the rest of the function, where an own cell is a free variable: NameError")
def test_a_deleted_variable_of_a_closure_in_code_left_to_python() -> None:
    async def later(q: int) -> int:
        return q

    def program(x: torch.Tensor) -> Any:
        value = 1

        def inner() -> int:
            return value  # noqa: F821  # deleted below

        try:
            later(2).send(None)
        except StopIteration as stop:
            x = x + stop.value
        graph_break()
        del value
        return x + value  # type: ignore[used-before-def]  # noqa: F821

    check(program, torch.ones(2))
