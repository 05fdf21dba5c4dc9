"""What calling a C function means: a model, a run under the recording mode, a pure run, or a break.

In: the function, method, slot or constructor, and its arguments. Out: what it returns. In this order: a directive of the user's, a rule
for symbolic numbers, a model, a run under the mode that records torch's operators, a run of what `libraries.pure_functions` lists.
Invariant: C code of which nothing is known is not run while capturing; it is a graph break.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import TensorBase
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.directives import directive_for
from fxloom_dynamo.graph.builder import has_tensor
from fxloom_dynamo.graph.recorder import UNMODELLED_METHODS
from fxloom_dynamo.interpreter import model_tables, special_methods
from fxloom_dynamo.libraries import pure_functions, torch_functions
from fxloom_dynamo.objects import array_values, setting_queries
from fxloom_dynamo.objects.sentinels import ABSENT, Raised, own_dict
from fxloom_dynamo.objects.unguarded import as_numbers
from fxloom_dynamo.objects.value_types import HEAPTYPE, LITERALS, c_descriptor_of, can_shadow, is_plain, keeps_all_in_dict
from fxloom_dynamo.semantics import numbers, subscripts, texts
from fxloom_dynamo.semantics.construction import allocate, iterable_argument, make_instance, native_construct
from fxloom_dynamo.semantics.directed_calls import call_as_directed
from fxloom_dynamo.symbolic_numbers.values import concrete, has_symbolic
from fxloom_dynamo.tensors import numpy_calls, subclasses
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]
_new_object: Any = vars(copyreg)["__newobj__"]  # the stubs lack it


def call_builtin(ev: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """A call of a function, method, slot or constructor that is written in C. The first that applies decides: what the program
    has said of it, symbolic numbers among its arguments, a model, its receiver.
    """
    kind = type(fn)
    if issubclass(kind, types.BuiltinFunctionType):
        kind = types.BuiltinFunctionType  # the interpreter has a subclass for methods that know their class
    directive = directive_for(fn)
    if directive is not None:
        return call_as_directed(ev, fn, directive, args, kwargs)
    if has_symbolic(args) or kwargs and has_symbolic(kwargs.values()):
        result = numbers.call(ev, fn, args, kwargs)
        if result is not NotImplemented:
            return result
        if not _keeps_numbers(fn):
            args, kwargs = [concrete(arg) for arg in args], {name: concrete(arg) for name, arg in kwargs.items()}
    try:
        model = model_tables.FUNCTIONS.get(fn)
    except TypeError:  # an unhashable receiver
        model = None
    if model is not None:
        return model(ev, args, kwargs)
    owner = getattr(fn, "__self__", None)
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType):
        return _call_descriptor(ev, fn, fn.__objclass__, fn.__name__, args, kwargs)
    if kind is types.MethodWrapperType:
        slot = fn.__objclass__.__dict__[fn.__name__]
        return _call_descriptor(ev, slot, fn.__objclass__, fn.__name__, [owner, *args], kwargs)
    if owner is None or isinstance(owner, types.ModuleType) or type(owner).__name__.startswith("pybind11_"):
        return _call_c_function(ev, fn, args, kwargs)
    if isinstance(owner, type):  # a classmethod, or __new__
        if fn.__name__ == "__new__":
            target = args[0]
            if target in pure_functions.PURE_CONSTRUCTORS:
                return native_construct(ev, target, args[1:], kwargs)
            return allocate(ev, owner, target, args[1:], kwargs)
        if fn.__name__ == "__prepare__" and isinstance(owner, type) and issubclass(type(owner), type):
            return {}
        if fn.__name__ == "mro" and not args:
            return ev.native(fn)
        if fn.__name__ in ("__init_subclass__", "__subclasshook__") and not hasattr(fn, "__wrapped__"):
            return ev.native(fn, *args, **kwargs)  # object's
        if fn in pure_functions.PURE_FUNCTIONS or any(base in pure_functions.PURE_TYPES for base in owner.__mro__[:-1]):
            ev.heap.fill_deep(args)
            return _own(ev, ev.native(fn, *args, **kwargs))
        if owner in pure_functions.CONSTANT_TYPES or owner in pure_functions.STATEFUL_TYPES:
            ev.heap.fill_deep(args)
            return _own(ev, ev.native(fn, *args, **kwargs))
        if torch_functions.is_torch_builtin(fn):
            return _call_torch(ev, fn, args, kwargs)
        graph_break("native_call", f"{owner.__qualname__}.{fn.__name__}")
    descriptor = c_descriptor_of(fn)
    if descriptor is None:
        graph_break("native_call", f"{type(owner).__module__}.{type(owner).__qualname__}.{fn.__name__}")
    return _call_descriptor(ev, descriptor, descriptor.__objclass__, fn.__name__, [owner, *args], kwargs)


def _keeps_numbers(fn: Any) -> bool:
    """True for C functions that take symbolic numbers as they are: torch's, operators, and those that only store values."""
    if torch_functions.is_torch_builtin(fn) or fn in _LOOK_AT_NOTHING or isinstance(getattr(fn, "__self__", None), torch.Tensor):
        return True
    if getattr(fn, "__module__", None) in ("_operator", "operator"):
        return True
    owner = getattr(fn, "__objclass__", None) or type(getattr(fn, "__self__", None))
    if owner is object and fn.__name__ == "__setattr__":
        return True
    return isinstance(owner, type) and issubclass(owner, (list, collections.deque)) and fn.__name__ in ("append", "appendleft")


#: models that look at types or only pass values on
_LOOK_AT_NOTHING = frozenset({isinstance, getattr, setattr, hasattr, len, iter, next, sum, callable, print})


def _call_c_function(ev: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    if fn is abs and len(args) == 1 and type(args[0]) is array_values.Array:
        return numpy_calls.call_operator(ev, fn, args[0])
    if pure_functions.is_pure_function(fn):
        name = fn.__name__
        if fn.__module__ in ("_operator", "operator"):
            operator_model = model_tables.OPERATOR_FUNCTIONS.get(name)
            if operator_model is not None:
                if kwargs or len(args) != model_tables.OPERATOR_ARITY[name]:
                    return ev.native(fn, *args, **kwargs)  # raises
                return operator_model(ev, args, kwargs)
        if any(type(arg) is FakeTensor for arg in args):
            return ev.torch_native(fn, *args, **kwargs)
        if all(type(arg) in LITERALS for arg in args):
            return ev.native(fn, *args, **kwargs)
        method = model_tables.DUNDER_OF.get(name)
        if method is not None and args:
            found = special_methods.python_method(ev, args[0], method)
            if found is not ABSENT and method != "__index__":
                return ev.call(found, args, kwargs)
            if found is not ABSENT and not isinstance(args[0], int):  # C code takes integers as they are
                return ev.native(fn, special_methods.answered(args[0], method, ev.call(found, [args[0]])))
        ev.heap.fill_deep(args)
        return _own(ev, ev.native(fn, *args, **kwargs))
    if torch_functions.is_torch_builtin(fn):
        return _call_torch(ev, fn, args, kwargs)
    if fn.__module__ == "numpy" and numpy_calls.is_function(fn):
        return numpy_calls.call(ev, fn, args, kwargs)
    graph_break("native_call", f"{fn.__module__}.{fn.__qualname__}")


def _call_torch(ev: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    if torch_functions.refused_torch_builtin(fn):
        graph_break("torch_call", f"{getattr(fn, '__module__', 'torch')}.{fn.__qualname__}")
    if ev.heap.unguarded:
        args, kwargs = as_numbers(fn, args), as_numbers(fn, kwargs)
    result = subclasses.call(ev, fn, tuple(args), kwargs, subclasses.arguments(args, kwargs))
    if result is not NotImplemented:
        return result
    for arg in (*args, *kwargs.values()):
        if not is_plain(arg):
            ev.heap.refuse(arg)
            graph_break("torch_call", f"{fn.__qualname__} of a {type(arg).__qualname__}")
    if torch_functions.is_past_dispatcher(fn) and has_tensor([*args, *kwargs.values()]):
        graph_break("torch_call", f"{fn.__qualname__}, which may work on the memory of tensors, and is no operator")
    answer = ev.torch_native(fn, *args, **kwargs)
    if type(answer) is FakeTensor and not ev.recorder.is_known(answer):
        graph_break("torch_call", f"{fn.__qualname__}, which makes a tensor out of capture's sight")
    setting_queries.guard_answer(ev.heap, fn, args, kwargs, answer)
    return answer


def _call_descriptor(ev: Interpreter, fn: Any, owner: type, name: str, args: list[Any], kwargs: Kwargs) -> Any:
    """A method written in C, with its receiver first."""
    if not args:
        raise Raised(TypeError(f"unbound method {owner.__name__}.{name}() needs an argument"))
    receiver = args[0]
    model = model_tables.METHODS.get((owner, name))
    if model is not None:
        return model(ev, args, kwargs)
    if type(receiver) is FakeTensor or issubclass(owner, TensorBase):
        if name in UNMODELLED_METHODS:  # some never reach the recording mode
            ev.recorder.refuse_method(name, receiver)
        return ev.torch_native(fn, *args, **kwargs)
    if owner in (types.MethodWrapperType, types.BuiltinFunctionType) and name == "__call__":
        return ev.call(receiver, args[1:], kwargs)
    if owner in (types.FunctionType, types.MethodType, property, types.MethodDescriptorType, types.WrapperDescriptorType):
        if name == "__get__":
            return ev.native(fn, *args, **kwargs)
        if name == "__call__":
            return ev.call(receiver, args[1:], kwargs)
    if owner is type and name == "__call__":
        return make_instance(ev, receiver, args[1:], kwargs)
    changes = issubclass(owner, BaseException) and name in ("add_note", "with_traceback", "__setstate__", "__init__")
    if changes and ev.heap.record(receiver) is not None:
        graph_break("mutates_foreign_state", f"{owner.__qualname__}.{name} of an exception that was there before")
    if any(base in pure_functions.PURE_TYPES for base in owner.__mro__[:-1]) or owner is object and name in _OBJECT_SAFE:
        heap = ev.heap
        if not _only_adds(receiver, name):
            heap.fill(receiver)
        if name in pure_functions.DEEP_METHODS:
            heap.fill_deep(receiver)
        if name in ("__repr__", "__str__", "__format__"):
            receiver = texts.printable(ev, receiver)
        rest = args[1:]
        heap.fill_deep(rest)
        if issubclass(owner, (set, frozenset, dict)):
            rest = [_hashed(ev, arg) for arg in rest]
        if name in pure_functions.ITERATING_METHODS and not issubclass(owner, BaseException):
            rest = [iterable_argument(ev, arg) for arg in rest]
        with_tensor = any(type(arg) is FakeTensor for arg in rest)
        if with_tensor and not isinstance(receiver, (list, dict, set, tuple)) and not hasattr(receiver, "append"):
            return ev.torch_native(fn, receiver, *rest, **kwargs)
        return ev.native(fn, receiver, *rest, **kwargs)
    if owner in pure_functions.CONSTANT_TYPES or owner in pure_functions.STATEFUL_TYPES and ev.heap.is_fresh(receiver):
        rest = args[1:]
        ev.heap.fill_deep(rest)
        if any(type(arg) is FakeTensor for arg in rest):
            graph_break("native_call", f"{owner.__qualname__}.{name} of a tensor")
        return _own(ev, ev.native(fn, receiver, *rest, **kwargs))
    if fn is object.__reduce_ex__ and not kwargs and len(args) == 2 and _is_reduced_to_dict(ev, receiver):
        return (_new_object, (type(receiver),), ev.getattr(receiver, "__dict__") or None, None, None)
    if owner in (object, BaseException) and name in ("__reduce_ex__", "__reduce__", "__getstate__") and _may_be_reduced(ev, receiver):
        return _own(ev, ev.native(fn, *args, **kwargs))
    if owner is type and name == "__prepare__":
        return {}
    if owner is type and name in ("mro", "__subclasses__", "__instancecheck__", "__subclasscheck__"):
        return ev.native(fn, *args, **kwargs)
    if isinstance(receiver, BaseException):
        return ev.native(fn, *args, **kwargs)
    if torch_functions.is_torch_builtin(fn):
        return _call_torch(ev, fn, args, kwargs)
    graph_break("native_call", f"{owner.__module__}.{owner.__qualname__}.{name}")


def _only_adds(receiver: Any, name: str) -> bool:
    """True for an append that leaves the other items where they are, so that nobody needs to know them."""
    return name == "append" and (isinstance(receiver, list) or isinstance(receiver, deque) and receiver.maxlen is None)


def _hashed(ev: Interpreter, arg: Any) -> Any:
    """An argument of a method that hashes it, or its items."""
    if type(arg) is list:
        return [subscripts.hashable(ev, item) for item in arg]
    return subscripts.hashable(ev, arg)


def check_reducible(ev: Interpreter, value: Any, seen: set[int] | None = None) -> None:
    """Break unless C code may look at all that `value` refers to (to pickle it, say)."""
    if type(value) in LITERALS or isinstance(value, (*_NAMED, types.ModuleType)):
        if ev.heap.is_fresh(value):
            graph_break("native_call", "C code looking up a class or function of the program's by its name")
        return
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    ev.heap.fill_deep(value)
    kind = type(value)
    if kind is FakeTensor or kind not in pure_functions.PURE_TYPES and not isinstance(value, (BaseException, tuple)):
        if kind in pure_functions.CONSTANT_TYPES or isinstance(value, enum.Enum):
            return
        if not can_shadow(kind) and not ev.heap.is_fresh(value) or kind is FakeTensor or kind in pure_functions.STATEFUL_TYPES:
            graph_break("native_call", f"C code looking into a {kind.__qualname__}")
    if kind.__flags__ & HEAPTYPE:
        check_reducible(ev, kind, seen)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts += [*dict.keys(value), *dict.values(value)]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        base: Any = next(base for base in (list, tuple, set, frozenset, deque) if isinstance(value, base))
        parts += base.__iter__(value)
    elif isinstance(value, BaseException):
        parts += value.args
    if kind.__dictoffset__:
        own = own_dict(value)
        ev.heap.fill(own)
        parts += own.values()
    if any(base.__dict__.get("__slots__") for base in kind.__mro__) and ev.heap.record(value) is not None:
        graph_break("native_call", f"C code looking into the slots of a {kind.__qualname__}")
    for part in parts:
        check_reducible(ev, part, seen)


def own_deep(ev: Interpreter, value: Any, seen: set[int] | None = None) -> Any:
    """What C code made of nothing but text: all its parts are the program's."""
    seen = set() if seen is None else seen
    kind = type(value)
    if kind in LITERALS or id(value) in seen or isinstance(value, (type, *_NAMED)):
        return value
    seen.add(id(value))
    if kind.__flags__ & HEAPTYPE and not isinstance(value, enum.Enum) or kind in pure_functions.STATEFUL_TYPES:
        ev.heap.add_fresh(value)
    if isinstance(value, dict):
        for key, item in dict.items(value):
            own_deep(ev, key, seen)
            own_deep(ev, item, seen)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for item in list(value):
            own_deep(ev, item, seen)
    if kind.__dictoffset__ and not isinstance(value, enum.Enum):
        for item in list(own_dict(value).values()):
            own_deep(ev, item, seen)
    return value


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


def _own(ev: Interpreter, result: Any) -> Any:
    """What C code made is the program's: note those of its parts that have a state."""
    kind = type(result)
    if kind in LITERALS:
        return result
    if kind is tuple or kind is list:
        for item in result:
            _own(ev, item)
    elif kind in pure_functions.STATEFUL_TYPES and ev.heap.record(result) is None:
        ev.heap.add_fresh(result)
    return result


def _is_reduced_to_dict(ev: Interpreter, obj: Any) -> bool:
    """True for an instance that pickles as its class and its `__dict__` (object.__reduce_ex__, protocol 2 and up)."""
    cls = type(obj)
    if not keeps_all_in_dict(cls):
        return False
    lookup = ev.heap.class_lookup
    if lookup(cls, "__reduce__") is not object.__reduce__ or lookup(cls, "__getstate__") is not object.__getstate__:
        return False
    return lookup(cls, "__getnewargs__") is ABSENT and lookup(cls, "__getnewargs_ex__") is ABSENT


def _may_be_reduced(ev: Interpreter, obj: Any) -> bool:
    """True when C code may look at the whole state of an instance."""
    if isinstance(obj, (type, types.ModuleType, types.FunctionType)) or type(obj) is FakeTensor:
        return False
    check_reducible(ev, obj)
    return True


_OBJECT_SAFE = frozenset({"__init__", "__init_subclass__", "__subclasshook__", "__dir__", "__sizeof__"})
