"""Values that C code makes or shows: exceptions with their own state, texts of sizes, index objects, arguments after a star."""

from __future__ import annotations

import collections
import operator
import time
import typing
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from fxloom_dynamo import optimize

X = torch.ones(2)


def shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return f"{type(value).__name__} {value}" if isinstance(value, BaseException) else repr(value)


def make_os(_: Any) -> Any:
    made = OSError(2, "none", "file")
    made.errno = 5
    return made, made.filename, made.errno


def make_names(x: Any) -> Any:
    return ImportError("a", name="n").name, AttributeError("a", name="b", obj=x).obj is x, NameError("a", name="c").name


def make_syntax_error(_: Any) -> Any:
    made = SyntaxError("bad")
    made.args = (1, 2)
    made.lineno = 7
    return made, made.args, made.lineno


def make_stop(_: Any) -> Any:
    stop, leave = StopIteration(3), SystemExit(3)
    stop.value, leave.code = 9, 4
    return stop, stop.value, leave, leave.code


def make_group(_: Any) -> Any:
    return ExceptionGroup("several", [ValueError(1), KeyError(2)]).exceptions


def make_noted(_: Any) -> Any:
    made = ValueError(1)
    made.add_note("A")
    return made, made.__notes__


def make_linked(_: Any) -> Any:
    made = ValueError(1)
    made.__cause__ = KeyError(2)
    made.__suppress_context__ = False
    return made, made.__cause__, made.__suppress_context__


@pytest.mark.parametrize("make", [make_os, make_names, make_syntax_error, make_stop, make_group, make_noted, make_linked])
def test_exceptions_keep_what_c_code_knows_of_them(make: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = make(x)
        time.sleep(0)  # the exception is carried over a break
        return made, x + 1

    compiled = optimize("eager")(program)
    for _ in range(2):
        assert shown(compiled(X)) == shown(program(X))


def test_an_exception_that_leaves_keeps_its_state() -> None:
    def program(x: torch.Tensor) -> Any:
        raise OSError(2, "none", str((x + 1).shape))

    with pytest.raises(OSError, match=r"\[Errno 2\] none: 'torch.Size"):
        optimize("eager")(program)(X)


def test_notes_of_an_exception_that_was_there() -> None:
    error = ValueError(1)

    def program(x: torch.Tensor) -> Any:
        error.add_note("A")
        return x + 1, len(error.__notes__)

    compiled = optimize("eager")(program)
    assert [compiled(X)[1] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        lambda x: f"{x.shape}",
        lambda x: str((x.shape[0], [x.shape])),
        lambda x: "%s %d" % (x.shape, x.shape[0]),  # noqa: UP031  # is what is tested
        lambda x: f"{x.shape[:1]} {x.size(0)}",
        lambda x: repr({"size": x.shape[0]}),
        lambda x: format(x.size()),
        lambda x: [x.shape[0]].__repr__(),
        lambda x: {1: x.shape}.__str__(),
    ],
)
def test_texts_of_sizes_show_numbers(text: Any) -> None:
    compiled = optimize("eager", fullgraph=True)(lambda x: (x + 1, text(x)))
    for size in (2, 3, 4, 7):
        assert compiled(torch.ones(size, 3))[1] == text(torch.ones(size, 3))


class Two:
    def __index__(self) -> int:
        return 2


class Number(int):
    def __index__(self) -> int:
        return 42


def test_objects_that_are_indices() -> None:
    def program(x: torch.Tensor, items: list[Any]) -> Any:
        items[Two()] = "X"
        numbers = hex(Two()), operator.index(Two()), oct(Number(7)), operator.index(Number(7)), int(Number(7)), float(Number(7))
        return x + 1, numbers, "abcd"[Two()], items

    compiled = optimize("eager", fullgraph=True)(program)
    assert shown(compiled(X, list("abcd"))) == shown(program(X, list("abcd")))


Pair = namedtuple("Pair", "left right")


def collect(*args: Any, **kwargs: Any) -> Any:
    return args, "one" if args[0] == 1 else "other"


@pytest.mark.parametrize("call", [collect, Pair, max, lambda *args: collect(*args, *args)])
def test_items_of_a_list_as_arguments(call: Any) -> None:
    compiled = optimize("eager", fullgraph=True)(lambda x, items: (call(*items), x + 1))
    assert shown(compiled(X, [1, 2])) == shown((call(*[1, 2]), X + 1))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, items: collect(*items, int(x.sum())),
        lambda x, items: (*items, time.sleep(0), x + 1),
        lambda x, items: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, *items, int(x.sum())),
    ],
)
def test_a_break_after_a_star(program: Any) -> None:
    compiled = optimize("eager")(program)
    for _ in range(2):
        assert shown(compiled(X, [1, 2])) == shown(program(X, [1, 2]))


def test_attributes_of_an_ordered_dict() -> None:
    def program(x: torch.Tensor, names: OrderedDict[str, int]) -> Any:
        made = OrderedDict(a=1)
        made.extra = 10  # type: ignore[attr-defined]
        found = names.old, getattr(names, "absent", 0)  # type: ignore[attr-defined]
        names.new = 7  # type: ignore[attr-defined]
        del names.old  # type: ignore[attr-defined]
        return made, found, x + 1

    compiled = optimize("eager", fullgraph=True)(program)
    for run in (compiled, compiled, program):
        names = OrderedDict(b=2)
        names.old = 5  # type: ignore[attr-defined]
        made, found, _ = run(X, names)
        assert (vars(made), found, vars(names)) == ({"extra": 10}, (5, 0), {"new": 7})


def test_views_of_a_dict_compared() -> None:
    compiled = optimize("eager", fullgraph=True)(lambda x, d: (x + 1, d.items() == {"k": [1, 2]}.items(), d.keys() == {"k"}))
    assert compiled(X, {"k": [1, 2]})[1:] == (True, True)
    assert compiled(X, {"k": [1, 3]})[1:] == (False, True)


class Property(property):
    pass


class Held:
    def __init__(self) -> None:
        self._value = 1

    @Property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, new: int) -> None:
        self._value = new


def test_subclasses_of_property() -> None:
    def program(x: torch.Tensor, held: Held) -> Any:
        held.value = 2
        return held.value, x + 1

    held = Held()
    assert optimize("eager", fullgraph=True)(program)(X, held)[0] == 2
    assert vars(held) == {"_value": 2}


def test_types_made_of_types() -> None:
    def program(x: torch.Tensor) -> Any:
        made = typing.Union[int, str] | list, typing.Literal[1] | None, dict[str, int] | None  # noqa: UP007
        return x + 1, made, [one.__args__ for one in made], typing.get_origin(made[0])

    found = optimize("eager", fullgraph=True)(program)(X)
    assert found[1:] == program(X)[1:]
    assert (typing.Union[int, str] | list).__args__ == (int, str, list)  # noqa: UP007  # what the library remembers is whole


def test_type_variables_made_inside() -> None:
    def program(x: torch.Tensor) -> Any:
        kind = typing.TypeVar("kind")
        return list[kind][int], x + 1  # type: ignore[valid-type]

    assert optimize("eager")(program)(X)[0] == list[int]


class Both(collections.UserDict[str, int], collections.abc.MutableSequence[int]):  # type: ignore[misc]  # of both kinds
    def insert(self, index: int, value: int) -> None: ...


def test_what_a_class_is_to_patterns() -> None:
    def program(x: torch.Tensor, value: Any) -> Any:
        match value:
            case [*_]:
                return "sequence", x + 1
            case {}:
                return "mapping", x + 1
        return "other", x + 1

    compiled = optimize("eager", recompile_limit=16)(program)
    for value in (Both(), [1], (1,), "ab", {}, range(3), collections.deque(), 3, x_like()):
        assert compiled(X, value)[0] == program(X, value)[0]


def x_like() -> torch.Tensor:
    return torch.ones(3)


class Ending:
    def __iter__(self) -> Ending:
        return self

    def __next__(self) -> int:
        raise StopIteration(42)


def test_the_value_of_an_iterator_that_ends() -> None:
    def program(x: torch.Tensor) -> Any:
        found = []

        def delegate() -> Any:
            found.append((yield from Ending()))

        return list(delegate()), found, x + 1

    assert optimize("eager", fullgraph=True)(program)(X)[:2] == ([], [42])


@pytest.mark.parametrize(
    "program",
    [
        lambda items: set().union(*items),
        lambda items: {1, 3}.isdisjoint(items[0]),
        lambda items: {1, 9}.difference(items[0], items[1]),
        lambda items: frozenset().union(items[0]),
        lambda items: (made := set(), made.update(*items))[0],
        lambda items: {1}.issubset(items[0]),
        lambda items: dict.fromkeys(items[0]),
        lambda items: [1, *items[0]].__repr__(),
    ],
)
def test_methods_of_sets_read_lists_that_were_there(program: Any) -> None:
    compiled = optimize("eager", fullgraph=True)(lambda x, items: (x + 1, program(items)))
    assert compiled(X, [[1, 2], [3, 4]])[1] == program([[1, 2], [3, 4]])
