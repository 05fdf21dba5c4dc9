"""State that C code or a class lookup looks at behind the evaluator's back: a change of it is seen at the next call."""

from __future__ import annotations

import abc
import collections
import collections.abc
import enum
import functools
import logging
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxloom_dynamo import optimize

X = torch.ones(2)


def both(program: Callable[..., Any], change: Callable[[], None], *args: Any) -> None:
    """The program gives what it gives in plain Python, before and after a change that its answer depends on."""
    compiled = optimize("eager", fullgraph=True)(program)
    before = program(X, *args)
    for _ in range(5):  # long enough for the short way through the guards
        assert str(compiled(X, *args)) == str(before)
    change()
    after = program(X, *args)
    assert str(after) != str(before), "the change is none"
    assert str(compiled(X, *args)) == str(after)


class Error(Exception):
    pass


class Items(tuple[Any, ...]):
    pass


HOLDERS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "namespace": types.SimpleNamespace,
    "partial": lambda: functools.partial(int),
    "thread": threading.local,
    "builtin exception": ValueError,
    "exception": Error,
    "ordered dict": collections.OrderedDict,
    "tuple": lambda: Items((1, 2)),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_an_attribute_that_appears(kind: str) -> None:
    holder = HOLDERS[kind]()
    both(lambda x: x + getattr(holder, "extra", 0), lambda: setattr(holder, "extra", 5))


def test_an_attribute_of_a_class_of_tensors_that_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    both(lambda x: x + hasattr(weight, "extra"), lambda: monkeypatch.setattr(torch.nn.Parameter, "extra", 5, raising=False))


@pytest.mark.parametrize("kind", [ValueError, Error])
def test_arguments_of_an_exception(kind: type[Exception]) -> None:
    error = kind("a", 1)
    both(lambda x: (x + error.args[1], str(error)), lambda: setattr(error, "args", ("b", 2)))


def set_benchmark() -> None:
    torch.backends.cudnn.benchmark = True


QUESTIONS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "property of a module": (lambda: torch.backends.cudnn.benchmark, set_benchmark),
    "python function": (lambda: torch.get_float32_matmul_precision(), lambda: torch.set_float32_matmul_precision("high")),
    "c function": (lambda: torch._C._get_cudnn_enabled(), lambda: torch._C._set_cudnn_enabled(False)),
    "with an argument": (lambda: torch.get_autocast_dtype("cpu"), lambda: torch.set_autocast_dtype("cpu", torch.float16)),
    "default dtype": (lambda: torch.ones(1).dtype, lambda: torch.set_default_dtype(torch.float64)),
    "of a quotient": (lambda: (torch.arange(2) / 2).dtype, lambda: torch.set_default_dtype(torch.float64)),
}


@pytest.fixture
def settings_restored() -> Any:
    before = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision(), torch.get_autocast_dtype("cpu")
    yield
    torch.backends.cudnn.benchmark = before[0]
    torch.set_float32_matmul_precision(before[1])
    torch.set_autocast_dtype("cpu", before[2])
    torch._C._set_cudnn_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("name", QUESTIONS)
def test_settings_of_torch(name: str) -> None:
    ask, change = QUESTIONS[name]
    both(lambda x: (x + 1, ask()), change)


def test_bases_of_a_class() -> None:
    class Left:
        number = 1

    class Right:
        number = 2

    class Child(Left):
        pass

    child = Child()
    both(lambda x: x * child.number, lambda: setattr(Child, "__bases__", (Right,)))


def test_classes_that_are_registered() -> None:
    class Interface(abc.ABC):  # noqa: B024  # nothing to implement
        pass

    class Thing:
        pass

    thing = Thing()
    both(lambda x: x + isinstance(thing, Interface), lambda: Interface.register(Thing) and None)


@pytest.mark.parametrize("ask", [isinstance, lambda thing, kind: issubclass(type(thing), kind)])
def test_methods_that_abstract_classes_ask_for(ask: Callable[[Any, Any], bool]) -> None:
    class Thing:
        pass

    class Other:
        pass

    def change() -> None:
        Thing.__len__ = lambda self: 1  # type: ignore[attr-defined]
        collections.abc.Sized.register(Other)  # or the class's old answer stands

    thing = Thing()
    both(lambda x: x + ask(thing, collections.abc.Sized), change)


def test_comparisons_in_containers() -> None:
    class Thing:
        pass

    one, other = Thing(), Thing()
    both(lambda x: (x + (one in [other]), [other].count(one)), lambda: setattr(Thing, "__eq__", lambda self, other: True))


def test_calls_of_instances() -> None:
    class Thing:
        pass

    thing = Thing()
    both(lambda x: x + callable(thing), lambda: setattr(Thing, "__call__", lambda self: 1))


class Names(dict[str, Any]):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


def test_attributes_that_are_items() -> None:
    def program(x: torch.Tensor, names: Names) -> Any:
        names.made = x
        del names.old
        return x + 1, names.absent, names.number

    compiled = optimize("eager", fullgraph=True)(program)
    for _ in range(2):
        plain, names = Names(number=2, old=1), Names(number=2, old=1)
        assert str(compiled(X, names)) == str(program(X, plain))
        assert list(names) == list(plain) == ["number", "made"]
        assert vars(names) == vars(plain) == {}


class Color(enum.Flag):
    RED = 1
    GREEN = 2
    BLUE = 4


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 2


def test_flags_that_are_combined() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Color.RED | Color.GREEN, ~Color.RED, Color.BLUE ^ Color.RED, Color(5), Bits.LOW | 8, Bits(3) & Bits.HIGH
        return x + 1, *made, Color.RED in made[0], [one.name for one in Color.RED | Color.BLUE]

    compiled = optimize("eager", fullgraph=True)(program)
    found = compiled(X)
    assert str(found) == str(program(X))
    assert found[1] is Color.RED | Color.GREEN
    assert repr(Color.RED | Color.GREEN | Color.BLUE) == "<Color.RED|GREEN|BLUE: 7>"


def test_where_a_program_logs(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("fxloom.tests")

    def inner(x: torch.Tensor) -> torch.Tensor:
        log.info("from %s", "inside")
        return x

    def program(x: torch.Tensor) -> torch.Tensor:
        log.warning("before")
        return inner(x) + 1

    compiled = optimize("eager", fullgraph=True)(program)
    with caplog.at_level(logging.INFO, "fxloom.tests"):
        program(X)
        compiled(X)
        compiled(X)
    places = [(record.filename, record.funcName, record.lineno, record.getMessage()) for record in caplog.records]
    assert len(places) == 6 and places[:2] * 3 == places


def test_a_cache_knows_objects() -> None:
    made: list[Any] = []

    @functools.lru_cache
    def remember(key: Any) -> Any:
        made.append(key)
        return [key]

    known, number = remember(made_key := object()), remember(3)
    compiled = optimize("eager")(lambda x: (x + 1, remember(made_key) is known, remember(3) is number, remember(int)))
    for _ in range(2):
        assert compiled(X)[1:] == (True, True, [int])
    assert made == [made_key, 3, int]
