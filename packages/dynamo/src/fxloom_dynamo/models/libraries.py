"""Models of a few functions of the standard library and NumPy: re, os.path, copy, dataclasses, enum, inspect.

In: the evaluator and the arguments of the call. Out: what the call returns, or its exception as `Raised`; what the answer depends on is
guarded. The real function is not called where it would see a proxy or a fake for what it is. `load_all` imports this module, which fills
the tables of `interpreter.model_tables`.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import inspect
import os
import re
import reprlib
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.model_tables import FUNCTIONS, INNER, METACLASS_CALLS, OBJECT_CALLS, Args, Kwargs, function
from fxloom_dynamo.libraries.numpy_numbers import DISPATCHERS, ELEMENTWISE
from fxloom_dynamo.objects.sentinels import Raised
from fxloom_dynamo.objects.value_types import LITERALS, keeps_all_in_dict
from fxloom_dynamo.semantics import binding, calls, program_warnings
from fxloom_dynamo.tensors import numpy_calls
from fxloom_dynamo.traced import polyfills

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def _numpy_function(ev: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function of NumPy's: of arrays, or an element-wise one of literals."""
    if type(fn) in ELEMENTWISE and not kwargs and all(type(value) in LITERALS for value in args):
        return ev.native(fn, *args)
    if not numpy_calls.is_function(fn):
        graph_break("native_call", f"{fn.__module__}.{fn.__name__}")
    return numpy_calls.call(ev, fn, args, kwargs)


for _kind in (*ELEMENTWISE, *DISPATCHERS):
    OBJECT_CALLS[_kind] = _numpy_function


def _enum_call(ev: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Any:
    """A member by its value."""
    if len(args) == 1 and not kwargs and type(args[0]) in LITERALS:
        member = cls.__dict__.get("_value2member_map_", {}).get(args[0])
        if member is not None and not ev.heap.is_fresh(cls):
            return member
    if len(args) == 1 and type(args[0]) is cls:
        return args[0]
    if _makes_flags(ev, cls) and not kwargs and all(type(arg) in LITERALS for arg in args):
        return ev.run_stdlib(cls, *args)  # made once, and a constant of its class from then on, like any member
    meta = type(cls)
    return ev.call(ev.heap.class_value(meta, "__call__", enum.EnumMeta.__call__), [cls, *args], kwargs)


def _operator_of_flags(fn: types.FunctionType) -> None:
    @function(fn)
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        constants = all(isinstance(arg, enum.Flag) or type(arg) in LITERALS for arg in args)
        if constants and not kwargs and all(_makes_flags(ev, type(arg)) for arg in args if isinstance(arg, enum.Flag)):
            return ev.run_stdlib(fn, *args)
        return calls.inline_function(ev, fn, args, kwargs)  # type: ignore[arg-type]  # a list


for _name in ("__or__", "__and__", "__xor__", "__invert__"):
    for _fn in {vars(_kind)[_name] for _kind in (enum.Flag, enum.IntFlag) if _name in vars(_kind)}:
        _operator_of_flags(_fn)


def _makes_flags(ev: Interpreter, cls: Any) -> bool:
    """True for a class of flags whose combinations the standard library makes, without code of the program."""
    if not issubclass(cls, enum.Flag) or ev.heap.is_fresh(cls):
        return False
    return all(_of_the_library(ev.heap.class_lookup(cls, name)) for name in ("_missing_", "_new_member_", "__new__", "__hash__", "__eq__"))


def _of_the_library(raw: Any) -> bool:
    function = getattr(raw, "__func__", raw)
    return not isinstance(function, types.FunctionType) or function.__module__ == "enum"


METACLASS_CALLS[enum.EnumMeta] = _enum_call


@function(functools.cached_property.__get__)
def _cached_property(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.call(polyfills.cached_property_get, args, kwargs)


_find_implementation = getattr(functools, "_find_impl")  # noqa: B009  # the stubs lack it


if "_method_cache" in functools.singledispatchmethod.__init__.__code__.co_names:  # from CPython 3.13 on

    @function(functools.singledispatchmethod.__get__)
    def _dispatching_method(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        return ev.call(polyfills.dispatching_method, args, kwargs)


def _dispatch(ev: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    """Which function singledispatch has for a class."""
    if len(args) != 1 or kwargs:
        return calls.inline_function(ev, fn, args, kwargs)
    ev.heap.adopt(fn)
    cells = dict(zip(fn.__code__.co_freevars, binding.closure_of(ev, fn), strict=True))
    return ev.call(polyfills.dispatch_on_class, [ev.heap.cell_get(cells["registry"]), _find_implementation, *args])


INNER[next(code for code in functools.singledispatch.__code__.co_consts if getattr(code, "co_name", "") == "dispatch")] = _dispatch


def _recursive_repr(ev: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    """What `reprlib.recursive_repr` and `dataclasses` make of a `__repr__`: it stops at an object that is being shown already.

    Its set of those holds addresses. The evaluator's frames say the same, unless the region itself is called by a repr.
    """
    if len(args) != 1 or kwargs:
        return calls.inline_function(ev, fn, args, kwargs)
    ev.heap.adopt(fn)
    cells = dict(zip(fn.__code__.co_freevars, binding.closure_of(ev, fn), strict=True))
    if ev.truth(ev.heap.cell_get(cells["repr_running"])):
        graph_break("native_call", "a repr that may contain itself, within another")
    show = ev.heap.cell_get(cells["user_function"])
    for frame in ev.frames:
        if frame.code is polyfills.show.__code__ and frame.locals["value"] is args[0] and frame.locals["function"] is show:
            return ev.heap.cell_get(cells["fillvalue"]) if "fillvalue" in cells else "..."
    return ev.call(polyfills.show, [show, args[0]])


for _maker in (reprlib.recursive_repr(), getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr())):
    INNER[_maker(repr).__code__] = _recursive_repr


@function(dataclasses.fields)
def _fields(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    cls = target if isinstance(target, type) else type(target)
    found = ev.heap.class_lookup(cls, "__dataclass_fields__")
    if ev.heap.is_fresh(cls) or ev.heap.is_fresh(found):
        return calls.inline_function(ev, dataclasses.fields, args, kwargs)  # type: ignore[arg-type]  # a Python function
    return ev.native(dataclasses.fields, cls) if not hasattr(cls, "__dataclass_fields__") else dataclasses.fields(cls)


def _on_literals(fn: Callable[..., Any]) -> None:
    """Let a library function of Python run as it is when all its arguments are literals: its answer depends on nothing else."""

    @function(fn)
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        values = (*args, *kwargs.values())
        if all(type(value) in LITERALS or isinstance(value, (re.Pattern, re.RegexFlag)) for value in values):
            if any(isinstance(value, int) and value & re.DEBUG for value in values if fn.__module__ == "re"):
                graph_break("native_call", f"{fn.__module__}.{fn.__name__} with re.DEBUG, which prints")
            try:
                return fn(*args, **kwargs)
            except Exception as exc:
                raise Raised(exc) from None
            finally:
                program_warnings.issue(ev, ev.warnings.filter.take()[0])  # what `re` has compiled it keeps, and does not warn again
        return calls.inline_function(ev, fn, args, kwargs)  # type: ignore[arg-type]  # a Python function


for _name in ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "escape"):
    _on_literals(getattr(re, _name))
for _name in ("join", "split", "basename", "dirname", "splitext", "normpath", "isabs"):
    _on_literals(getattr(os.path, _name))

FUNCTIONS[copy.deepcopy] = lambda ev, args, kwargs: (
    ev.call(polyfills.deepcopy, args) if len(args) == 1 and not kwargs else graph_break("native_call", "copy.deepcopy with a memo")
)


@function(polyfills.callable_atom)
def _is_copy_atom(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    value = args[0]
    atoms = (types.FunctionType, types.BuiltinFunctionType, enum.Enum, torch.dtype, torch.device, re.Pattern, property)
    return type(value) in LITERALS or isinstance(value, atoms)


@function(polyfills.refuse_copy)
def _refuse_copy(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    graph_break("native_call", f"copy.deepcopy of a {ev.type_of(args[0]).__qualname__}")


@function(polyfills.is_plain_instance)
def _is_plain_instance(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return keeps_all_in_dict(type(args[0]))


def _class_signature(ev: Interpreter, cls: type) -> Any:
    """The signature of a class whose instances are made by a Python `__init__` or `__new__`."""
    heap = ev.heap
    if heap.class_lookup(type(cls), "__call__") is not type.__call__:
        graph_break("native_call", f"inspect.signature of {cls.__qualname__}, whose metaclass has a __call__")
    for name in ("__signature__", "__wrapped__", "__text_signature__", "__new__", "__init__"):
        found = heap.class_lookup(cls, name)
        if isinstance(found, types.FunctionType) and not heap.is_fresh(found):
            _guard_signature(ev, found)
    try:
        return ev.run_untraced(lambda: inspect.signature(cls))
    except (TypeError, ValueError) as exc:
        raise Raised(exc) from None


def _guard_signature(ev: Interpreter, fn: types.FunctionType) -> None:
    heap = ev.heap
    heap.adopt(fn)
    record = heap.record(fn)
    if record is None:
        return
    heap.guard(record.source, GuardKind.FUNCTION_CODE, fn.__code__)
    for name in ("__defaults__", "__kwdefaults__"):
        source = heap.attr_source(record.source, name)
        value = getattr(fn, name)
        heap.guard(source, GuardKind.IDENTITY, value)
        for key, default in (value or {}).items() if name == "__kwdefaults__" else ():
            heap.guard(heap.key_source(source, key), GuardKind.IDENTITY, default)


@function(inspect.signature)
def _signature(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    inner = target.__func__ if isinstance(target, types.MethodType) else target
    if isinstance(inner, type) and not kwargs and len(args) == 1:
        return _class_signature(ev, inner)
    if not isinstance(inner, types.FunctionType) or kwargs or len(args) > 1:
        graph_break("native_call", "inspect.signature of something that is no plain function")
    while inner is not None:
        _guard_signature(ev, inner)
        inner = inner.__dict__.get("__wrapped__")
    try:
        return inspect.signature(target)
    except (TypeError, ValueError) as exc:
        raise Raised(exc) from None
