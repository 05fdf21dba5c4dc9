"""What operators, comparisons, truth tests and `len` mean, by the types of their operands.

In: the operands, as the evaluator holds them. Out: the value that Python would give, or Python's exception as `Raised`. Methods of the
program's classes are evaluated in Python's order (the reflected one first for a subclass); on tensors an operator is recorded; a symbolic
number stays one where `numbers` knows how.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.special_methods import answered, is_own_instance, python_method
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.sentinels import ABSENT, Address, Raised
from fxloom_dynamo.objects.unguarded import UnguardedNumber
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.semantics import numbers, texts
from fxloom_dynamo.semantics.container_updates import extend_list
from fxloom_dynamo.semantics.iteration import advance, iterate
from fxloom_dynamo.semantics.subscripts import dict_contains, hashable
from fxloom_dynamo.symbolic_numbers import values
from fxloom_dynamo.symbolic_numbers.values import concrete, settled
from fxloom_dynamo.tensors import numpy_calls
from fxloom_dynamo.tensors.subclasses import operator_of, special
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: operator text -> (function, method, reflected method, in-place method or "")
BINARY: dict[str, tuple[Callable[[Any, Any], Any], str, str, str]] = {}
for _text, _name, _function in (
    ("+", "add", operator.add), ("-", "sub", operator.sub), ("*", "mul", operator.mul),
    ("/", "truediv", operator.truediv), ("//", "floordiv", operator.floordiv), ("%", "mod", operator.mod),
    ("**", "pow", operator.pow), ("@", "matmul", operator.matmul), ("&", "and", operator.and_),
    ("|", "or", operator.or_), ("^", "xor", operator.xor), ("<<", "lshift", operator.lshift),
    (">>", "rshift", operator.rshift),
):  # fmt: skip
    BINARY[_text] = (_function, f"__{_name}__", f"__r{_name}__", "")
    BINARY[f"{_text}="] = (getattr(operator, f"i{_name}"), f"__{_name}__", f"__r{_name}__", f"__i{_name}__")

COMPARISONS: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}

UNARY: dict[str, Callable[[Any], Any]] = {
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__invert__": operator.invert,
}

_TENSOR_PARTNERS = (int, float, complex, bool, FakeTensor, torch.SymInt, torch.SymFloat)


def _beside_tensor(left: Any, right: Any) -> Any:
    """What a tensor takes a number of NumPy's for. (On its left NumPy decides.)"""
    return right.number if type(right) is UnguardedNumber and type(left) is FakeTensor else right


def binary(ev: Interpreter, text: str, left: Any, right: Any) -> Any:
    """`left text right`; text ends in `=` for the in-place form."""
    if ev.heap.untraceable:
        if type(left) is Array or type(right) is Array:
            return numpy_calls.call_operator(ev, BINARY[text][0], left, right)
        right = _beside_tensor(left, right)
        ev.heap.refuse(left)
        ev.heap.refuse(right)
    function, method, reflected, inplace = BINARY[text]
    kind_left, kind_right = type(left), type(right)
    if kind_left in LITERALS and kind_right in LITERALS:
        return ev.native(function, left, right)
    if kind_left is FakeTensor or kind_right is FakeTensor:
        if ev.recorder.overriding and (result := operator_of(ev, left, right, (method, reflected, inplace))) is not ABSENT:
            return result
        left, right = values.beside(left, right), values.beside(right, left)
        if isinstance(left, _TENSOR_PARTNERS) and isinstance(right, _TENSOR_PARTNERS):
            if inplace and kind_left is not FakeTensor:
                function = BINARY[text[:-1]][0]
            if function is operator.pow and (kind_left in SYMBOLIC or kind_right in SYMBOLIC):
                return ev.torch_native(torch.pow, left, right)  # which knows how numbers that change are differentiated
            if function is operator.ipow and kind_right in SYMBOLIC:
                return ev.torch_native(torch.Tensor.pow_, left, right)
            return ev.record_call(function, left, right)
    elif kind_left in SYMBOLIC or kind_right in SYMBOLIC:
        if kind_left in LITERALS or kind_left in SYMBOLIC:
            return numbers.binary(ev, BINARY[text.removesuffix("=")][0], text, left, right)
        left, right = concrete(left), concrete(right)
    if inplace:
        found = python_method(ev, left, inplace)
        if found is not ABSENT and kind_right is FakeTensor:
            result = ev.call(found, [left, right])
            if result is not NotImplemented:
                return result
        if found is not ABSENT or getattr(kind_left, inplace, ABSENT) is None:
            python_method(ev, left, method)
            python_method(ev, right, reflected)
            return ev.native(function, left, right)
        if isinstance(left, list) and text == "+=":
            extend_list(ev, left, right)
            return left
    own = python_method(ev, left, method)
    other = python_method(ev, right, reflected)
    if own is ABSENT and other is ABSENT:
        if kind_left is FakeTensor or kind_right is FakeTensor:
            return ev.torch_native(function, left, right)
        ev.heap.fill_deep(left)
        ev.heap.fill_deep(right)
        if text in ("%", "%=") and kind_left is str:
            right = texts.printable(ev, right)
        classes = kind_left is type or isinstance(left, type) or isinstance(right, type)
        if classes or is_own_instance(ev, left) and is_own_instance(ev, right):
            return ev.native(function, left, right)
        graph_break("native_call", f"{text} of {kind_left.__qualname__} and {kind_right.__qualname__}")
    if kind_left is not FakeTensor and kind_right is not FakeTensor:
        ev.heap.fill_deep(left)
        ev.heap.fill_deep(right)
        return ev.native(function, left, right)  # the methods are evaluated when C code calls them
    if own is not ABSENT:
        result = ev.call(own, [left, right])
        if result is not NotImplemented:
            return result
    if other is not ABSENT and kind_left is not kind_right:
        result = ev.call(other, [right, left])
        if result is not NotImplemented:
            return result
    raise Raised(
        TypeError(
            f"unsupported operand type(s) for {text}: '{ev.type_of(left).__name__}' and '{ev.type_of(right).__name__}'"
        )
    )


def compare(ev: Interpreter, text: str, left: Any, right: Any) -> Any:
    """`left text right` of a rich comparison."""
    if (type(left) is Address or type(right) is Address) and text in ("==", "!="):
        if isinstance(left, int) and isinstance(right, int):
            return (int(left) == int(right)) == (text == "==")
    if ev.heap.untraceable:
        if type(left) is Array or type(right) is Array:
            return numpy_calls.call_operator(ev, COMPARISONS[text][0], left, right)
        right = _beside_tensor(left, right)
        ev.heap.refuse(left)
        ev.heap.refuse(right)
    function, method, reflected = COMPARISONS[text]
    kind_left, kind_right = type(left), type(right)
    if kind_left in LITERALS and kind_right in LITERALS:
        return ev.native(function, left, right)
    if kind_left is FakeTensor or kind_right is FakeTensor:
        if ev.recorder.overriding and (result := operator_of(ev, left, right, (method, reflected, ""))) is not ABSENT:
            return result
        if isinstance(left, _TENSOR_PARTNERS) and isinstance(right, _TENSOR_PARTNERS):
            return ev.record_call(function, left, right)
        if text in ("==", "!=") and (left is None or right is None or isinstance(left, str) or isinstance(right, str)):
            return text == "!="
    elif kind_left in SYMBOLIC or kind_right in SYMBOLIC:
        if kind_left in LITERALS | SYMBOLIC and kind_right in LITERALS | SYMBOLIC:
            return numbers.compare(ev, function, left, right)
        left, right = concrete(left), concrete(right)
        kind_left, kind_right = type(left), type(right)
    own = python_method(ev, left, method)
    other = python_method(ev, right, reflected)
    if kind_left is not FakeTensor and kind_right is not FakeTensor or own is ABSENT and other is ABSENT:
        if text == "!=":  # object.__ne__ inverts __eq__
            python_method(ev, left, "__eq__")
            python_method(ev, right, "__eq__")
        ev.heap.fill_deep(left)
        ev.heap.fill_deep(right)
        return ev.native(function, left, right)  # the methods are evaluated when C code calls them
    if other is not ABSENT and kind_left is not kind_right and issubclass(kind_right, kind_left):
        result = ev.call(other, [right, left])
        if result is not NotImplemented:
            return result
        other = ABSENT
    if own is not ABSENT:
        result = ev.call(own, [left, right])
        if result is not NotImplemented:
            return result
    if other is not ABSENT:
        result = ev.call(other, [right, left])
        if result is not NotImplemented:
            return result
    if text == "==":
        return left is right
    if text == "!=":
        return left is not right
    raise Raised(
        TypeError(
            f"'{text}' not supported between instances of '{ev.type_of(left).__name__}' and '{ev.type_of(right).__name__}'"
        )
    )


def unary(ev: Interpreter, method: str, value: Any) -> Any:
    """-value, +value or ~value."""
    if ev.heap.untraceable:
        if type(value) is Array:
            return numpy_calls.call_operator(ev, UNARY[method], value)
        ev.heap.refuse(value)
    function = UNARY[method]
    if type(value) in LITERALS:
        return ev.native(function, value)
    if type(value) is FakeTensor:
        if ev.recorder.overriding and (result := special(ev, value, method)) is not ABSENT:
            return result
        return ev.record_call(function, value)
    if type(value) in SYMBOLIC:
        return numbers.unary(ev, function, value)
    found = python_method(ev, value, method)
    if found is not ABSENT:
        return ev.call(found, [value])
    return ev.native(function, value)


def truth(ev: Interpreter, value: Any) -> bool:
    """bool(value)."""
    if type(value) is Address:
        return True
    if ev.heap.untraceable:
        if type(value) is Array:
            return truth(ev, numpy_calls.call_method(ev, "__bool__", [value], {}))
        ev.heap.refuse(value)
    if value is True or value is False or value is None:
        return bool(value)
    cls = type(value)
    if cls in LITERALS and value is not NotImplemented:  # of which C code warns
        return bool(value)
    if ev.recorder.overriding and (result := special(ev, value, "__bool__")) is not ABSENT:
        return truth(ev, result)
    if cls is FakeTensor or cls in SYMBOLIC:
        return bool(ev.torch_native(bool, value))
    if isinstance(value, (list, tuple, set, frozenset)) and python_method(ev, value, "__bool__") is ABSENT:
        found = python_method(ev, value, "__len__")
        if found is ABSENT:
            return len(value) > 0
    for name in ("__bool__", "__len__"):
        found = python_method(ev, value, name)
        if found is not ABSENT:
            result = answered(value, name, ev.call(found, [value]))
            if type(result) in SYMBOLIC:
                return truth(ev, result)
            if name == "__len__" and type(result) is int and result < 0:
                raise Raised(ValueError("__len__() should return >= 0"))
            return bool(ev.native(bool, result))
    if isinstance(value, dict):
        return length(ev, value) > 0
    if isinstance(value, (type, types.FunctionType, types.MethodType, types.ModuleType, types.BuiltinFunctionType)):
        if isinstance(value, type) and type(value) is not type:
            return bool(ev.native(bool, value))
        return True
    return bool(ev.native(bool, value))


def length(ev: Interpreter, value: Any) -> int:
    """len(value)."""
    if ev.heap.untraceable:
        if type(value) is Array and value.tensor.dim():
            return settled(ev.torch_native(value.tensor.size, 0))
        ev.heap.refuse(value)
    cls = type(value)
    if ev.recorder.overriding and (result := special(ev, value, "__len__")) is not ABSENT:
        return int(result)
    if cls is FakeTensor:
        return settled(ev.torch_native(value.size, 0)) if value.dim() else int(ev.torch_native(len, value))
    found = python_method(ev, value, "__len__")
    if found is not ABSENT:
        result = ev.call(found, [value])
        if not isinstance(result, int):
            raise Raised(TypeError(f"'{type(result).__name__}' object cannot be interpreted as an integer"))
        return result
    if isinstance(value, dict):
        record = ev.heap.record(value)
        if record is not None and not record.filled:
            ev.heap.guard(record.source, GuardKind.LENGTH, len(record.keys))
        return dict.__len__(value)
    return int(ev.native(len, value))


def contains(ev: Interpreter, item: Any, container: Any) -> bool:
    """`item in container`."""
    if ev.heap.untraceable:
        exposed = ev.heap.exposed(container)
        if exposed is not None and isinstance(item, str):
            return ev.heap.name_get(exposed, item) is not ABSENT
        ev.heap.refuse(container)
    cls = type(container)
    found = python_method(ev, container, "__contains__")
    if found is not ABSENT:
        return truth(ev, ev.call(found, [container, item]))
    if getattr(cls, "__contains__", ABSENT) is None:
        return bool(ev.native(operator.contains, container, item))  # raises
    if cls is FakeTensor:
        return bool(ev.torch_native(operator.contains, container, item))
    if not isinstance(container, (list, tuple)):
        item = concrete(item)
    if isinstance(container, dict):
        return dict_contains(ev, container, item)
    if isinstance(container, (list, tuple)) and python_method(ev, container, "__iter__") is ABSENT:
        ev.heap.fill_deep(container)
        ev.heap.fill_deep(item)
        return bool(ev.native(operator.contains, container, item))
    if isinstance(container, (set, frozenset, types.MappingProxyType, type({}.keys()))):
        return bool(ev.native(operator.contains, container, hashable(ev, item)))
    if is_own_instance(ev, container) and not _is_iterator(container):
        if python_method(ev, container, "__iter__") is ABSENT:
            ev.heap.fill_deep(container)
            return bool(ev.native(operator.contains, container, item))
    iterator = iterate(ev, container)
    while (element := advance(ev, iterator)) is not ABSENT:
        if element is item or truth(ev, compare(ev, "==", element, item)):
            return True
    return False


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")
