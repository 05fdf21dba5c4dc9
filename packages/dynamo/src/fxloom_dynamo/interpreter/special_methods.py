"""Special methods: which one a class of the program defines in Python, and what C code takes from it.

In: a value and the name of a method. Out: the raw method with its guard, or ABSENT where the slot is written in C."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.libraries.pure_functions import CONSTANT_TYPES, PURE_TYPES, STATEFUL_TYPES
from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_dynamo.objects.unguarded import Unguarded
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


_PYTHON_HEAP = 1 << 9


def python_method(ev: Interpreter, value: Any, name: str) -> Any:
    """The method of a Python class, raw and guarded; ABSENT when the slot is C's or missing."""
    cls = type(value)
    if not cls.__flags__ & _PYTHON_HEAP or cls is FakeTensor:
        return ABSENT
    if issubclass(cls, Unguarded):
        value.reveal()
    raw = ev.heap.class_lookup(cls, name)
    if raw is ABSENT or raw is None or isinstance(raw, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        return ABSENT
    if isinstance(raw, types.FunctionType):
        return ev.heap.class_value(cls, name, raw)
    if isinstance(raw, (classmethod, staticmethod)):
        return raw.__func__
    if isinstance(raw, types.BuiltinFunctionType):
        return ABSENT
    return ev.heap.class_value(cls, name, raw)


#: methods that C code calls for a number -> types whose instances it takes without a word
_NUMBER_OF: dict[str, tuple[type, ...]] = {
    "__bool__": (bool, torch.SymBool),
    "__len__": (int, torch.SymInt),
    "__index__": (int, torch.SymInt),
    "__int__": (int, torch.SymInt),
    "__float__": (float, torch.SymFloat),
    "__complex__": (complex,),
}


def answered(value: Any, name: str, result: Any) -> Any:
    """What to hand to C code that asks `value` for a number, where its method `name` gave `result`.

    C code judges results of other types: an object with such a method is what it gets then, of a class of the same name.
    """
    if type(result) in _NUMBER_OF.get(name, ()):
        return result
    return type(type(value).__name__, (), {name: lambda _: result})()


def is_pure_instance(value: Any) -> bool:
    """True for instances of C types whose operators and methods have no effects beyond their operands."""
    cls = type(value)
    return any(base in PURE_TYPES or base in CONSTANT_TYPES for base in cls.__mro__[:-1]) or cls is object


def is_own_instance(ev: Interpreter, value: Any) -> bool:
    """`is_pure_instance`, or a C object with a state of its own that the program made."""
    return is_pure_instance(value) or type(value) in STATEFUL_TYPES and ev.heap.is_fresh(value)
