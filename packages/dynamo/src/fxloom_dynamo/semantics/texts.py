"""Texts of objects: str(), repr(), format(), and what C code may turn into text (`%`, str.format, messages).

In: a value of the program. Out: its text, or the value in a form that C code may print (`printable`). Methods written in Python
are evaluated. The text of a tensor, or of an address, is a break; a number that may change is specialized on, under a guard.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.special_methods import python_method
from fxloom_dynamo.libraries.pure_functions import CONSTANT_TYPES
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.objects.value_types import FUNCTION_TYPES, LITERALS
from fxloom_dynamo.symbolic_numbers.values import concrete
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


#: their texts show names only
_DESCRIPTORS = frozenset(
    {types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
     types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType}
)  # fmt: skip


def printable(ev: Interpreter, value: Any, seen: tuple[int, ...] = ()) -> Any:
    """`value` for C code to turn into text, with plain numbers in place of symbolic ones.

    Breaks when the text would show an address, a tensor's values or run Python code unseen.
    """
    cls = type(value)
    if cls in SYMBOLIC:
        return concrete(value)
    if cls is torch.Size:
        return torch.Size(map(concrete, value))
    if id(value) in seen or cls in LITERALS or isinstance(value, (enum.Enum, type)):
        return value
    depth = (*seen, id(value))
    if cls is FakeTensor:
        graph_break("data_dependent", "the text of a tensor shows its values")
    if isinstance(value, (list, tuple, set, frozenset)):
        ev.heap.fill(value)
        items = list(value)
        shown = [printable(ev, item, depth) for item in items]
        if all(new is old for new, old in zip(shown, items, strict=True)):
            return value
        return tuple.__new__(cls, shown) if isinstance(value, tuple) else _copy(cls, shown)
    if isinstance(value, dict):
        ev.heap.fill(value)
        pairs = [(printable(ev, key, depth), printable(ev, item, depth)) for key, item in list(dict.items(value))]
        same = all(new is old for (_, new), old in zip(pairs, dict.values(value), strict=True))
        return value if same else _copy(cls, pairs)
    if isinstance(value, BaseException):
        for item in value.args:
            if printable(ev, item, depth) is not item:
                graph_break("identity", f"the text of a {cls.__qualname__} computed from a size that may change")
        return value
    if cls is slice:
        return slice(*(printable(ev, part, depth) for part in (value.start, value.stop, value.step)))
    if isinstance(value, deque):
        ev.heap.fill(value)
        if not all(printable(ev, item, depth) is item for item in list(value)):
            graph_break("identity", f"the text of a {cls.__qualname__} that holds a size that may change")
        return value
    if isinstance(value, (torch.finfo, torch.iinfo)) or cls in _DESCRIPTORS or cls in CONSTANT_TYPES:
        return value
    if cls is types.MethodWrapperType and type(value.__self__) in _DESCRIPTORS:
        return value  # the address is that of a class's descriptor, which lives as long as the class
    record = ev.heap.record(value)
    if record is not None and isinstance(value, FUNCTION_TYPES) and record.kind != "closure":
        ev.heap.guard(record.source, GuardKind.IDENTITY, record.original, "id")  # the text shows an address
        return value
    if isinstance(value, (int, float, complex, str, bytes, bytearray, range)) and not ev.heap.record(value):
        return value  # of a subclass whose text is C's or evaluated
    if ev.heap.is_fresh(value) and python_method(ev, value, "__repr__") is not ABSENT:
        return value  # evaluated when C code asks for it
    graph_break("identity", f"the text of a {cls.__qualname__}")


def _copy(cls: type, items: list[Any]) -> Any:
    if cls not in (list, set, frozenset, dict):
        graph_break("identity", f"the text of a {cls.__qualname__} that holds a size that may change")
    return cls(items)


def _with_number(ev: Interpreter, value: Any) -> Any:
    """`value`, the plain one of a number or a shape that may change."""
    if ev.heap.untraceable:
        ev.heap.refuse(value)
    return printable(ev, value) if type(value) in SYMBOLIC or type(value) is torch.Size else value


def to_text(ev: Interpreter, value: Any, how: str = "__str__") -> str:
    """str(value) or repr(value)."""
    value = _with_number(ev, value)
    cls = type(value)
    function = str if how == "__str__" else repr
    if cls in LITERALS:
        return str(ev.native(function, value))
    found = python_method(ev, value, how)
    if found is ABSENT and how == "__str__" and getattr(cls, "__str__", None) is object.__str__:
        found = python_method(ev, value, "__repr__")
    if found is not ABSENT:
        result = ev.call(found, [value])
        if not isinstance(result, str):
            raise Raised(TypeError(f"{how} returned non-string (type {ev.type_of(result).__name__})"))
        return result
    return str(ev.native(function, printable(ev, value)))


def format_value(ev: Interpreter, value: Any, spec: str) -> str:
    """format(value, spec)."""
    value = _with_number(ev, value)
    if type(value) in LITERALS:
        return str(ev.native(format, value, spec))
    found = python_method(ev, value, "__format__")
    if found is not ABSENT:
        result = ev.call(found, [value, spec])
        if not isinstance(result, str):
            raise Raised(TypeError(f"__format__ must return a str, not {ev.type_of(result).__name__}"))
        return result
    if not spec and getattr(type(value), "__format__", None) is object.__format__:
        return to_text(ev, value)
    return str(ev.native(format, printable(ev, value), spec))
