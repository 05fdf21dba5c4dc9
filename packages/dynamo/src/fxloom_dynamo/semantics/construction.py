"""What calling a class means: who makes the instance, and who initializes it.

In: a class and the arguments of its call, as the evaluator holds them. Out: the instance, fresh, or what the class's `__new__` returns.
Metaclasses, `__new__` and `__init__` of the program are evaluated; of C code only constructors known to be pure run, models replace a few
others, and the rest is a graph break.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter import descriptors, model_tables
from fxloom_dynamo.interpreter.generators import TracedGenerator
from fxloom_dynamo.interpreter.special_methods import is_pure_instance, python_method
from fxloom_dynamo.libraries import pure_functions
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.objects.unguarded import UnguardedNumber
from fxloom_dynamo.objects.value_types import HEAPTYPE, LITERALS, is_abstract, is_plain
from fxloom_dynamo.semantics import classes, numbers, predictions, type_values
from fxloom_dynamo.symbolic_numbers.values import concrete, has_symbolic
from fxloom_dynamo.traced import polyfills
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]

#: constructors written in C that keep a number as it is, so a symbolic one stays symbolic
_KEEP_NUMBERS = frozenset(
    {functools.partial, types.MethodType, types.CellType, property, staticmethod, classmethod, slice, types.GenericAlias,
     types.SimpleNamespace}
)  # fmt: skip


def call_class(ev: Interpreter, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """cls(*args, **kwargs)"""
    if cls in (int, float) and len(args) == 1 and type(args[0]) is FakeTensor and numbers.is_captured(ev, args[0]):
        if not predictions.number_decides(ev, args[0], cls.__name__):
            args = [ev.torch_native(torch.Tensor.item, args[0])]
    if cls in (int, float) and len(args) == 1 and type(args[0]) is UnguardedNumber:
        args = [args[0].number]
    if has_symbolic(args):
        result = numbers.call(ev, cls, args, kwargs)
        if result is not NotImplemented:
            return result
        if not cls.__flags__ & HEAPTYPE and cls not in _KEEP_NUMBERS and cls is not type and not cls.__module__.startswith("torch"):
            args = [concrete(arg) for arg in args]
    if cls in NUMPY_SCALARS and not kwargs and all(type(arg) in LITERALS for arg in args):
        return ev.native(cls, *args)
    model = model_tables.CLASSES.get(cls)
    if model is not None:
        return model(ev, args, kwargs)
    meta = type(cls)
    if meta is not type:
        custom = ev.heap.class_lookup(meta, "__call__")
        if isinstance(custom, types.FunctionType):
            model = model_tables.METACLASS_CALLS.get(meta)
            if model is not None:
                return model(ev, cls, args, kwargs)
            return ev.call(ev.heap.class_value(meta, "__call__", custom), [cls, *args], kwargs)
        if custom is not ABSENT and not isinstance(custom, types.WrapperDescriptorType):  # another callable, bound or not: a class, say
            return ev.call(descriptors.bind(ev, custom, "__call__", cls, meta, meta), args, kwargs)
    return make_instance(ev, cls, args, kwargs)


def make_instance(ev: Interpreter, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """type.__call__(cls, *args, **kwargs)"""
    if cls in pure_functions.PURE_CONSTRUCTORS:
        return native_construct(ev, cls, args, kwargs)
    if cls in pure_functions.STATEFUL_TYPES or cls in pure_functions.CONSTANT_TYPES:
        return _construct_stateful(ev, cls, args, kwargs)
    if cls in type_values.VARIABLES and type_values.are_arguments(ev, [*args, *kwargs.values()]):
        return type_values.call(ev, cls, args, kwargs)
    if not cls.__flags__ & HEAPTYPE:
        if issubclass(cls, BaseException):
            ev.heap.fill_deep(args)
            return ev.native(cls, *args, **kwargs)
        if cls.__module__ == "torch" or cls.__module__.startswith("torch."):
            return ev.torch_native(cls, *args, **kwargs) if all(map(is_plain, args)) else _refuse_class(cls)
        _refuse_class(cls)
    if issubclass(cls, torch.Tensor):
        return _make_tensor(ev, cls, args, kwargs)
    if cls.__module__ == "typing":
        _refuse_class(cls)
    new = ev.heap.class_lookup(cls, "__new__")
    obj = call_new(ev, cls, new, args, kwargs)
    if not isinstance(obj, cls):
        return obj
    init = ev.heap.class_lookup(cls, "__init__")
    if isinstance(init, types.FunctionType):
        result = ev.call(ev.heap.class_value(cls, "__init__", init), [obj, *args], kwargs)
        if result is not None:
            raise Raised(TypeError(f"__init__() should return None, not '{type(result).__name__}'"))
    elif init is not object.__init__:
        init_owner = getattr(init, "__objclass__", None)
        if init_owner is type:
            pass  # it only checks its arguments, as type.__new__ did
        elif init_owner in pure_functions.STATEFUL_TYPES:
            ev.native(init, obj, *args, **kwargs)
        elif init_owner in pure_functions.PURE_TYPES or (isinstance(init_owner, type) and issubclass(init_owner, BaseException)):
            ev.call(init.__get__(obj, cls), args, kwargs)
        elif isinstance(init, (types.WrapperDescriptorType, types.MethodDescriptorType)):
            _refuse_class(cls)
        else:
            ev.call(ev.getattr(obj, "__init__"), args, kwargs)
    elif (args or kwargs) and new is object.__new__:
        raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
    return obj


def _construct_stateful(ev: Interpreter, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """A C object with a state of its own, made by the program and so ours to use."""
    ev.heap.fill_deep(args)
    ev.heap.fill_deep(kwargs)
    return ev.heap.add_fresh(ev.native(cls, *args, **kwargs))


def _refuse_class(cls: type) -> Any:
    graph_break("native_call", f"makes a {cls.__module__}.{cls.__qualname__}")


def call_new(ev: Interpreter, cls: type, new: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """cls.__new__(cls, *args, **kwargs); `new` is the raw lookup."""
    if isinstance(new, (staticmethod, classmethod)):
        new = descriptors.member(ev, cls, "__new__", new, new.__func__)
    if isinstance(new, types.FunctionType):
        return ev.call(new, [cls, *args], kwargs)
    owner = getattr(new, "__self__", object)
    return allocate(ev, owner, cls, args, kwargs)


def allocate(ev: Interpreter, owner: type, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """owner.__new__(cls, ...) of a type written in C."""
    if ev.heap.class_lookup(cls, "__del__") is not ABSENT:
        graph_break("finalizer", f"makes a {cls.__qualname__}, which defines __del__")
    if issubclass(owner, type):
        return classes.make_class(ev, cls, args, kwargs)
    if isinstance(cls, enum.EnumMeta) and not ev.heap.is_fresh(cls):
        graph_break("native_call", f"makes another member of {cls.__qualname__}")
    if owner is object:
        if is_abstract(cls):
            ev.native(object.__new__, cls)  # raises TypeError
        return ev.heap.add_fresh(ev.native(object.__new__, cls))
    made_of_arguments = pure_functions.PURE_CONSTRUCTORS - pure_functions.PURE_TYPES
    if owner in pure_functions.STATEFUL_TYPES or owner in pure_functions.CONSTANT_TYPES or owner in made_of_arguments:
        ev.heap.fill_deep(args)
        return ev.heap.add_fresh(ev.native(owner.__new__, cls, *args, **kwargs))
    if owner in pure_functions.PURE_TYPES or issubclass(owner, BaseException):
        if issubclass(owner, (list, dict, set)) or owner.__name__ == "deque":
            return ev.heap.add_fresh(ev.native(owner.__new__, cls))
        if owner in pure_functions.ITERATING_CONSTRUCTORS:
            args = [iterable_argument(ev, arg) for arg in args]
        value = ev.native(owner.__new__, cls, *args, **kwargs)
        return ev.heap.add_fresh(value)
    return _refuse_class(cls)


def iterable_argument(ev: Interpreter, arg: Any) -> Any:
    """An argument that C code may iterate: Python-level iteration goes through a generator that we run."""
    ev.heap.fill_deep(arg)
    if ev.heap.untraceable:
        ev.heap.refuse(arg)
    kind = type(arg)
    if hasattr(kind, "__next__") and not kind.__flags__ & HEAPTYPE and not is_pure_instance(arg) and kind is not TracedGenerator:
        graph_break("native_call", f"C code iterating a {kind.__qualname__}")
    if not kind.__flags__ & HEAPTYPE or kind is FakeTensor or kind is TracedGenerator:
        return arg
    if isinstance(arg, (type, types.ModuleType)):
        return arg
    if python_method(ev, arg, "__iter__") is ABSENT and python_method(ev, arg, "__getitem__") is ABSENT:
        return arg
    if isinstance(arg, (list, tuple, dict, set, frozenset, str)) and python_method(ev, arg, "__iter__") is ABSENT:
        return arg
    iterator = ev.iter(arg)
    if type(iterator) is TracedGenerator or python_method(ev, iterator, "__next__") is ABSENT:
        return iterator
    return ev.call(polyfills.pass_through, [iterator], {})


def native_construct(ev: Interpreter, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """A builtin's constructor."""
    ev.heap.fill_deep(args)
    ev.heap.fill_deep(kwargs)
    if any(type(arg) is FakeTensor for arg in args):
        return ev.torch_native(cls, *args, **kwargs)
    if cls in pure_functions.ITERATING_CONSTRUCTORS:
        args = [iterable_argument(ev, arg) for arg in args]
    return ev.native(cls, *args, **kwargs)


def _make_tensor(ev: Interpreter, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """torch.Tensor(...), its legacy siblings, and classes of the program's that derive from it."""
    if cls is torch.Tensor and all(is_plain(arg) for arg in args):
        if len(args) == 1 and isinstance(args[0], torch.Size):
            if not args[0]:
                return ev.record_call(torch.empty, ())
            args = list(args[0])  # a Size is a shape; the tuple that a graph would hold is data
        return ev.record_call(torch.Tensor, *args, **kwargs)
    new = ev.heap.class_lookup(cls, "__new__")
    if not isinstance(getattr(new, "__func__", new), types.FunctionType):
        graph_break("torch_call", f"makes a {cls.__module__}.{cls.__qualname__}")
    made = call_new(ev, cls, new, args, kwargs)
    init = ev.heap.class_lookup(cls, "__init__")
    if isinstance(init, types.FunctionType) and issubclass(ev.type_of(made), cls):
        ev.call(ev.heap.class_value(cls, "__init__", init), [made, *args], kwargs)
    return made
