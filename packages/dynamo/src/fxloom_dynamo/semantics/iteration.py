"""Iteration: what `iter(value)` and `next(iterator)` mean, by the kind of value.

In: a value of the program. Out: its iterator, or the next item (ABSENT at the end). A method written in Python is evaluated; a
container is first read from its original, under guards, and then iterated by C code; what C code would have to look into unseen
is a break.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.generators import TracedGenerator
from fxloom_dynamo.interpreter.special_methods import is_own_instance, python_method
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.tensors import numpy_calls
from fxloom_dynamo.tensors.subclasses import special
from fxloom_dynamo.traced import polyfills
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def iterate(ev: Interpreter, value: Any) -> Any:
    """iter(value)."""
    if ev.heap.untraceable:
        if type(value) is Array:
            return numpy_calls.iterate(ev, value)
        ev.heap.refuse(value)
    cls = type(value)
    if cls is TracedGenerator:
        return value
    if cls is FakeTensor:
        if ev.recorder.overriding and (result := special(ev, value, "__iter__")) is not ABSENT:
            return result
        return ev.torch_native(iter, value)
    found = python_method(ev, value, "__iter__")
    if found is not ABSENT:
        return ev.call(found, [value])
    if isinstance(value, dict):
        ev.heap.know_keys(value)
        return ev.native(iter, value)
    if isinstance(value, enum.EnumMeta):
        return ev.native(iter, list(value.__members__.values()))
    if is_own_instance(ev, value):
        ev.heap.fill(value)
        return ev.native(iter, value)
    if python_method(ev, value, "__getitem__") is not ABSENT:
        return ev.call(polyfills.iterate_by_index, [value])
    if not hasattr(cls, "__iter__"):
        raise Raised(TypeError(f"'{ev.type_of(value).__name__}' object is not iterable"))
    graph_break("native_call", f"iteration over {cls.__qualname__}")


def advance(ev: Interpreter, iterator: Any) -> Any:
    """The next item of an iterator, ABSENT at its end."""
    if ev.heap.untraceable:
        ev.heap.refuse(iterator)
    try:
        if type(iterator) is TracedGenerator:
            return iterator.advance(None)
        found = python_method(ev, iterator, "__next__")
        if found is not ABSENT:
            return ev.call(found, [iterator])
        if is_own_instance(ev, iterator):
            ev.heap.fill(iterator)
            return ev.native(next, iterator, ABSENT)
    except Raised as raised:
        if isinstance(raised.exc, StopIteration):
            return ABSENT
        raise
    if not hasattr(type(iterator), "__next__"):
        raise Raised(TypeError(f"'{ev.type_of(iterator).__name__}' object is not an iterator"))
    graph_break("native_call", f"next() of {type(iterator).__qualname__}")
