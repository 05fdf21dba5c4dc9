"""Objects die where plain Python's frames let go of them: arguments, locals, values across breaks, what capture looked at."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fxloom_dynamo import capture, disable, graph_break, optimize, skip
from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.interpreter.frame import Frame


class Thing:
    def __init__(self) -> None:
        self.t = torch.ones(2)
        self.items: list[Any] = [1, {}]

    def plus(self) -> torch.Tensor:
        return self.t + 1


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Reference counts alone decide."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def whole(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x + thing.t


def breaks(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    x = x + thing.t
    graph_break()
    return x + thing.plus()


def raises(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    x = x + thing.t
    thing.items.append(3)
    raise ValueError(x)


def breaks_in_handler(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    try:
        graph_break()
        raise KeyError(thing)
    except KeyError:
        graph_break()
        return x + thing.t


def leaves_generator(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def held() -> Any:
        yield thing
        yield 2

    next(held())
    return x + 1


def breaks_in_closure(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        graph_break()
        return x + thing.t

    return inner(x)


def raises_in_c_code(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def divide(p: Any) -> Any:
        return p / (len(thing.items) - 2)

    return x + sum(map(divide, [1]))


def handles_what_c_code_raises(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def key(item: Any) -> Any:
        return thing.items[item]

    try:
        return x + max([5, 6], key=key)
    except IndexError:
        return x + thing.t


def a_generator_raises(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def made() -> Any:
        yield thing.t
        raise ValueError(thing)

    return sum(made(), x)


PROGRAMS = [
    whole,
    breaks,
    raises,
    breaks_in_handler,
    leaves_generator,
    breaks_in_closure,
    raises_in_c_code,
    handles_what_c_code_raises,
    a_generator_raises,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_that_capture_looked_at_lives_on(program: Any) -> None:
    compiled = optimize()(program)
    for run in (program, compiled, compiled):
        thing = Thing()
        alive = weakref.ref(thing)
        try:
            run(torch.ones(2), thing)
        except (ValueError, ZeroDivisionError):
            pass
        del thing
        assert alive() is None, run
        assert not [left for left in gc.get_objects(0) if isinstance(left, Frame)], "a cycle keeps what was evaluated"


def _both(program: Any, *args: Any) -> int:
    """Compare plain and captured results, twice; the number of graphs."""
    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(on_capture=frames.append))
    expected = program(*args)
    assert compiled(*args) == expected
    assert compiled(*args) == expected
    return sum(frame.info.graph is not None for frame in frames)


def gone(x: torch.Tensor, thing: Any, *more: Any, key: Any = None, **named: Any) -> list[bool]:
    x = x + 1
    references = [weakref.ref(item) for item in (thing, *more, key, *named.values())]
    thing = more = key = None  # type: ignore[assignment]  # let go
    named.clear()
    return [reference() is None for reference in references]


def test_a_callee_alone_holds_its_arguments() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x + 1
        return gone(x, Thing(), Thing(), key=Thing(), other=Thing())

    assert program(torch.ones(2)) == [True] * 4
    _both(program, torch.ones(2))


def test_a_method_may_let_go_of_its_receiver() -> None:
    class Own:
        def go(self) -> bool:
            reference = weakref.ref(self)
            del self
            return reference() is None

    def program(x: torch.Tensor) -> Any:
        x = x + 1
        return Own().go()

    _both(program, torch.ones(2))


def _skipped_rebinds(thing: Any) -> bool:
    reference = weakref.ref(thing)
    thing = None
    return reference() is None


def _skipped_deletes(*things: Any) -> bool:
    reference = weakref.ref(things[0])
    del things
    return reference() is None


def _skipped_shares(thing: Any) -> bool:
    def let_go() -> None:
        nonlocal thing
        del thing

    reference = weakref.ref(thing)
    let_go()
    return reference() is None


def _skipped_pops(**named: Any) -> bool:
    reference = weakref.ref(named["thing"])
    named.clear()
    return reference() is None


def test_frames_that_run_as_they_are_hold_their_arguments_alone_too() -> None:
    @skip
    def program() -> list[bool]:
        calls = [_skipped_rebinds(Thing()), _skipped_deletes(Thing()), _skipped_shares(Thing()), _skipped_pops(thing=Thing())]
        return calls

    for function in (_skipped_rebinds, _skipped_deletes, _skipped_shares, _skipped_pops):
        skip(function)
    assert optimize()(program)() == program() == [True] * 4


def test_a_variable_that_nothing_reads_holds_its_object_to_the_end() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x + 1
        thing = Thing()
        reference = weakref.ref(thing)
        graph_break()
        graph_break()
        return bool(x.sum() > 0), reference() is None

    assert _both(program, torch.ones(2)) >= 1


def test_a_rebound_parameter_lets_go_across_breaks() -> None:
    def makes(x: torch.Tensor, thing: Any) -> Any:
        x = x + 1
        reference = weakref.ref(thing)
        thing = None
        graph_break()
        return bool(x.sum() > 0), reference() is None

    def program(x: torch.Tensor) -> Any:
        x = x + 1
        return makes(x, Thing())

    assert program(torch.ones(2))[1]
    _both(program, torch.ones(2))


def test_values_on_the_stack_across_a_break_are_used_up() -> None:
    def program(x: torch.Tensor) -> Any:
        def note(thing: Any, _: Any) -> Any:
            return weakref.ref(thing)

        reference = note(Thing(), graph_break())
        graph_break()
        return bool((x + 1).sum() > 0), reference() is None

    _both(program, torch.ones(2))


def test_a_loop_with_a_break_does_not_nest() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            graph_break()
            x = x + 1
        return x

    compiled = optimize(recompile_limit=64)(program)
    assert torch.equal(compiled(torch.zeros(1), 5000), torch.full((1,), 5000.0))


def test_code_that_runs_when_an_object_dies() -> None:
    def program(x: torch.Tensor) -> Any:
        noted: list[int] = []
        first, second = Thing(), Thing()
        held: Any = weakref.WeakValueDictionary({1: first})
        reference = weakref.ref(second, lambda _: noted.append(1))
        graph_break()
        before = len(held), reference() is second
        del first
        second = None  # type: ignore[assignment]  # let go
        return before, len(held), list(noted), reference() is None, bool((x + 1).sum() > 0)

    assert program(torch.ones(2)) == ((1, True), 0, [1], True, True)
    _both(program, torch.ones(2))


class Noting:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("dead")


def _suspended(log: list[str]) -> Any:
    try:
        yield 1
    finally:
        log.append("dead")


def _noting(log: list[str]) -> Noting:
    return Noting(log)


def _begun(log: list[str]) -> Any:
    made = _suspended(log)
    next(made)
    return made


@pytest.mark.parametrize("make", [_noting, _begun], ids=["finalizer", "suspended generator"])
@pytest.mark.parametrize("deletes", [True, False], ids=["deleted", "rebound"])
def test_an_object_whose_end_is_seen_dies_when_its_variable_goes(make: Any, deletes: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        log: list[str] = []
        made = disable(make)(log)
        log.append("made")
        x = x + 1
        if deletes:
            del made
        else:
            made = None
        log.append("after")
        return bool((x * 2).sum() > 0), log

    assert program(torch.ones(2))[1] == ["made", "dead", "after"]
    _both(program, torch.ones(2))


def test_a_builtin_function_has_no_end() -> None:
    """Something may wait for the end of `len`, which never comes: it may lie on the stack across a break."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * len(disable(lambda: [1, 2])())

    watched = weakref.finalize(len, int)
    try:
        found = capture(fn, torch.ones(2))
    finally:
        watched.detach()
    assert found.result.tolist() == [2, 2] and "finalizer" not in [broke.key for broke in found.breaks]
