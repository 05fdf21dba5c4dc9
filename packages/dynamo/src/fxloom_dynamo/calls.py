"""What calling something means, by the kind of the callee.

Python functions are inlined, wherever they come from; C functions run when `natives` knows them to be pure, torch's run
under the recording mode; builtins that call back or look at identities have a model in `models`; the rest is a break.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo import natives, polyfills, symbolic
from fxloom_dynamo._torch_private import TensorBase
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.frame import Frame
from fxloom_dynamo.heap import LITERALS, c_descriptor_of, can_shadow
from fxloom_dynamo.marks import ABSENT, UNREAD, Raised, own_dict
from fxloom_dynamo.policy import Wish, wish_for
from fxloom_dynamo.recorder import UNMODELLED_METHODS
from fxloom_dynamo.symbolic import concrete, has_symbolic
from fxloom_interfaces.errors import FxloomError, InternalError
from fxloom_interfaces.regions import GraphFunction
from fxloom_shapes import FakeTensor
from fxloom_shapes.propagate import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.evaluator import Evaluator

Kwargs = dict[str, Any]

_HEAPTYPE = 1 << 9
_OURS = __file__.rsplit("/", 1)[0]
_POLYFILLS = polyfills.__file__
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
#: the program sets this attribute on functions that are not to be captured
DISABLED = "_fxloom_disabled"


def call(ev: Evaluator, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """fn(*args, **kwargs)"""
    kind = type(fn)
    if kind is types.FunctionType:
        return call_function(ev, fn, args, kwargs)
    if kind is types.MethodType:
        return call(ev, fn.__func__, [fn.__self__, *args], kwargs)
    if isinstance(fn, type):
        return call_class(ev, fn, args, kwargs)
    if kind in _C_FUNCTIONS or issubclass(kind, types.BuiltinFunctionType):
        return call_builtin(ev, fn, args, kwargs)
    if kind in natives.STATEFUL_TYPES and ev.heap.is_fresh(fn) and kind is not functools.partial:
        ev.heap.fill_deep(args)
        if any(type(arg) is FakeTensor for arg in (*args, *kwargs.values())):
            graph_break("native_call", f"a {kind.__qualname__} called on a tensor")
        return ev.native(fn, *args, **kwargs)
    if kind is functools.partial:
        merged = {**fn.keywords, **kwargs}
        return call(ev, fn.func, [*fn.args, *args], merged)
    if kind is functools._lru_cache_wrapper:
        return _call_cached(ev, fn, args, kwargs)
    if kind is staticmethod or kind is classmethod:
        return call(ev, fn.__func__, args, kwargs)
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return ev.torch_native(fn, *args, **kwargs)
    from fxloom_dynamo import models

    model = models.OBJECT_CALLS.get(kind)
    if model is not None:
        return model(ev, fn, args, kwargs)
    raw = ev.heap.class_lookup(kind, "__call__")
    if isinstance(raw, types.FunctionType):
        return call_function(ev, ev.heap.class_value(kind, "__call__", raw), [fn, *args], kwargs)
    if raw is ABSENT:
        raise Raised(TypeError(f"'{ev.type_of(fn).__name__}' object is not callable"))
    if kind.__flags__ & _HEAPTYPE and not isinstance(raw, types.WrapperDescriptorType):
        return call(ev, ev.getattr(fn, "__call__"), args, kwargs)
    graph_break("native_call", f"call of a {kind.__module__}.{kind.__qualname__}")


def _call_cached(ev: Evaluator, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """An `lru_cache`d function. On literals its author declared the answer a constant: take it from the real cache."""
    from fxloom_dynamo import output

    if output.log_once(ev, fn, args, kwargs):
        return None
    values = (*args, *kwargs.values())
    if all(type(value) in LITERALS for value in values):
        try:
            result = fn(*args, **kwargs)
        except Exception as exc:
            raise Raised(exc) from None
        if type(result) in LITERALS:
            return result
        return ev.heap.adopt(result)
    return call(ev, ev.heap.adopt(fn.__wrapped__), args, kwargs)


_C_FUNCTIONS = frozenset(
    {types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType,
     types.ClassMethodDescriptorType}
)  # fmt: skip


# ---------------------------------------------------------------------- Python functions


def call_function(ev: Evaluator, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """A call of a Python function: its model if it has one."""
    from fxloom_dynamo import models

    wish = wish_for(fn)
    if wish is not None:
        return _as_wished(ev, fn, wish, args, kwargs)
    model = models.FUNCTIONS.get(fn)
    if model is not None:
        return model(ev, args, kwargs)
    return inline_function(ev, fn, args, kwargs)


def _as_wished(ev: Evaluator, fn: Any, wish: Wish, args: list[Any], kwargs: Kwargs) -> Any:
    """A call of a function of which the program said how it is to be captured."""
    name = getattr(fn, "__qualname__", repr(fn))
    if wish is Wish.DISALLOW:
        graph_break("asked_for", f"{name} is not to be in graphs (disallow_in_graph)")
    values = [*args, *kwargs.values()]
    if wish is Wish.ALLOW:
        if not all(map(is_plain, values)):
            graph_break("asked_for", f"{name} (allow_in_graph) gets more than tensors, numbers and nests of them")
        return ev.record_call(GraphFunction(fn, name), *args, **kwargs)
    real = [_real_value(ev, value, name) for value in values]
    try:
        result = fn(*real[: len(args)], **dict(zip(kwargs, real[len(args) :], strict=True)))
    except Exception as exc:
        raise Raised(exc) from None
    return result if type(result) in LITERALS else ev.heap.adopt(result)


def _real_value(ev: Evaluator, value: Any, name: str) -> Any:
    """What a stand-in stands for, where the program has not changed it."""
    if type(value) in LITERALS:
        return value
    record = ev.heap.record(value)
    if record is None:
        graph_break("asked_for", f"{name} (assume_constant_result) gets a {type(value).__qualname__} that was made inside")
    return record.original


def call_bound(ev: Evaluator, fn: types.FunctionType, values: Kwargs) -> Any:
    """A call that C code made: its parameters are bound. Defaults are left out again, since they are no stand-ins."""
    code = fn.__code__
    names = code.co_varnames
    count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    at = total
    args = [values[name] for name in names[:count]]
    if code.co_flags & inspect.CO_VARARGS:
        args += values[names[at]]
        at += 1
    if len(args) == count:
        defaults = fn.__defaults__ or ()
        while args and count - len(args) < len(defaults) and args[-1] is defaults[len(args) - count - 1]:
            args.pop()
    named = fn.__kwdefaults__ or {}
    kwargs = {name: values[name] for name in names[count:total] if values[name] is not named.get(name, ABSENT)}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[names[at]])
    if args:
        _guard_special_method(ev, fn, args[0])
    return call_function(ev, fn, args, kwargs)


def _guard_special_method(ev: Evaluator, fn: types.FunctionType, receiver: Any) -> None:
    """C code found `fn` in the receiver's class, behind our back: note the lookup."""
    cls = receiver if isinstance(receiver, type) else type(receiver)
    if cls.__flags__ & _HEAPTYPE and getattr(cls, fn.__name__, None) is fn:
        ev.heap.class_lookup(cls, fn.__name__)


def inline_function(ev: Evaluator, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """Evaluate a Python function's body, or leave it to torch where it is torch's own."""
    code = fn.__code__
    filename = code.co_filename
    if filename.startswith(_OURS) and filename != _POLYFILLS:
        return _call_ours(ev, fn, args, kwargs)
    if natives.in_torch(filename) and not natives.is_inlined_torch(filename):
        marked = natives.marked_by_torch(fn)
        if marked is not None:
            return call(ev, ev.heap.adopt(marked), args, kwargs)
        if natives.splits_torch_graph(fn) and natives.in_torch(ev.frames[-1].code.co_filename):
            return None
        if natives.is_refused_torch(filename, code.co_name):
            graph_break("torch_call", f"{fn.__module__}.{fn.__qualname__}")
        if all(is_plain(arg) for arg in args) and all(is_plain(arg) for arg in kwargs.values()):
            return ev.torch_native(fn, *args, **kwargs)
    if kwargs.get("capturable") is False and natives.reads_steps(fn) and _steps_can_stay(fn, args, kwargs):
        at = fn.__code__.co_varnames.index("state_steps")
        return call(ev, polyfills.update_with_wide_steps, [fn, at, tuple(args), kwargs], {})
    if DISABLED in fn.__dict__:
        graph_break("asked_for", f"{fn.__qualname__} is not to be captured")
    if code.co_flags & _ASYNC:
        graph_break("async", f"{fn.__qualname__} is asynchronous")
    record = ev.heap.record(fn)
    if record is not None and record.kind == "function":
        record.kind = "inlined"
        _guard_code(ev, fn, record)
    elif record is None and id(fn) not in ev.heap.fresh and fn.__module__ != polyfills.__name__:
        ev.heap.translate(fn, ev.heap.object_source(fn))
    values = bind_arguments(ev, fn, args, kwargs)
    frame = Frame(code, fn, fn.__globals__, closure_of(ev, fn), values, 0)
    return ev.run(frame)


def _steps_can_stay(fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> bool:
    """Whether an optimizer's update would do with tensors what it does with the numbers in them."""
    at = fn.__code__.co_varnames.index("state_steps")
    if not fn.__name__.startswith(("_single_tensor_", "_multi_tensor_")) or at >= len(args) or not isinstance(args[at], list):
        return False
    if any(type(value) is FakeTensor for value in kwargs.values()):  # a tensor as learning rate: some refuse it
        return False
    steps = args[at]
    params = args[0] if isinstance(args[0], list) else []
    if not steps or not all(type(step) is FakeTensor and not step.requires_grad for step in steps):
        return False
    return all(type(param) is FakeTensor and param.device == step.device for param, step in zip(params, steps, strict=True))


def _guard_code(ev: Evaluator, fn: types.FunctionType, record: Any) -> None:
    from fxloom_dynamo.guards import GuardKind

    ev.heap.guard(record.source, GuardKind.FUNCTION_CODE, fn.__code__)


def _call_ours(ev: Evaluator, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Any:
    """A method of one of our own stand-ins (a traced generator), or fxloom's user functions."""
    from fxloom_dynamo.evaluator import TracedGenerator

    if args and type(args[0]) is TracedGenerator:
        try:
            return ev.off_net(lambda: fn(*args, **kwargs))
        except Exception as exc:
            if isinstance(exc, FxloomError):
                raise
            raise Raised(exc) from None
    graph_break("asked_for", f"calls {fn.__module__}.{fn.__qualname__}")


def closure_of(ev: Evaluator, fn: types.FunctionType) -> tuple[types.CellType, ...]:
    """Stand-ins of a function's cells."""
    cells = fn.__closure__
    if not cells:
        return ()
    heap = ev.heap
    if id(fn) in heap.fresh:
        return cells
    source = heap.source_of(fn)
    closure_source = heap.attr_source(source, "__closure__")
    found = []
    for index, cell in enumerate(cells):
        if id(cell) in heap.fresh or id(cell) in heap.by_stand_in:
            found.append(cell)
            continue
        cell_source = heap.item_source(closure_source, index)
        found.append(heap.translate_cell(cell, cell_source, heap.attr_source(cell_source, "cell_contents")))
    return tuple(found)


def bind_arguments(ev: Evaluator, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> dict[str, Any]:
    """Parameters by name, as CPython binds them; TypeError where it would raise one."""
    code = fn.__code__
    names = code.co_varnames
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    given = len(args)
    values = dict(zip(names[:count], args))  # missing ones are filled in below
    total = count + keyword_only
    star = total if code.co_flags & inspect.CO_VARARGS else -1
    if star >= 0:
        values[names[star]] = tuple(args[count:])
    elif given > count:
        raise _binding_error(ev, fn, args, kwargs)
    extra: Kwargs | None = None
    if code.co_flags & inspect.CO_VARKEYWORDS:
        extra = values[names[total + (star >= 0)]] = {}
    if kwargs:
        allowed = names[code.co_posonlyargcount : total]
        for name, value in kwargs.items():
            if name in allowed:
                if name in values:
                    raise _binding_error(ev, fn, args, kwargs)
                values[name] = value
            elif extra is not None:
                extra[name] = value
            else:
                raise _binding_error(ev, fn, args, kwargs)
    if given < count and not _fill_defaults(ev, fn, names, given, count, values):
        raise _binding_error(ev, fn, args, kwargs)
    if keyword_only and not _fill_keyword_defaults(ev, fn, names[count:total], values):
        raise _binding_error(ev, fn, args, kwargs)
    return values


_NOTHING = (lambda: None).__code__


def _binding_error(ev: Evaluator, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Raised:
    """The TypeError of a call that does not fit, from the interpreter: a function of the same signature that does nothing."""
    code = fn.__code__.replace(
        co_code=_NOTHING.co_code, co_consts=(None,), co_exceptiontable=b"", co_cellvars=(), co_freevars=(),
        co_flags=fn.__code__.co_flags & ~(inspect.CO_GENERATOR | _ASYNC),
    )  # fmt: skip
    probe = types.FunctionType(code, {}, fn.__name__, fn.__defaults__)
    probe.__kwdefaults__ = fn.__kwdefaults__
    probe.__qualname__ = fn.__qualname__
    try:
        ev.off_net(lambda: probe(*args, **kwargs))
    except TypeError as exc:
        return Raised(ev.clean(exc))
    raise InternalError("dynamo.calls", f"arguments of {fn.__qualname__} could not be bound and the interpreter binds them")


def _fill_defaults(
    ev: Evaluator, fn: types.FunctionType, names: tuple[str, ...], given: int, count: int, values: Kwargs
) -> bool:
    """Add the defaults of positional parameters; False if one has none."""
    defaults = fn.__defaults__ or ()
    first = count - len(defaults)
    if any(names[i] not in values for i in range(min(given, count), first)):
        return False
    heap = ev.heap
    fresh = id(fn) in heap.fresh or fn.__module__ == polyfills.__name__
    for index in range(max(given, first), count):
        name = names[index]
        if name not in values:
            value = defaults[index - first]
            if not fresh:
                source = heap.attr_source(heap.source_of(fn), "__defaults__")
                value = heap.translate(value, heap.item_source(source, index - first))
            values[name] = value
    return True


def _fill_keyword_defaults(ev: Evaluator, fn: types.FunctionType, names: tuple[str, ...], values: Kwargs) -> bool:
    """Add the defaults of keyword-only parameters; False if one has none."""
    heap = ev.heap
    for name in names:
        if name in values:
            continue
        defaults = fn.__kwdefaults__ or {}
        if name not in defaults:
            return False
        value = defaults[name]
        if id(fn) not in heap.fresh and fn.__module__ != polyfills.__name__:
            source = heap.attr_source(heap.source_of(fn), "__kwdefaults__")
            value = heap.translate(value, heap.key_source(source, name))
        values[name] = value
    return True


def is_plain(value: Any, depth: int = 0) -> bool:
    """True for tensors, literals and nests of them: what torch's own Python code may look into by itself."""
    kind = type(value)
    if kind in LITERALS or kind is FakeTensor or kind in SYMBOLIC:
        return True
    if isinstance(value, (tuple, list)) and kind in (tuple, list) or kind.__module__ == "torch.return_types":
        return depth < 6 and all(item is UNREAD or is_plain(item, depth + 1) for item in value)
    if kind is dict:
        return depth < 6 and all(item is UNREAD or is_plain(item, depth + 1) for item in value.values())
    if kind is slice:
        return is_plain((value.start, value.stop, value.step), depth + 1)
    return isinstance(value, (torch.finfo, torch.iinfo, torch.Size)) or (isinstance(value, type) and value.__module__ == "torch")


# ---------------------------------------------------------------------- classes

#: constructors written in C that keep a number as it is, so a symbolic one stays symbolic
_KEEP_NUMBERS = frozenset(
    {functools.partial, types.MethodType, types.CellType, property, staticmethod, classmethod, slice, types.GenericAlias,
     types.SimpleNamespace}
)  # fmt: skip


def call_class(ev: Evaluator, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """cls(*args, **kwargs)"""
    from fxloom_dynamo import models

    if cls in (int, float) and len(args) == 1 and type(args[0]) is FakeTensor and symbolic.is_captured(ev, args[0]):
        args = [ev.torch_native(torch.Tensor.item, args[0])]
    if has_symbolic(args):
        result = symbolic.call(ev, cls, args, kwargs)
        if result is not NotImplemented:
            return result
        if not cls.__flags__ & _HEAPTYPE and cls not in _KEEP_NUMBERS and cls is not type and not cls.__module__.startswith("torch"):
            args = [concrete(arg) for arg in args]
    model = models.CLASSES.get(cls)
    if model is not None:
        return model(ev, args, kwargs)
    meta = type(cls)
    if meta is not type:
        custom = ev.heap.class_lookup(meta, "__call__")
        if isinstance(custom, types.FunctionType):
            model = models.METACLASS_CALLS.get(meta)
            if model is not None:
                return model(ev, cls, args, kwargs)
            return call(ev, ev.heap.class_value(meta, "__call__", custom), [cls, *args], kwargs)
    return make_instance(ev, cls, args, kwargs)


def make_instance(ev: Evaluator, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """type.__call__(cls, *args, **kwargs)"""
    if cls in natives.PURE_CONSTRUCTORS:
        return native_construct(ev, cls, args, kwargs)
    if cls in natives.STATEFUL_TYPES or cls in natives.CONSTANT_TYPES:
        return _construct_stateful(ev, cls, args, kwargs)
    if not cls.__flags__ & _HEAPTYPE:
        if issubclass(cls, BaseException):
            ev.heap.fill_deep(args)
            return ev.native(cls, *args, **kwargs)
        if cls.__module__ == "torch" or cls.__module__.startswith("torch."):
            return ev.torch_native(cls, *args, **kwargs) if all(map(is_plain, args)) else _refuse_class(cls)
        _refuse_class(cls)
    if issubclass(cls, torch.Tensor):
        return _make_tensor(ev, cls, args, kwargs)
    new = ev.heap.class_lookup(cls, "__new__")
    obj = call_new(ev, cls, new, args, kwargs)
    if not isinstance(obj, cls):
        return obj
    init = ev.heap.class_lookup(cls, "__init__")
    if isinstance(init, types.FunctionType):
        result = call_function(ev, ev.heap.class_value(cls, "__init__", init), [obj, *args], kwargs)
        if result is not None:
            raise Raised(TypeError(f"__init__() should return None, not '{type(result).__name__}'"))
    elif init is not object.__init__:
        init_owner = getattr(init, "__objclass__", None)
        if init_owner is type:
            pass  # it only checks its arguments, as type.__new__ did
        elif init_owner in natives.STATEFUL_TYPES:
            ev.native(init, obj, *args, **kwargs)
        elif init_owner in natives.PURE_TYPES or (isinstance(init_owner, type) and issubclass(init_owner, BaseException)):
            call_builtin(ev, init.__get__(obj, cls), args, kwargs)
        elif isinstance(init, (types.WrapperDescriptorType, types.MethodDescriptorType)):
            _refuse_class(cls)
        else:
            call(ev, ev.getattr(obj, "__init__"), args, kwargs)
    elif (args or kwargs) and new is object.__new__:
        raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
    return obj


def _construct_stateful(ev: Evaluator, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """A C object with a state of its own, made by the program and so ours to use."""
    ev.heap.fill_deep(args)
    ev.heap.fill_deep(kwargs)
    return ev.heap.add_fresh(ev.native(cls, *args, **kwargs))


def _refuse_class(cls: type) -> Any:
    graph_break("native_call", f"makes a {cls.__module__}.{cls.__qualname__}")


def call_new(ev: Evaluator, cls: type, new: Any, args: list[Any], kwargs: Kwargs) -> Any:
    """cls.__new__(cls, *args, **kwargs); `new` is the raw lookup."""
    if isinstance(new, (staticmethod, classmethod)):
        from fxloom_dynamo import attributes

        new = attributes._member(ev, cls, "__new__", new, new.__func__)
    if isinstance(new, types.FunctionType):
        return call_function(ev, new, [cls, *args], kwargs)
    owner = getattr(new, "__self__", object)
    return allocate(ev, owner, cls, args, kwargs)


def allocate(ev: Evaluator, owner: type, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """owner.__new__(cls, ...) of a type written in C."""
    from fxloom_dynamo import classes

    ev.heap.class_lookup(cls, "__del__")
    if hasattr(cls, "__del__"):
        graph_break("finalizer", f"makes a {cls.__qualname__}, which defines __del__")
    if issubclass(owner, type):
        return classes.make_class(ev, cls, args, kwargs)
    if owner is object:
        if getattr(cls, "__abstractmethods__", None):
            ev.native(object.__new__, cls)  # raises TypeError
        return ev.heap.add_fresh(ev.native(object.__new__, cls))
    if owner in natives.STATEFUL_TYPES or owner in natives.CONSTANT_TYPES or owner in natives.PURE_CONSTRUCTORS - natives.PURE_TYPES:
        ev.heap.fill_deep(args)
        return ev.heap.add_fresh(ev.native(owner.__new__, cls, *args, **kwargs))
    if owner in natives.PURE_TYPES or issubclass(owner, BaseException):
        if issubclass(owner, (list, dict, set)) or owner.__name__ == "deque":
            return ev.heap.add_fresh(ev.native(owner.__new__, cls))
        if owner in natives.ITERATING_CONSTRUCTORS:
            args = [_iterable_argument(ev, arg) for arg in args]
        value = ev.native(owner.__new__, cls, *args, **kwargs)
        return ev.heap.add_fresh(value)
    return _refuse_class(cls)


def _iterable_argument(ev: Evaluator, arg: Any) -> Any:
    """An argument that C code may iterate: Python-level iteration goes through a generator that we run."""
    from fxloom_dynamo.operations import is_pure_instance, python_method

    ev.heap.fill_deep(arg)
    if ev.heap.untraceable:
        ev.heap.refuse(arg)
    kind = type(arg)
    if hasattr(kind, "__next__") and not kind.__flags__ & _HEAPTYPE and not is_pure_instance(arg) and kind is not _traced_generator():
        graph_break("native_call", f"C code iterating a {kind.__qualname__}")
    if not kind.__flags__ & _HEAPTYPE or kind is FakeTensor or kind is _traced_generator():
        return arg
    if isinstance(arg, (type, types.ModuleType)):
        return arg
    if python_method(ev, arg, "__iter__") is ABSENT and python_method(ev, arg, "__getitem__") is ABSENT:
        return arg
    if isinstance(arg, (list, tuple, dict, set, frozenset, str)) and python_method(ev, arg, "__iter__") is ABSENT:
        return arg
    iterator = ev.iter(arg)
    if type(iterator) is _traced_generator() or python_method(ev, iterator, "__next__") is ABSENT:
        return iterator
    return call(ev, polyfills.pass_through, [iterator], {})


def _traced_generator() -> type:
    from fxloom_dynamo.evaluator import TracedGenerator

    return TracedGenerator


def native_construct(ev: Evaluator, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """A builtin's constructor."""
    ev.heap.fill_deep(args)
    ev.heap.fill_deep(kwargs)
    if any(type(arg) is FakeTensor for arg in args):
        return ev.torch_native(cls, *args, **kwargs)
    if cls in natives.ITERATING_CONSTRUCTORS:
        args = [_iterable_argument(ev, arg) for arg in args]
    return ev.native(cls, *args, **kwargs)


def _make_tensor(ev: Evaluator, cls: type, args: list[Any], kwargs: Kwargs) -> Any:
    """torch.Tensor(...) and its legacy siblings."""
    if cls is torch.Tensor and all(is_plain(arg) for arg in args):
        if len(args) == 1 and isinstance(args[0], torch.Size):
            args = list(args[0])  # a Size is a shape; the tuple that a graph would hold is data
        return ev.record_call(torch.Tensor, *args, **kwargs)
    graph_break("torch_call", f"makes a {cls.__module__}.{cls.__qualname__}")


# ---------------------------------------------------------------------- C functions


def call_builtin(ev: Evaluator, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    from fxloom_dynamo import models

    kind = type(fn)
    if issubclass(kind, types.BuiltinFunctionType):
        kind = types.BuiltinFunctionType  # the interpreter has a subclass for methods that know their class
    wish = wish_for(fn)
    if wish is not None:
        return _as_wished(ev, fn, wish, args, kwargs)
    if has_symbolic(args) or kwargs and has_symbolic(kwargs.values()):
        result = symbolic.call(ev, fn, args, kwargs)
        if result is not NotImplemented:
            return result
        if not _keeps_numbers(fn):
            args, kwargs = [concrete(arg) for arg in args], {name: concrete(arg) for name, arg in kwargs.items()}
    try:
        model = models.FUNCTIONS.get(fn)
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
            if target in natives.PURE_CONSTRUCTORS:
                return native_construct(ev, target, args[1:], kwargs)
            return allocate(ev, owner, target, args[1:], kwargs)
        if fn.__name__ == "__prepare__" and isinstance(owner, type) and issubclass(type(owner), type):
            return {}
        if fn.__name__ == "mro" and not args:
            return ev.native(fn)
        if fn.__name__ in ("__init_subclass__", "__subclasshook__") and not hasattr(fn, "__wrapped__"):
            return ev.native(fn, *args, **kwargs)  # object's
        if fn in natives.PURE_FUNCTIONS or any(base in natives.PURE_TYPES for base in owner.__mro__[:-1]):
            ev.heap.fill_deep(args)
            return _own(ev, ev.native(fn, *args, **kwargs))
        if owner in natives.CONSTANT_TYPES or owner in natives.STATEFUL_TYPES:
            ev.heap.fill_deep(args)
            return _own(ev, ev.native(fn, *args, **kwargs))
        if natives.is_torch_builtin(fn):
            return _call_torch(ev, fn, args, kwargs)
        graph_break("native_call", f"{owner.__qualname__}.{fn.__name__}")
    descriptor = c_descriptor_of(fn)
    if descriptor is None:
        graph_break("native_call", f"{type(owner).__module__}.{type(owner).__qualname__}.{fn.__name__}")
    return _call_descriptor(ev, descriptor, descriptor.__objclass__, fn.__name__, [owner, *args], kwargs)


def _keeps_numbers(fn: Any) -> bool:
    """True for C functions that take symbolic numbers as they are: torch's, operators, and those that only store values."""
    if natives.is_torch_builtin(fn) or fn in _LOOK_AT_NOTHING or isinstance(getattr(fn, "__self__", None), torch.Tensor):
        return True
    if getattr(fn, "__module__", None) in ("_operator", "operator"):
        return True
    owner = getattr(fn, "__objclass__", None) or type(getattr(fn, "__self__", None))
    return isinstance(owner, type) and issubclass(owner, (list, collections.deque)) and fn.__name__ in ("append", "appendleft")


#: models that look at types or only pass values on
_LOOK_AT_NOTHING = frozenset({isinstance, getattr, setattr, hasattr, len, iter, next, sum, callable, print})


def _call_c_function(ev: Evaluator, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    if natives.is_pure_function(fn):
        name = fn.__name__
        from fxloom_dynamo import models

        if fn.__module__ in ("_operator", "operator"):
            operator_model = models.OPERATOR_FUNCTIONS.get(name)
            if operator_model is not None:
                if kwargs or len(args) != models.OPERATOR_ARITY[name]:
                    return ev.native(fn, *args, **kwargs)  # raises
                return operator_model(ev, args, kwargs)
        if any(type(arg) is FakeTensor for arg in args):
            return ev.torch_native(fn, *args, **kwargs)
        if all(type(arg) in LITERALS for arg in args):
            return ev.native(fn, *args, **kwargs)
        method = models.DUNDER_OF.get(name)
        if method is not None and args:
            from fxloom_dynamo.operations import python_method

            found = python_method(ev, args[0], method)
            if found is not ABSENT:
                return call(ev, found, args, kwargs)
        ev.heap.fill_deep(args)
        return _own(ev, ev.native(fn, *args, **kwargs))
    if natives.is_torch_builtin(fn):
        return _call_torch(ev, fn, args, kwargs)
    graph_break("native_call", f"{fn.__module__}.{fn.__qualname__}")


def _call_torch(ev: Evaluator, fn: Any, args: list[Any], kwargs: Kwargs) -> Any:
    if natives.refused_torch_builtin(fn):
        graph_break("torch_call", f"{getattr(fn, '__module__', 'torch')}.{fn.__qualname__}")
    for arg in (*args, *kwargs.values()):
        if not is_plain(arg):
            ev.heap.refuse(arg)
            graph_break("torch_call", f"{fn.__qualname__} of a {type(arg).__qualname__}")
    return ev.torch_native(fn, *args, **kwargs)


def _call_descriptor(ev: Evaluator, fn: Any, owner: type, name: str, args: list[Any], kwargs: Kwargs) -> Any:
    """A method written in C, with its receiver first."""
    from fxloom_dynamo import models

    if not args:
        raise Raised(TypeError(f"unbound method {owner.__name__}.{name}() needs an argument"))
    receiver = args[0]
    model = models.METHODS.get((owner, name))
    if model is not None:
        return model(ev, args, kwargs)
    if type(receiver) is FakeTensor or issubclass(owner, TensorBase):
        if name in UNMODELLED_METHODS:  # some never reach the recording mode
            graph_break("torch_call", f"Tensor.{name} is not modelled")
        return ev.torch_native(fn, *args, **kwargs)
    if owner in (types.MethodWrapperType, types.BuiltinFunctionType) and name == "__call__":
        return call(ev, receiver, args[1:], kwargs)
    if owner in (types.FunctionType, types.MethodType, property, types.MethodDescriptorType, types.WrapperDescriptorType):
        if name == "__get__":
            return ev.native(fn, *args, **kwargs)
        if name == "__call__":
            return call(ev, receiver, args[1:], kwargs)
    if owner is type and name == "__call__":
        return make_instance(ev, receiver, args[1:], kwargs)
    if any(base in natives.PURE_TYPES for base in owner.__mro__[:-1]) or owner is object and name in _OBJECT_SAFE:
        heap = ev.heap
        heap.fill(receiver)
        if name in natives.DEEP_METHODS:
            heap.fill_deep(receiver)
        rest = args[1:]
        heap.fill_deep(rest)
        if name in natives.ITERATING_METHODS and not issubclass(owner, BaseException):
            rest = [_iterable_argument(ev, arg) for arg in rest]
        with_tensor = any(type(arg) is FakeTensor for arg in rest)
        if with_tensor and not isinstance(receiver, (list, dict, set, tuple)) and not hasattr(receiver, "append"):
            return ev.torch_native(fn, receiver, *rest, **kwargs)
        return ev.native(fn, receiver, *rest, **kwargs)
    if owner in natives.CONSTANT_TYPES or owner in natives.STATEFUL_TYPES and ev.heap.is_fresh(receiver):
        rest = args[1:]
        ev.heap.fill_deep(rest)
        if any(type(arg) is FakeTensor for arg in rest):
            graph_break("native_call", f"{owner.__qualname__}.{name} of a tensor")
        return _own(ev, ev.native(fn, receiver, *rest, **kwargs))
    if owner in (object, BaseException) and name in ("__reduce_ex__", "__reduce__", "__getstate__") and _may_be_reduced(ev, receiver):
        return _own(ev, ev.native(fn, *args, **kwargs))
    if owner is type and name == "__prepare__":
        return {}
    if owner is type and name in ("mro", "__subclasses__", "__instancecheck__", "__subclasscheck__"):
        return ev.native(fn, *args, **kwargs)
    if isinstance(receiver, BaseException):
        return ev.native(fn, *args, **kwargs)
    if natives.is_torch_builtin(fn):
        return _call_torch(ev, fn, args, kwargs)
    graph_break("native_call", f"{owner.__module__}.{owner.__qualname__}.{name}")


def check_reducible(ev: Evaluator, value: Any, seen: set[int] | None = None) -> None:
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
    if kind is FakeTensor or kind not in natives.PURE_TYPES and not isinstance(value, (BaseException, tuple)):
        if kind in natives.CONSTANT_TYPES or isinstance(value, enum.Enum):
            return
        if not can_shadow(kind) and not ev.heap.is_fresh(value) or kind is FakeTensor or kind in natives.STATEFUL_TYPES:
            graph_break("native_call", f"C code looking into a {kind.__qualname__}")
    if kind.__flags__ & _HEAPTYPE:
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


def own_deep(ev: Evaluator, value: Any, seen: set[int] | None = None) -> Any:
    """What C code made of nothing but text: all its parts are the program's."""
    seen = set() if seen is None else seen
    kind = type(value)
    if kind in LITERALS or id(value) in seen or isinstance(value, (type, *_NAMED)):
        return value
    seen.add(id(value))
    if kind.__flags__ & _HEAPTYPE and not isinstance(value, enum.Enum) or kind in natives.STATEFUL_TYPES:
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


def _own(ev: Evaluator, result: Any) -> Any:
    """What C code made is the program's: note those of its parts that have a state."""
    kind = type(result)
    if kind in LITERALS:
        return result
    if kind is tuple or kind is list:
        for item in result:
            _own(ev, item)
    elif kind in natives.STATEFUL_TYPES and ev.heap.record(result) is None:
        ev.heap.add_fresh(result)
    return result


def _may_be_reduced(ev: Evaluator, obj: Any) -> bool:
    """True when C code may look at the whole state of an instance."""
    if isinstance(obj, (type, types.ModuleType, types.FunctionType)) or type(obj) is FakeTensor:
        return False
    check_reducible(ev, obj)
    return True


_OBJECT_SAFE = frozenset({"__init__", "__init_subclass__", "__subclasshook__", "__dir__", "__sizeof__"})
_ = Frame
