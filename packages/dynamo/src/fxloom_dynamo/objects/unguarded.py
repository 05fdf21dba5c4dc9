"""Unguarded values: texts that the program only carries along, lists that it only adds to, NumPy's numbers beside tensors.

A batch's path that goes into the results, a log that grows at every call: with guards on the text and on the length each call
would be compiled anew. In: a text, bytes, list or deque at a place where an earlier capture of the same code met another one
(`guard.dynamic_shapes.Policy`). Out: a stand-in which may be moved about and, if it is a list, added to. A number of NumPy's
(`np.float32(0.5)`) is one for operators of torch, which take it for Python's.

Invariant: any other use needs to know what the value holds. It raises `CaptureAgain`, and the next attempt compiles for the
very value (`History.revealed`). Code that knows of unguarded values refuses them by `Heap.refuse`; C code meets their methods,
which raise the same; where an error might come from C code that knows texts by their type, all are revealed.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

#: what a program gets from code that takes a carried value for something else
CONFUSIONS = (TypeError, AttributeError, ValueError, NotImplementedError)
#: breaks that are there whatever a carried value holds
UNRELATED_BREAKS = frozenset({"data_dependent", "asked_for", "interrupted_loop", "finalizer", "recursion", "unsupported_tensor"})


class Carried:
    """Stands for a value of class `cls`. ask: is called at every use of what it holds, and raises."""

    def __init__(self, cls: type, ask: Callable[[], NoReturn]) -> None:
        self.cls = cls
        self.ask = ask

    def _asked(self, *_: Any) -> NoReturn:
        self.ask()

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _asked  # type: ignore[assignment]  # they never return
    __hash__ = __bool__ = __len__ = __iter__ = __next__ = __str__ = __repr__ = __index__ = __int__ = __float__ = _asked  # type: ignore[assignment]
    __contains__ = __getitem__ = __setitem__ = __delitem__ = __format__ = __call__ = __bytes__ = __reversed__ = _asked
    __add__ = __radd__ = __iadd__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __reduce_ex__ = __fspath__ = _asked  # type: ignore[assignment]
    __copy__ = __deepcopy__ = __enter__ = __exit__ = _asked


class Growing(Carried):
    """A list or deque that gets more items at its end. added: those, in order."""

    def __init__(self, cls: type, ask: Callable[[], NoReturn]) -> None:
        super().__init__(cls, ask)
        self.added: list[Any] = []


class CarriedNumber(Carried):
    """A number of NumPy's. number: the symbolic number that operators of torch get."""

    def __init__(self, cls: type, ask: Callable[[], NoReturn], number: Any) -> None:
        super().__init__(cls, ask)
        self.number = number


#: functions of torch for which NumPy's numbers are not Python's: they look at the type
LOOK_AT_TYPES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})


def _looks_at(function: Any, cls: type) -> bool:
    """Whether a function of torch treats a number of NumPy's type `cls` otherwise than Python's."""
    name = getattr(function, "__name__", "")
    # `x[i] = n` takes integers, and of the floats only those that are Python's, too
    return name in LOOK_AT_TYPES or name in ("__setitem__", "setitem") and not hasattr(cls, "__index__") and not issubclass(cls, float)


def as_numbers(function: Any, value: Any) -> Any:
    """An argument of a function of torch, with the symbolic numbers that carried ones stand for."""
    kind = type(value)
    if kind is CarriedNumber:
        return value.ask() if _looks_at(function, value.cls) else value.number
    if kind is tuple or kind is list:
        if any(type(item) in (CarriedNumber, tuple, list, slice) for item in value):
            return kind([as_numbers(function, item) for item in value])
    elif kind is slice:
        return slice(*(as_numbers(function, item) for item in (value.start, value.stop, value.step)))
    elif kind is dict:
        return {name: as_numbers(function, item) for name, item in value.items()}
    return value


def append(target: Any, item: Any) -> None:
    """list.append; the evaluator has a model of it for a `Growing`."""
    target.append(item)


def extend(target: Any, items: Iterable[Any]) -> None:
    """list.extend; the evaluator has a model of it for a `Growing`."""
    target.extend(items)


def growing_method(growing: Growing, name: str) -> Any:
    """The method of a growing list, if it only adds to it."""
    found = {"append": append, "extend": extend}.get(name)
    return growing.ask() if found is None else types.MethodType(found, growing)


def may_grow(original: Any) -> bool:
    """True for a list, or for a deque that drops nothing at its other end."""
    return type(original) is list or type(original) is deque and original.maxlen is None
