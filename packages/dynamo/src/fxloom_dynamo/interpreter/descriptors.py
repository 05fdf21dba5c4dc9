"""Descriptors: what a raw class attribute becomes when it is read through an instance or a class.

In: the raw attribute as it lies in a class's `__dict__`, its name, the object that is read, the class that it was found in. Out:
what the program gets: a bound method, the result of a `__get__` written in Python, or the value itself. A `__get__` in C is a
break unless it is known to bind and do nothing else.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode.opcode_facts import WRAPPED_DESCRIPTORS_BIND
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.objects.value_types import CONTROLLED

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def missing(ev: Interpreter, obj: Any, name: str) -> Raised:
    cls = ev.type_of(obj)
    error = AttributeError(f"'{cls.__name__}' object has no attribute '{name}'")
    error.name = name
    return Raised(error)


def bind(ev: Interpreter, raw: Any, name: str, obj: Any, cls: type, owner: type) -> Any:
    """What a raw class attribute becomes when read through an instance. owner: the class it was looked up in."""
    kind = type(raw)
    if kind is types.FunctionType or kind in CONTROLLED:
        return types.MethodType(ev.heap.class_value(owner, name, raw), obj)
    if kind is classmethod:
        return bind_class_method(ev, raw, name, cls, owner)
    if kind is staticmethod:
        return member(ev, owner, name, raw, raw.__func__)
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType):
        return raw.__get__(obj, cls)
    if kind is types.BuiltinFunctionType:
        return raw
    if kind is type or not hasattr(kind, "__get__"):
        return ev.heap.class_value(owner, name, raw)
    return descriptor_get(ev, raw, name, obj, cls)


def bind_class_method(ev: Interpreter, raw: Any, name: str, cls: type, owner: type) -> Any:
    function = member(ev, owner, name, raw, raw.__func__)
    plain = isinstance(function, types.FunctionType) or type(function) in CONTROLLED
    if WRAPPED_DESCRIPTORS_BIND and not plain and hasattr(type(function), "__get__"):
        if type(function) is property:
            return ev.call(function.fget, [cls])
        getter = ev.heap.class_lookup(type(function), "__get__")
        if isinstance(getter, types.FunctionType):
            return ev.call(getter, [function, cls, cls])  # CPython's cm_descr_get hands the class over as both
        return bind(ev, function, name, cls, cls, cls)
    return types.MethodType(function, cls)


def descriptor_get(ev: Interpreter, raw: Any, name: str, obj: Any, cls: type) -> Any:
    getter = ev.heap.class_lookup(type(raw), "__get__")
    descriptor = ev.heap.class_value(cls, name, raw)
    if isinstance(getter, types.FunctionType):
        return ev.call(ev.heap.class_value(type(raw), "__get__", getter), [descriptor, obj, cls])
    if kind_is_method_like(raw):
        return raw.__get__(obj, cls)
    if getter is ABSENT:
        return descriptor
    graph_break("native_call", f"descriptor {name!r} of {cls.__qualname__} ({type(raw).__qualname__})")


def is_property(raw: Any) -> bool:
    """True for a property, and one of a subclass (abc.abstractproperty) that reads and writes like one."""
    kind = type(raw)
    return kind is property or isinstance(raw, property) and (kind.__get__, kind.__set__, kind.__delete__) == _PROPERTY_ACCESS


_PROPERTY_ACCESS = (property.__get__, property.__set__, property.__delete__)


def kind_is_method_like(raw: Any) -> bool:
    return isinstance(raw, (functools._lru_cache_wrapper, types.MethodDescriptorType, types.WrapperDescriptorType))


def member(ev: Interpreter, cls: type, name: str, raw: Any, function: Any) -> Any:
    """The function inside a property, classmethod or staticmethod, with a source."""
    heap = ev.heap
    if id(function) not in heap.by_original and isinstance(function, types.FunctionType) and not heap.is_fresh(function):
        heap.add(function, function, heap.object_source(function), "function")
    if type(function) in CONTROLLED:
        heap.adopt(function)
    heap.class_value(cls, name, raw)
    return function
