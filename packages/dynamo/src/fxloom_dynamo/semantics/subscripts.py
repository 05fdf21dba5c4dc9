"""Subscripts: what `container[key]`, its assignment and its deletion mean, by the kinds of container and key.

In: the container and the key (for a store the value too), as the evaluator holds them. Out: the item, or the container changed in place.
Code of the program that decides (`__getitem__`, `__missing__`, `__hash__` and `__eq__` of keys) is evaluated; on tensors it is an
operator of the graph. Invariant: what is read of a container that existed before the frame leaves a guard.
"""

from __future__ import annotations

import enum
import operator
import types
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.special_methods import is_own_instance, python_method
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.sentinels import ABSENT, DELETED, Raised
from fxloom_dynamo.objects.value_types import LITERALS, container_base
from fxloom_dynamo.symbolic_numbers.values import concrete
from fxloom_dynamo.tensors import numpy_calls
from fxloom_dynamo.tensors.subclasses import special
from fxloom_interfaces import symbolic_math
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


_SEQUENCES = (list, tuple, str, bytes, range)


def hashable(ev: Interpreter, key: Any) -> Any:
    """`key` for C code that hashes it: numbers in it that may change are what they are now, under guards.

    Notes which `__hash__` and `__eq__` it has; C code calls them, and they are evaluated then.
    """
    cls = type(key)
    if cls in SYMBOLIC:
        return concrete(key)
    if cls is not torch.Size and (cls in LITERALS or cls is FakeTensor or isinstance(key, (type, enum.Enum))):
        return key
    if isinstance(key, tuple):
        parts = [hashable(ev, part) for part in tuple.__iter__(key)]
        if any(new is not old for new, old in zip(parts, tuple.__iter__(key), strict=True)):
            key = torch.Size(parts) if cls is torch.Size else tuple.__new__(cls, parts)
        if cls is tuple or cls is torch.Size:
            return key
    python_method(ev, key, "__hash__")
    python_method(ev, key, "__eq__")
    return key


def with_numbers(ev: Interpreter, index: Any) -> Any:
    """An index of a tensor, with the numbers that tensors as ends of slices stand for: `x[:n]` reads n's number.

    A step that only running the graph tells is checked as torch does.
    """
    if type(index) is tuple:
        return tuple(with_numbers(ev, part) for part in index)
    if type(index) is not slice:
        return index
    start, stop, step = (_number_of(ev, end) for end in (index.start, index.stop, index.step))
    if type(step) is torch.SymInt and not step.node.has_hint():
        symbolic_math.check(step != 0, "slice step cannot be zero", "ValueError")
        symbolic_math.check(step > 0, "step must be greater than zero", "ValueError")
    return slice(start, stop, step)


def _number_of(ev: Interpreter, end: Any) -> Any:
    """The number that a tensor stands for as an index; others as they are."""
    if type(end) is not FakeTensor or end.dim() or end.is_floating_point() or end.is_complex() or end.dtype is torch.bool:
        return end
    return ev.torch_native(torch.Tensor.item, end)


def subscript(ev: Interpreter, container: Any, key: Any) -> Any:
    """container[key]."""
    if ev.heap.untraceable:
        if type(container) is Array:
            return numpy_calls.call_operator(ev, operator.getitem, container, key)
        exposed = ev.heap.exposed(container)
        if exposed is not None and isinstance(key, str):
            value = ev.heap.name_get(exposed, key)
            if value is ABSENT:
                raise Raised(KeyError(key))
            return value
        ev.heap.refuse(container)
        if type(container) is FakeTensor:
            key = numpy_calls.as_index(ev, key)
    cls = type(container)
    if cls is not FakeTensor:
        key = concrete(key)
    if cls is tuple or cls in LITERALS:
        if type(key) is FakeTensor:
            return ev.torch_native(operator.getitem, container, key)
        return ev.native(operator.getitem, container, key)
    if cls is FakeTensor:
        if ev.recorder.overriding and (result := special(ev, container, "__getitem__", key)) is not ABSENT:
            return result
        return ev.record_call(operator.getitem, container, with_numbers(ev, key))
    found = python_method(ev, container, "__getitem__")
    if found is not ABSENT:
        return ev.call(found, [container, key])
    if isinstance(container, list):
        if isinstance(key, int):
            try:
                return ev.heap.list_get(container, int(key))
            except IndexError as exc:
                raise Raised(exc) from None
        ev.heap.fill(container)
        if type(key) is FakeTensor:
            return ev.torch_native(operator.getitem, container, key)
        return ev.native(operator.getitem, container, key)
    if isinstance(container, dict):
        return dict_subscript(ev, container, key)
    if isinstance(container, type):
        if issubclass(container, enum.Enum) or container is type:
            return ev.native(operator.getitem, container, key)
        found = ev.heap.class_lookup(container, "__class_getitem__")
        if found is ABSENT or isinstance(found, classmethod) and isinstance(found.__func__, types.FunctionType):
            if found is ABSENT:
                raise Raised(TypeError(f"type '{container.__name__}' is not subscriptable"))
            return ev.call(found.__func__, [container, key])
        return ev.native(operator.getitem, container, key)
    if is_own_instance(ev, container):
        ev.heap.fill(container)
        if type(key) is FakeTensor:
            return ev.torch_native(operator.getitem, container, key)
        return ev.native(operator.getitem, container, key)
    if not hasattr(cls, "__getitem__"):
        raise Raised(TypeError(f"'{cls.__name__}' object is not subscriptable"))
    graph_break("native_call", f"subscript of {cls.__qualname__}")


def dict_get(ev: Interpreter, container: dict[Any, Any], key: Any) -> Any:
    """The value under a key, ABSENT if there is none. `__hash__` and `__eq__` of keys are the program's code."""
    if type(key) is str:
        return ev.heap.dict_get(container, key)
    key = hashable(ev, key)
    return ev.heap.dict_value(container, key, ev.native(dict.get, container, key, ABSENT))


def dict_contains(ev: Interpreter, container: dict[Any, Any], key: Any) -> bool:
    key = hashable(ev, key)
    return ev.heap.dict_presence(container, key, ev.native(dict.__contains__, container, key))


def dict_subscript(ev: Interpreter, container: dict[Any, Any], key: Any) -> Any:
    """container[key] of a dict or subclass, `__getitem__` not overridden."""
    value = dict_get(ev, container, key)
    if value is not ABSENT:
        return value
    missing = python_method(ev, container, "__missing__")
    if missing is not ABSENT:
        return ev.call(missing, [container, key])
    if isinstance(container, defaultdict) and container.default_factory is not None:
        value = ev.call(container.default_factory, [])
        ev.native(container_base(type(container)).__setitem__, container, key, value)  # type: ignore[index]  # a dict
        return value
    raise Raised(KeyError(key))


def store_subscript(ev: Interpreter, container: Any, key: Any, value: Any) -> None:
    """container[key] = value."""
    if ev.heap.untraceable:
        if type(container) is Array:
            numpy_calls.call_operator(ev, operator.setitem, container, key, value)
            return
        exposed = ev.heap.exposed(container)
        if exposed is not None and isinstance(key, str):
            exposed.set(key, value)
            return
        ev.heap.refuse(container)
        if type(container) is FakeTensor:
            key = numpy_calls.as_index(ev, key)
    cls = type(container)
    if cls is FakeTensor:
        if ev.recorder.overriding and special(ev, container, "__setitem__", key, value) is not ABSENT:
            return
        ev.record_call(operator.setitem, container, with_numbers(ev, key), value)
        return
    key = concrete(key)
    found = python_method(ev, container, "__setitem__")
    if found is not ABSENT:
        ev.call(found, [container, key, value])
        return
    if isinstance(container, list):
        if isinstance(key, slice):
            ev.heap.fill(container)
            if isinstance(value, (list, tuple)):
                ev.heap.fill(value)
            else:
                value = ev.list_of(value)
        ev.native(operator.setitem, container, key, value)
        return
    if isinstance(container, dict):
        ev.native(operator.setitem, container, hashable(ev, key), value)
        return
    if is_own_instance(ev, container):
        ev.heap.fill(container)
        ev.native(operator.setitem, container, key, value)
        return
    graph_break("native_call", f"item assignment on {cls.__qualname__}")


def delete_subscript(ev: Interpreter, container: Any, key: Any) -> None:
    """del container[key]."""
    if ev.heap.untraceable:
        exposed = ev.heap.exposed(container)
        if exposed is not None and isinstance(key, str):
            if ev.heap.name_get(exposed, key) is ABSENT:
                raise Raised(KeyError(key))
            exposed.set(key, DELETED)
            return
        ev.heap.refuse(container)
    key = concrete(key)
    found = python_method(ev, container, "__delitem__")
    if found is not ABSENT:
        ev.call(found, [container, key])
        return
    if isinstance(container, dict):
        key = hashable(ev, key)
        if dict_contains(ev, container, key):
            ev.heap.note_deletion(container, key)
    elif isinstance(container, list):
        ev.heap.fill(container)
    elif not is_own_instance(ev, container):
        graph_break("native_call", f"item deletion on {type(container).__qualname__}")
    ev.native(operator.delitem, container, key)
