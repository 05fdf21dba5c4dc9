"""Calls of functions with a cache (`functools.lru_cache`).

In: a cached function and its arguments. Out: what it returns, with a guard that calls the real function again at every later call and
compares, since the program may clear the cache. That is for constants; other arguments are proxies, which the real cache has never
seen, so with them the call is a graph break, or is evaluated without the cache where the function is torch's or `typing`'s.

Invariant: the cache counts each call of the program's once (`cache_info`): the first call is made while capturing, whatever
number of attempts that takes; later calls come from the guard check.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.libraries import files
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.semantics import output
from fxloom_dynamo.symbolic_numbers.values import has_symbolic
from fxloom_interfaces.sources import CallSource

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]

#: how often the guards of a fresh entry are checked on the very call that it was made from
_FRESH_CHECKS = 2


class _RepeatedCall:
    """A guard's call of a cached function."""

    def __init__(self, args: tuple[Any, ...], kwargs: Kwargs, answer: Any) -> None:
        self._args, self._kwargs = args, kwargs
        self._known = [answer] * _FRESH_CHECKS

    def __call__(self, fn: Any) -> Any:
        return self._known.pop() if self._known else fn(*self._args, **self._kwargs)


def call(ev: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """The call of a cached function."""
    if output.log_once(ev, fn, args, kwargs):
        return None
    values = (*args, *kwargs.values())
    wrapped = getattr(fn, "__wrapped__", None)
    if all(map(_is_constant, values)) and not any(map(ev.heap.is_fresh, values)):
        result = _answer(ev, fn, args, kwargs)
        if isinstance(wrapped, types.FunctionType) and files.in_torch(wrapped.__code__.co_filename):
            return result if type(result) in LITERALS else ev.heap.adopt(result)
        given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        question = _RepeatedCall(tuple(args), dict(kwargs), result)
        return ev.heap.translate(result, CallSource(ev.heap.source_of(fn), getter=question, label=f"{{}}({given})"))
    if getattr(wrapped, "__module__", None) == "typing" or files.in_torch(getattr(getattr(wrapped, "__code__", None), "co_filename", "")):
        return ev.call(ev.heap.adopt(wrapped), args, kwargs)  # without the cache: what it makes is a constant
    name = getattr(fn, "__qualname__", "a function")
    graph_break("cached_function", f"{name}, given {', '.join(sorted({_described(ev, value) for value in values}))}")


def _described(ev: Interpreter, value: Any) -> str:
    kind = ev.type_of(value).__qualname__
    return f"a changing {kind}" if has_symbolic((value,)) else kind


def _answer(ev: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """What the function returns; the first attempt of a capture calls it."""
    known = ev.history.answers
    asked = (fn, tuple(args), tuple(kwargs.items()))
    at = ev.cached_calls
    ev.cached_calls += 1
    if at < len(known) and _same(known[at][0], asked):
        return known[at][1]
    del known[at:]
    result = ev.run_real(fn, *args, **kwargs)
    known.append((asked, result))
    return result


def _same(left: Any, right: Any) -> bool:
    if type(left) is tuple and type(right) is tuple:
        return len(left) == len(right) and all(map(_same, left, right))
    return left is right or type(left) is type(right) and type(left) in LITERALS and bool(left == right)


def _is_constant(value: Any) -> bool:
    """True for what is the same object, or as good, for the program and for the evaluator."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return type(value) in LITERALS or isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum))
