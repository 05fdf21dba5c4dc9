"""Value types, as the shadow heap distinguishes them: literals, containers, what an instance's state is, keys of dicts.

In: a class, an object or a key, never what an instance holds. Out: its kind, which decides whether the value stands for itself or gets a
proxy, and what has to be read of it. Invariant: asking runs no code of the program and leaves no guard; who relies on the answer guards
the type.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS
from fxloom_dynamo.objects.sentinels import UNREAD
from fxloom_interfaces.sources import CallSource, Source
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

#: what `optimize` and `disable` give, which bind as functions do
CONTROLLED: frozenset[type] = frozenset({_native.CompiledCallable, _native.Uncaptured})
#: classes of the standard library that describe code. Their instances stand for themselves, and nobody sets what they say (names,
#: kinds, plain defaults); the objects that they refer to are the program's, and followed like any other
FROZEN: frozenset[type] = frozenset({dataclasses.Field, inspect.Signature, inspect.Parameter})
#: guarded by value; an equal object of the same type is as good
LITERALS: frozenset[type] = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
    | NUMPY_SCALARS
)
SINGLETONS = frozenset({bool, type(None), type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format})
_CONTAINER_BASES: tuple[type, ...] = (OrderedDict, defaultdict, dict, list, set, deque)
EXACT_CONTAINERS = frozenset(_CONTAINER_BASES)
FUNCTION_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
#: of a cell: cells compare by content, and only an empty one equals an empty one
IS_EMPTY_CELL = types.CellType().__eq__
#: C objects that look into others: what they show can't be followed
WINDOWS: frozenset[type] = frozenset(
    [types.MappingProxyType, memoryview, bytearray]
    + [type(getattr(kind(), view)()) for kind in (dict, OrderedDict) for view in ("keys", "values", "items")]
)
#: torch's operators and the namespaces that hold them: Python objects that nobody changes and that C code looks into
_OPERATORS: tuple[type, ...] = (torch._ops.OperatorBase, torch._ops.OpOverloadPacket, torch._ops._OpNamespace)
HEAPTYPE = 1 << 9
_IMMUTABLETYPE = 1 << 8
_IS_ABSTRACT = 1 << 20


def is_mutable_type(cls: type) -> bool:
    """True when attributes of `cls` itself can change (false for types written in C)."""
    return bool(cls.__flags__ & HEAPTYPE) and not cls.__flags__ & _IMMUTABLETYPE


def is_abstract(cls: type) -> bool:
    """True for a class with abstract methods, whatever its metaclass says of attributes."""
    return bool(cls.__flags__ & _IS_ABSTRACT)


def keeps_all_in_dict(cls: type) -> bool:
    """True for a Python class whose instances are what their `__dict__` holds, and nothing else."""
    return can_shadow(cls) and container_base(cls) is None and not any(base.__dict__.get("__slots__") for base in cls.__mro__)


def has_finalizer(cls: type) -> bool:
    """True when `cls` or a base defines `__del__`."""
    return any("__del__" in base.__dict__ for base in cls.__mro__)


def container_base(cls: type) -> type | None:
    """The mutable builtin container that `cls` is or derives from."""
    for base in _CONTAINER_BASES:
        if issubclass(cls, base):
            return base
    return None


def c_descriptor_of(method: Any) -> Any:
    """The C descriptor that a bound C method came from (an override in the object's class may hide it); None if unknown."""
    owner, name = method.__self__, method.__name__
    for base in type(owner).__mro__:
        found = base.__dict__.get(name)
        if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)) and found.__get__(owner, type(owner)) == method:
            return found
    return None


def is_bound(fn: types.BuiltinFunctionType) -> bool:
    """True for a method of some object, false for functions of modules and classes."""
    owner = fn.__self__
    plain = owner is None or issubclass(type(owner), (types.ModuleType, type))
    return not plain and not type(owner).__name__.startswith("pybind11_")


def ordered_keys(container: dict[Any, Any]) -> tuple[Any, ...]:
    """Keys in the order in which the container iterates, below overrides of a subclass."""
    return tuple(OrderedDict.__iter__(container) if issubclass(type(container), OrderedDict) else dict.__iter__(container))


def dict_values(container: dict[Any, Any]) -> tuple[Any, ...]:
    """The values of a dict in its order, below overrides of a subclass."""
    return tuple(dict.values(container))


def has_proxy(key: Any) -> bool:
    """True for keys by identity whose proxies are other objects, by identity too."""
    cls: Any = type(key)
    return issubclass(type(key), torch.Tensor) or cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__ and can_shadow(cls)


def is_proxy_key(key: Any) -> bool:
    return type(key) is FakeTensor or type(key) not in LITERALS and has_proxy(key)


def same_keys(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Equal keys in the same order. Tensors are keys by identity; `==` would compare their elements."""
    if len(left) != len(right):
        return False
    return all(a is b or type(a) is not FakeTensor and type(b) is not FakeTensor and a == b for a, b in zip(left, right, strict=True))


def referent(reference: Source) -> Source:
    """What a weak reference refers to."""
    return CallSource(reference, getter=weakref.ReferenceType.__call__, label="{}()")


def set_members(items: set[Any]) -> tuple[Any, ...]:
    """The members of a set in its order, below overrides of a subclass."""
    return tuple(set.__iter__(items))


def set_contents(items: set[Any]) -> frozenset[Any]:
    return frozenset(set.__iter__(items))


def is_buffer(source: Source) -> bool:
    """True for a tensor found among a module's buffers."""
    parent = source.parent
    return parent is not None and getattr(parent, "key", None) == "_buffers"


def can_shadow(cls: type) -> bool:
    """True when an instance's whole state lies in its `__dict__`, `__slots__` and a builtin container."""
    if not cls.__flags__ & HEAPTYPE or issubclass(cls, (type, enum.Enum, BaseException, torch.Tensor, *_OPERATORS)):
        return False
    if cls.__module__ == "typing":  # constants, kept in caches of the standard library
        return False
    for base in cls.__mro__:
        if base is not object and base not in EXACT_CONTAINERS and not base.__flags__ & HEAPTYPE:
            return False
        if base.__module__ != "builtins" and type(base).__name__ == "pybind11_type":
            return False
        if base.__flags__ & _IMMUTABLETYPE and base not in EXACT_CONTAINERS and base is not object:
            return False
    return _is_plainly_made(cls)  # type: ignore[arg-type]  # classes are hashable


@functools.lru_cache(maxsize=4096)
def _is_plainly_made(cls: type) -> bool:
    """False when a base written in C wants its own `__new__`, so its instances have state that we don't see."""
    if is_abstract(cls) or has_finalizer(cls):
        return True  # refused elsewhere
    try:
        (container_base(cls) or object).__new__(cls)  # type: ignore[call-overload]  # a container's __new__ takes the class
    except TypeError:
        return False
    return True


def exception_layout(cls: type) -> type[BaseException]:
    """The class of exceptions written in C whose layout `cls` has."""
    return next(base for base in cls.__mro__ if not base.__flags__ & HEAPTYPE)


def exception_state(exc: BaseException) -> list[tuple[types.MemberDescriptorType, Any]]:
    """What C code keeps of an exception beside its arguments (`OSError.filename`, `StopIteration.value`), where it was set."""
    layout = exception_layout(type(exc))
    if issubclass(layout, BaseExceptionGroup):
        return []  # both members are arguments of its `__new__`
    fresh = layout.__new__(layout)
    found = []
    for base in layout.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith("__"):
                held = member.__get__(exc)
                if held is not member.__get__(fresh):
                    found.append((member, held))
    return found


def is_plain(value: Any, depth: int = 0) -> bool:
    """True for tensors, literals and nests of them: what torch's own Python code may look into by itself."""
    kind = type(value)
    if kind in LITERALS or kind is FakeTensor or kind in SYMBOLIC:
        return True
    if issubclass(type(value), (tuple, list)) and kind in (tuple, list) or kind.__module__ == "torch.return_types":
        return depth < 6 and all(item is UNREAD or is_plain(item, depth + 1) for item in value)
    if kind is dict:
        return depth < 6 and all(item is UNREAD or is_plain(item, depth + 1) for item in value.values())
    if kind is slice:
        return is_plain((value.start, value.stop, value.step), depth + 1)
    return issubclass(type(value), (torch.finfo, torch.iinfo, torch.Size)) or (issubclass(kind, type) and value.__module__ == "torch")
