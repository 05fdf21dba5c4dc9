"""Iterators that were begun before the frame, or before a break, are read, used in the graph, and advanced for real."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from programs import check

from fxloom_dynamo import graph_break, optimize
from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig

MAKERS: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([1, 2, 3, 4, 5, 6]),
    "tuple": lambda: iter((1, 2, 3, 4, 5, 6)),
    "range": lambda: iter(range(6)),
    "range down": lambda: iter(range(20, 2, -3)),
    "text": lambda: iter("abcdef"),
    "bytes": lambda: iter(b"abcdef"),
    "reversed list": lambda: reversed([1, 2, 3, 4, 5, 6]),
    "reversed tuple": lambda: reversed((1, 2, 3, 4, 5, 6)),
    "keys": lambda: iter({1: 2, 3: 4, 5: 6, 7: 8, 9: 0, 2: 2}),
    "values": lambda: iter({1: 2, 3: 4, 5: 6, 7: 8, 9: 0, 2: 2}.values()),
    "items": lambda: iter({1: 2, 3: 4, 5: 6, 7: 8, 9: 0, 2: 2}.items()),
    "enumerate": lambda: enumerate([3, 4, 5, 6, 7, 8], 2),
    "zip": lambda: zip([3, 4, 5, 6, 7, 8], range(10), strict=False),
    "nested": lambda: enumerate(zip((3, 4, 5, 6, 7, 8), enumerate("abcdef"), strict=True)),
    "ended": lambda: iter([]),
}


def total(item: Any) -> int:
    """A number for what an iterator gives."""
    if isinstance(item, (tuple, list)):
        return sum(map(total, item))
    return ord(item) if isinstance(item, str) else item  # type: ignore[no-any-return]


def calls_next(x: torch.Tensor, it: Any) -> torch.Tensor:
    x = x + total(next(it, 0))
    return x * total(next(it, 1))


def takes_the_rest(x: torch.Tensor, it: Any) -> torch.Tensor:
    next(it, None)
    for item in it:
        x = x + total(item)
    return x


def makes_a_list(x: torch.Tensor, it: Any) -> Any:
    next(it, None)
    return x + 1, list(it), list(it)


def wraps(x: torch.Tensor, it: Any) -> torch.Tensor:
    for index, item in enumerate(it, 1):
        x = x * index + total(item)
        if index == 2:
            break
    return x


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("program", [calls_next, takes_the_rest, makes_a_list, wraps])
@pytest.mark.parametrize("begun", [0, 3])
def test_an_iterator_from_outside(program: Any, name: str, begun: int) -> None:
    """One graph, and the real iterator is where plain Python leaves it."""
    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(fullgraph=True, on_capture=frames.append))
    for _ in range(3):
        ours, plain = MAKERS[name](), MAKERS[name]()
        for _ in range(begun):
            next(ours, None), next(plain, None)
        x = torch.ones(2)
        got, expected = compiled(x, ours), program(x, plain)
        assert str(got) == str(expected)
        assert list(ours) == list(plain)
    assert len(frames) == 1


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "ended"])
def test_an_iterator_across_a_break_is_used_in_one_graph_after_it(name: str) -> None:
    make = MAKERS[name]

    def program(x: torch.Tensor) -> Any:
        it = make()
        x = x + total(next(it))
        graph_break()
        x = x * total(next(it))
        x = x - total(next(it))
        for item in it:
            x = x + total(item)
        return x

    counts = check(program, torch.ones(2))
    assert counts.graphs == 2 and counts.breaks == ("asked_for",), counts


def test_a_loop_that_breaks_once_is_unrolled_after_it() -> None:
    def program(x: torch.Tensor, layers: list[Any]) -> torch.Tensor:
        for index, layer in enumerate(layers):
            x = layer(x)
            if index == 1:
                graph_break()
        return x

    layers = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.neg, torch.abs]
    assert check(program, torch.ones(2), layers).graphs == 2


def test_a_loop_that_breaks_each_time_does_not_compile_each_time() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x + i
            graph_break()
        return x

    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(on_capture=frames.append))
    x = torch.zeros(2)
    assert torch.equal(compiled(x, 100), program(x, 100))
    assert len(frames) <= 8


def test_two_names_of_one_iterator() -> None:
    def program(x: torch.Tensor, pair: list[Any]) -> torch.Tensor:
        left, right = pair
        return x + 10 * next(left) + next(right) + sum(map(operator.mul, left, right))

    for aliased in (True, False, True):
        compiled = optimize("eager")(program)
        for _ in range(2):
            results = []
            for run in (program, compiled):
                it = iter(range(1, 8))
                pair = [it, it if aliased else iter([5, 6, 7, 8])]
                results.append((run(torch.ones(1), pair).item(), [list(p) for p in pair]))
            assert results[0] == results[1]


def test_an_iterator_goes_over_a_list_that_changes() -> None:
    def program(x: torch.Tensor, rows: list[int], it: Any) -> torch.Tensor:
        x = x + next(it)
        rows.append(7)
        rows[2] = 9
        for item in it:
            x = x * item
        rows.append(11)
        return x

    compiled = optimize("eager", fullgraph=True)(program)
    for _ in range(3):
        results = []
        for run in (program, compiled):
            rows = [1, 2, 3]
            it = iter(rows)
            next(it)
            results.append((run(torch.ones(1), rows, it).item(), rows, list(it)))
        assert results[0] == results[1]


def test_an_iterator_over_what_has_changed_since_is_left_outside() -> None:
    def program(x: torch.Tensor, it: Any) -> Any:
        try:
            return x + next(it)
        except RuntimeError as error:
            return x - 1, str(error)

    compiled = optimize("eager")(program)
    results = []
    for run in (program, compiled):
        table = {1: 2, 3: 4}
        it = iter(table)
        next(it)
        table[5] = 6
        results.append(run(torch.ones(1), it))
    assert str(results[0]) == str(results[1])


def test_the_place_of_an_iterator_is_guarded() -> None:
    rows = [1, 2, 3, 4, 5]
    it = iter(rows)
    plain = iter(rows)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + next(it, 0)

    compiled = optimize("eager")(program)
    for _ in range(7):
        assert compiled(torch.zeros(1)).item() == next(plain, 0)


def test_an_iterator_whose_dict_changes_in_the_graph() -> None:
    def program(x: torch.Tensor, table: dict[int, int], it: Any) -> Any:
        next(it)
        table[5] = 6
        return x + 1

    compiled = optimize("eager")(program)
    for _ in range(2):
        results = []
        for run in (program, compiled):
            table = {1: 2, 3: 4}
            it = iter(table)
            run(torch.ones(1), table, it)
            with pytest.raises(RuntimeError) as raised:
                next(it)
            results.append((table, str(raised.value)))
        assert results[0] == results[1]


def test_keys_exchanged_under_an_iterator() -> None:
    def program(x: torch.Tensor, it: Any) -> torch.Tensor:
        return x + next(it)

    compiled = optimize("eager")(program)
    for exchanged in (False, True, False):
        results = []
        for run in (program, compiled):
            table = {1: 2, 3: 4, 5: 6}
            it = iter(table)
            next(it)
            if exchanged:
                del table[1]
                table[9] = 1
            results.append(run(torch.ones(1), it).item())
        assert results[0] == results[1]


def test_a_dict_changes_after_its_iterator_has_ended() -> None:
    def program(x: torch.Tensor, table: dict[int, int], it: Any) -> Any:
        items = list(it)
        table[len(items) + 7] = 1
        return x + 1, items

    compiled = optimize("eager", fullgraph=True)(program)
    for make in (iter, lambda table: enumerate(table.items())):
        for _ in range(2):
            results = []
            for run in (program, compiled):
                table = {1: 2, 3: 4}
                it = make(table)  # type: ignore[no-untyped-call]
                results.append((str(run(torch.ones(1), table, it)), table, list(it)))
            assert results[0] == results[1]
