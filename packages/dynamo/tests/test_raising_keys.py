"""`__eq__` and `__hash__` of keys and items may raise: the program's exception comes where plain Python raises it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import check


class Failure(Exception):
    """Raised by keys."""


class NoEquality:
    def __eq__(self, other: object) -> bool:
        raise Failure("eq")

    def __hash__(self) -> int:
        return 24


class Key:
    fails = False

    def __hash__(self) -> int:
        if self.fails:
            raise Failure("hash")
        return 42


class Table(dict[Any, Any]):
    pass


TABLE: dict[Any, Any] = {}


def count(actions: list[Callable[[], Any]]) -> int:
    """Bits of the actions that raise."""
    raised = 0
    for number, action in enumerate(actions):
        try:
            action()
        except (Failure, KeyError):
            raised |= 1 << number
    return raised


def failing_hash(x: torch.Tensor) -> torch.Tensor:
    key = Key()
    table: dict[Any, Any] = {key: 1}
    key.fails = True
    lookups: list[Callable[[], Any]] = [
        lambda: table[key],
        lambda: table.get(key),
        lambda: table.setdefault(key, 1),
        lambda: table.pop(key),
        lambda: key in table,
        lambda: table.__setitem__(key, 1),
        lambda: table.update([(key, 1)]),
        lambda: dict.fromkeys([key]),
        lambda: {key},
        lambda: {key: 1},
        lambda: set([key]),
        lambda: frozenset([key]),
    ]
    return x + count(lookups)


def failing_equality_in_dict(x: torch.Tensor) -> torch.Tensor:
    table: dict[Any, Any] = {NoEquality(): 42, 23: 23}
    lookups: list[Callable[[], Any]] = [
        lambda: table[NoEquality()],
        lambda: table[24],
        lambda: 24 in table,
        lambda: table[23],
        lambda: table.get(NoEquality()),
        lambda: table.__setitem__(24, 1),
        lambda: table == {NoEquality(): 1, 23: 23},
        lambda: {NoEquality(): 1, NoEquality(): 2},
    ]
    return x + count(lookups)


def failing_equality_in_set(x: torch.Tensor) -> torch.Tensor:
    members: set[Any] = {NoEquality()}
    lookups: list[Callable[[], Any]] = [
        lambda: members.add(NoEquality()),
        lambda: NoEquality() in members,
        lambda: members.discard(NoEquality()),
        lambda: members | {NoEquality()},
        lambda: members.update([NoEquality()]),
        lambda: members == {NoEquality()},
    ]
    return x + count(lookups)


def failing_equality_in_others(x: torch.Tensor) -> torch.Tensor:
    key = NoEquality()
    table = Table()
    table[key] = 1
    ordered: collections.OrderedDict[Any, Any] = collections.OrderedDict({key: 1})
    lists: collections.defaultdict[Any, list[int]] = collections.defaultdict(list)
    lists[key].append(1)
    row, queue = [key], collections.deque([key])
    lookups: list[Callable[[], Any]] = [
        lambda: table[NoEquality()],
        lambda: ordered[NoEquality()],
        lambda: ordered.pop(NoEquality()),
        lambda: lists[NoEquality()],
        lambda: collections.Counter([NoEquality(), NoEquality()]),
        lambda: 3 in row,
        lambda: row.index(3),
        lambda: queue.remove(3),
    ]
    return x + count(lookups)


def failing_equality_in_global(x: torch.Tensor) -> torch.Tensor:
    TABLE[NoEquality()] = 1
    lookups: list[Callable[[], Any]] = [lambda: TABLE[NoEquality()], lambda: TABLE.pop(24), lambda: TABLE.__delitem__(24)]
    raised = count(lookups)
    TABLE.clear()
    return x + raised


PROGRAMS = [
    failing_hash,
    failing_equality_in_dict,
    failing_equality_in_set,
    failing_equality_in_others,
    failing_equality_in_global,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_exception_is_the_programs(program: Any) -> None:
    assert program(torch.zeros(1)).item() > 0
    assert check(program, torch.ones(2), fullgraph=True).graphs == 1
