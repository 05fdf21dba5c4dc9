"""What operators, subscripts, truth tests and iteration mean, by the kinds of their operands."""

from __future__ import annotations

import enum
import operator
import types
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo import arrays, symbolic
from fxloom_dynamo.arrays import Array
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.carried import Carried, CarriedNumber
from fxloom_dynamo.guards import GuardKind
from fxloom_dynamo.kinds import LITERALS, container_base
from fxloom_dynamo.marks import ABSENT, DELETED, Address, Raised
from fxloom_dynamo.subclasses import operator_of, special
from fxloom_dynamo.symbolic import concrete, settled
from fxloom_interfaces import symbolic_math
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.evaluator import Evaluator

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

_PYTHON_HEAP = 1 << 9
_SEQUENCES = (list, tuple, str, bytes, range)
_TENSOR_PARTNERS = (int, float, complex, bool, FakeTensor, torch.SymInt, torch.SymFloat)


def python_method(ev: Evaluator, value: Any, name: str) -> Any:
    """The method of a Python class, raw and guarded; ABSENT when the slot is C's or missing."""
    cls = type(value)
    if not cls.__flags__ & _PYTHON_HEAP or cls is FakeTensor:
        return ABSENT
    if issubclass(cls, Carried):
        value.ask()
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


def _beside_tensor(left: Any, right: Any) -> Any:
    """What a tensor takes a number of NumPy's for. (On its left NumPy decides.)"""
    return right.number if type(right) is CarriedNumber and type(left) is FakeTensor else right


def binary(ev: Evaluator, text: str, left: Any, right: Any) -> Any:
    """`left text right`; text ends in `=` for the in-place form."""
    if ev.heap.untraceable:
        if type(left) is Array or type(right) is Array:
            return arrays.call_operator(ev, BINARY[text][0], left, right)
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
        left, right = symbolic.beside(left, right), symbolic.beside(right, left)
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
            return symbolic.binary(ev, BINARY[text.removesuffix("=")][0], text, left, right)
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
            from fxloom_dynamo.models import extend_list

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
            from fxloom_dynamo import texts

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


def is_pure_instance(value: Any) -> bool:
    """True for instances of C types whose operators and methods have no effects beyond their operands."""
    from fxloom_dynamo.natives import CONSTANT_TYPES, PURE_TYPES

    cls = type(value)
    return any(base in PURE_TYPES or base in CONSTANT_TYPES for base in cls.__mro__[:-1]) or cls is object


def is_own_instance(ev: Evaluator, value: Any) -> bool:
    """`is_pure_instance`, or a C object with a state of its own that the program made."""
    from fxloom_dynamo.natives import STATEFUL_TYPES

    return is_pure_instance(value) or type(value) in STATEFUL_TYPES and ev.heap.is_fresh(value)


def compare(ev: Evaluator, text: str, left: Any, right: Any) -> Any:
    """`left text right` of a rich comparison."""
    if (type(left) is Address or type(right) is Address) and text in ("==", "!="):
        if isinstance(left, int) and isinstance(right, int):
            return (int(left) == int(right)) == (text == "==")
    if ev.heap.untraceable:
        if type(left) is Array or type(right) is Array:
            return arrays.call_operator(ev, COMPARISONS[text][0], left, right)
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
            return symbolic.compare(ev, function, left, right)
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


def unary(ev: Evaluator, method: str, value: Any) -> Any:
    """-value, +value or ~value."""
    if ev.heap.untraceable:
        if type(value) is Array:
            return arrays.call_operator(ev, UNARY[method], value)
        ev.heap.refuse(value)
    function = UNARY[method]
    if type(value) in LITERALS:
        return ev.native(function, value)
    if type(value) is FakeTensor:
        if ev.recorder.overriding and (result := special(ev, value, method)) is not ABSENT:
            return result
        return ev.record_call(function, value)
    if type(value) in SYMBOLIC:
        return symbolic.unary(ev, function, value)
    found = python_method(ev, value, method)
    if found is not ABSENT:
        return ev.call(found, [value])
    return ev.native(function, value)


def truth(ev: Evaluator, value: Any) -> bool:
    """bool(value)."""
    if type(value) is Address:
        return True
    if ev.heap.untraceable:
        if type(value) is Array:
            return truth(ev, arrays.call_method(ev, "__bool__", [value], {}))
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


def length(ev: Evaluator, value: Any) -> int:
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


def contains(ev: Evaluator, item: Any, container: Any) -> bool:
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


def hashable(ev: Evaluator, key: Any) -> Any:
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


def with_numbers(ev: Evaluator, index: Any) -> Any:
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


def _number_of(ev: Evaluator, end: Any) -> Any:
    """The number that a tensor stands for as an index; others as they are."""
    if type(end) is not FakeTensor or end.dim() or end.is_floating_point() or end.is_complex() or end.dtype is torch.bool:
        return end
    return ev.torch_native(torch.Tensor.item, end)


def subscript(ev: Evaluator, container: Any, key: Any) -> Any:
    """container[key]."""
    if ev.heap.untraceable:
        if type(container) is Array:
            return arrays.call_operator(ev, operator.getitem, container, key)
        exposed = ev.heap.exposed(container)
        if exposed is not None and isinstance(key, str):
            value = ev.heap.name_get(exposed, key)
            if value is ABSENT:
                raise Raised(KeyError(key))
            return value
        ev.heap.refuse(container)
        if type(container) is FakeTensor:
            key = arrays.as_index(ev, key)
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


def dict_get(ev: Evaluator, container: dict[Any, Any], key: Any) -> Any:
    """The value under a key, ABSENT if there is none. `__hash__` and `__eq__` of keys are the program's code."""
    if type(key) is str:
        return ev.heap.dict_get(container, key)
    key = hashable(ev, key)
    return ev.heap.dict_value(container, key, ev.native(dict.get, container, key, ABSENT))


def dict_contains(ev: Evaluator, container: dict[Any, Any], key: Any) -> bool:
    key = hashable(ev, key)
    return ev.heap.dict_presence(container, key, ev.native(dict.__contains__, container, key))


def dict_subscript(ev: Evaluator, container: dict[Any, Any], key: Any) -> Any:
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


def store_subscript(ev: Evaluator, container: Any, key: Any, value: Any) -> None:
    """container[key] = value."""
    if ev.heap.untraceable:
        if type(container) is Array:
            arrays.call_operator(ev, operator.setitem, container, key, value)
            return
        exposed = ev.heap.exposed(container)
        if exposed is not None and isinstance(key, str):
            exposed.set(key, value)
            return
        ev.heap.refuse(container)
        if type(container) is FakeTensor:
            key = arrays.as_index(ev, key)
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


def delete_subscript(ev: Evaluator, container: Any, key: Any) -> None:
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


def iterate(ev: Evaluator, value: Any) -> Any:
    """iter(value)."""
    if ev.heap.untraceable:
        if type(value) is Array:
            return arrays.iterate(ev, value)
        ev.heap.refuse(value)
    from fxloom_dynamo import polyfills
    from fxloom_dynamo.evaluator import TracedGenerator

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


def advance(ev: Evaluator, iterator: Any) -> Any:
    """The next item of an iterator, ABSENT at its end."""
    if ev.heap.untraceable:
        ev.heap.refuse(iterator)
    from fxloom_dynamo.evaluator import TracedGenerator

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
