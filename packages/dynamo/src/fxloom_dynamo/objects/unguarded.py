"""Unguarded values: texts that the program only carries along, lists that it only adds to, NumPy's numbers beside tensors.

A batch's path that goes into the results, a log that grows at every call: with guards on the text and on the length each call
would be compiled anew. In: a text, bytes, list or deque at a place where an earlier capture of the same code met another one
(`guard.dynamic_shapes.Policy`). Out: a proxy which may be moved about and, if it is a list, added to. A number of NumPy's
(`np.float32(0.5)`) is one for operators of torch, which take it for Python's.

Invariant: any other use needs to know what the value holds. It raises `RestartCapture`, and the next attempt compiles for the
very value (`History.revealed`). Code that knows of unguarded values refuses them by `ShadowHeap.refuse`; C code meets their methods,
which raise the same; where an error might come from C code that knows texts by their type, all are revealed.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

#: what a program gets from code that takes an unguarded value for something else
CONFUSIONS = (TypeError, AttributeError, ValueError, NotImplementedError)
#: breaks that are there whatever an unguarded value holds
UNRELATED_BREAKS = frozenset({"data_dependent", "asked_for", "interrupted_loop", "finalizer", "recursion", "unsupported_tensor"})


class Unguarded:
    """Stands for a value of class `cls`. reveal: is called at every use of what it holds, and raises."""

    def __init__(self, cls: type, reveal: Callable[[], NoReturn]) -> None:
        self.cls = cls
        self.reveal = reveal

    def _revealed(self, *_: Any) -> NoReturn:
        self.reveal()

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _revealed  # type: ignore[assignment]  # they never return
    __hash__ = __bool__ = __len__ = __iter__ = __next__ = __str__ = __repr__ = __index__ = __int__ = __float__ = _revealed  # type: ignore[assignment]
    __contains__ = __getitem__ = __setitem__ = __delitem__ = __format__ = __call__ = __bytes__ = __reversed__ = _revealed
    __add__ = __radd__ = __iadd__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __reduce_ex__ = __fspath__ = _revealed  # type: ignore[assignment]
    __copy__ = __deepcopy__ = __enter__ = __exit__ = _revealed


class AppendOnly(Unguarded):
    """A list or deque that gets more items at its end. added: those, in order."""

    def __init__(self, cls: type, reveal: Callable[[], NoReturn]) -> None:
        super().__init__(cls, reveal)
        self.added: list[Any] = []


class UnguardedNumber(Unguarded):
    """A number of NumPy's. number: the symbolic number that operators of torch get."""

    def __init__(self, cls: type, reveal: Callable[[], NoReturn], number: Any) -> None:
        super().__init__(cls, reveal)
        self.number = number


#: functions of torch for which NumPy's numbers are not Python's: they look at the type
LOOK_AT_TYPES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})


def _looks_at(function: Any, cls: type) -> bool:
    """Whether a function of torch treats a number of NumPy's type `cls` otherwise than Python's."""
    name = getattr(function, "__name__", "")
    # `x[i] = n` takes integers, and of the floats only those that are Python's, too
    return name in LOOK_AT_TYPES or name in ("__setitem__", "setitem") and not hasattr(cls, "__index__") and not issubclass(cls, float)


def as_numbers(function: Any, value: Any) -> Any:
    """An argument of a function of torch, with the symbolic numbers that unguarded ones stand for."""
    kind = type(value)
    if kind is UnguardedNumber:
        return value.reveal() if _looks_at(function, value.cls) else value.number
    if kind is tuple or kind is list:
        if any(type(item) in (UnguardedNumber, tuple, list, slice) for item in value):
            return kind([as_numbers(function, item) for item in value])
    elif kind is slice:
        return slice(*(as_numbers(function, item) for item in (value.start, value.stop, value.step)))
    elif kind is dict:
        return {name: as_numbers(function, item) for name, item in value.items()}
    return value


def append(target: Any, item: Any) -> None:
    """list.append; the evaluator has a model of it for an `AppendOnly`."""
    target.append(item)


def extend(target: Any, items: Iterable[Any]) -> None:
    """list.extend; the evaluator has a model of it for an `AppendOnly`."""
    target.extend(items)


def append_only_method(target: AppendOnly, name: str) -> Any:
    """The method of an append-only list, if it only adds to it."""
    found = {"append": append, "extend": extend}.get(name)
    return target.reveal() if found is None else types.MethodType(found, target)


def may_be_append_only(original: Any) -> bool:
    """True for a list, or for a deque that drops nothing at its other end."""
    return type(original) is list or type(original) is deque and original.maxlen is None
