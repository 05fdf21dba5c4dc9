"""Models of builtins that look at types and identities, call back, or read attributes; and of a few library functions.

Each model gets the evaluator, the arguments and the keyword arguments, and returns what the real callee would.
"""

from __future__ import annotations
import __future__

import _abc
import _pickle
import _warnings
import abc
import builtins
import collections
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import itertools
import logging
import operator
import os
import re
import sys
import traceback
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo import _torch_private, attributes, calls, classes, custom_functions, operations, output, policy, polyfills
from fxloom_dynamo import heap as heap_module
from fxloom_dynamo._torch_private import DisableTorchFunction, set_grad_enabled_raw
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guards import GuardKind
from fxloom_dynamo.heap import LITERALS
from fxloom_dynamo.marks import ABSENT, UNREAD, Address, FrameObject, Raised, Traceback
from fxloom_dynamo.numpy_values import ELEMENTWISE
from fxloom_interfaces import regions
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.sources import CallSource
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.evaluator import Evaluator

Args = list[Any]
Kwargs = dict[str, Any]
Model = Callable[["Evaluator", Args, Kwargs], Any]

FUNCTIONS: dict[Any, Model] = {}
CLASSES: dict[type, Model] = {}
METHODS: dict[tuple[type, str], Model] = {}
OBJECT_CALLS: dict[type, Callable[..., Any]] = {}
METACLASS_CALLS: dict[type, Callable[..., Any]] = {}
OPERATOR_FUNCTIONS: dict[str, Model] = {}
#: builtin function -> method that decides for Python classes
DUNDER_OF = {
    "abs": "__abs__", "round": "__round__", "divmod": "__divmod__", "pow": "__pow__", "index": "__index__", "floor": "__floor__",
    "ceil": "__ceil__", "trunc": "__trunc__", "bin": "__index__", "hex": "__index__", "oct": "__index__",
}  # fmt: skip

_MISSING = object()
#: flags of code that `from __future__ import ...` sets and that compile() inherits
_FUTURE = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)) & ~0x10


def function(*targets: Any, arity: tuple[int, int] | None = None) -> Callable[[Model], Model]:
    """Register the model of functions. arity: least and most positional arguments, no keywords; others are TypeErrors."""

    def register(model: Model) -> Model:
        for target in targets:
            FUNCTIONS[target] = model if arity is None else _checked(model, target, arity)
        return model

    return register


def _checked(model: Model, target: Any, arity: tuple[int, int]) -> Model:
    """`model` behind a check of the number of arguments; the real callee words the error."""

    def checked(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        if kwargs or not arity[0] <= len(args) <= arity[1]:
            ev.native(target, *args, **kwargs)
            raise InternalError("dynamo.models", f"{target!r} took {len(args)} arguments, the model allows {arity}")
        return model(ev, args, kwargs)

    return checked


def constructor(*targets: type, arity: tuple[int, int] | None = None) -> Callable[[Model], Model]:
    """Register the model of calls of classes."""

    def register(model: Model) -> Model:
        for target in targets:
            CLASSES[target] = model if arity is None else _checked(model, target, arity)
        return model

    return register


def method(owner: type, *names: str, arity: tuple[int, int] | None = None) -> Callable[[Model], Model]:
    """Register the model of methods written in C; the receiver counts as an argument."""

    def register(model: Model) -> Model:
        for name in names:
            METHODS[owner, name] = model if arity is None else _checked(model, getattr(owner, name), arity)
        return model

    return register


def _take(args: Args, kwargs: Kwargs, *names: str, defaults: tuple[Any, ...] = ()) -> list[Any]:
    """Arguments by position or keyword, for models whose callee has a simple signature."""
    values = list(args)
    for index in range(len(args), len(names)):
        if names[index] in kwargs:
            values.append(kwargs[names[index]])
        else:
            at = index - (len(names) - len(defaults))
            if at < 0:
                raise Raised(TypeError(f"missing argument {names[index]!r}"))
            values.append(defaults[at])
    return values


# ---------------------------------------------------------------------- types and attributes


@function(builtins.isinstance, arity=(2, 2))
def _isinstance(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    value, wanted = args
    return is_instance(ev, value, wanted)


def is_instance(ev: Evaluator, value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return any(is_instance(ev, value, item) for item in wanted)
    if isinstance(wanted, types.UnionType):
        return any(is_instance(ev, value, item) for item in typing.get_args(wanted))
    if not isinstance(wanted, type):
        return bool(ev.native(isinstance, value, wanted))
    cls = ev.type_of(value)
    if cls is wanted:
        return True
    meta = type(wanted)
    if wanted is torch.nn.Buffer and type(value) is FakeTensor:
        info = ev.recorder.input_info.get(id(value))
        return info is not None and getattr(info[1], "_is_buffer", False)
    if type(value) is FakeTensor or cls is not type(value):
        return issubclass(cls, wanted)
    if meta is type or wanted is torch.nn.Parameter or meta.__module__.startswith("torch"):
        if not type(value).__flags__ & heap_module.HEAPTYPE:
            return isinstance(value, wanted)
        return bool(ev.native(isinstance, value, wanted))
    check = ev.heap.class_lookup(meta, "__instancecheck__")
    if isinstance(check, types.FunctionType) and meta is not abc.ABCMeta and not issubclass(meta, (enum.EnumMeta,)):
        if meta.__module__ == "typing":
            return isinstance(value, wanted)
        return ev.truth(ev.call(ev.heap.class_value(meta, "__instancecheck__", check), [wanted, value]))
    return bool(ev.native(isinstance, value, wanted))


@function(builtins.issubclass, arity=(2, 2))
def _issubclass(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    cls, wanted = args
    if not isinstance(cls, type):
        return bool(ev.native(issubclass, cls, wanted))
    return bool(ev.native(issubclass, cls, wanted))


@constructor(type)
def _type(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and not kwargs:
        return ev.type_of(args[0])
    if len(args) == 3 and isinstance(args[1], tuple):
        meta = classes.winner(type, args[1])
        if meta is not type:
            return ev.call(meta, args, kwargs)
    return classes.make_class(ev, type, args, kwargs)


@function(builtins.__build_class__)
def _build_class(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return classes.build_class(ev, args, kwargs)


@function(builtins.callable, arity=(1, 1))
def _callable(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return callable(args[0])


@constructor(super)
def _super(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if args:
        if len(args) == 1:
            graph_break("native_call", "unbound super()")
        return ev.native(super, *args)
    frame = ev.frames[-1]
    cell = frame.locals.get("__class__", ABSENT)
    if cell is ABSENT:
        raise Raised(RuntimeError("super(): __class__ cell not found"))
    cls = ev.heap.cell_get(cell)
    if not frame.code.co_argcount:
        raise Raised(RuntimeError("super(): no arguments"))
    receiver = ev.load_local(frame, frame.code.co_varnames[0])
    if receiver is ABSENT:
        raise Raised(RuntimeError("super(): arg[0] deleted"))
    if isinstance(receiver, types.CellType):
        receiver = ev.heap.cell_get(receiver)
    return ev.native(super, cls, receiver)


@function(builtins.getattr, arity=(2, 3))
def _getattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2:
        return ev.getattr(args[0], args[1])
    return ev.getattr_or(args[0], args[1], args[2])


@function(builtins.hasattr, arity=(2, 2))
def _hasattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return ev.getattr_or(args[0], args[1], ABSENT) is not ABSENT


@function(builtins.setattr, arity=(3, 3))
def _setattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    ev.setattr(args[0], args[1], args[2])


@function(builtins.delattr, arity=(2, 2))
def _delattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    attributes.delete(ev, args[0], args[1])


@method(object, "__setattr__", arity=(3, 3))
def _object_setattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    attributes.generic_store(ev, *args)


@method(object, "__getattribute__", arity=(2, 2))
def _object_getattribute(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return attributes.generic_load(ev, *args)


@method(object, "__delattr__", arity=(2, 2))
def _object_delattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    attributes.generic_delete(ev, *args)


@method(type, "__setattr__")
def _type_setattr(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    attributes.store_class(ev, *args)


@method(type, "__getattribute__")
def _type_getattribute(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return attributes.load(ev, *args)


@method(object, "__init__")
def _object_init(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 1 or kwargs:
        cls = type(args[0])
        if ev.heap.class_lookup(cls, "__new__") is object.__new__ or ev.heap.class_lookup(cls, "__init__") is not object.__init__:
            raise Raised(TypeError(f"{cls.__name__}.__init__() takes exactly one argument (the instance to initialize)"))


@method(object, "__eq__", arity=(2, 2))
def _object_eq(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return True if args[0] is args[1] else NotImplemented


@method(object, "__ne__", arity=(2, 2))
def _object_ne(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return not ev.truth(operations.compare(ev, "==", args[0], args[1]))


@method(object, "__str__", arity=(1, 1))
def _object_str(ev: Evaluator, args: Args, kwargs: Kwargs) -> str:
    return operations.to_text(ev, args[0], "__repr__")


@method(object, "__format__", arity=(2, 2))
def _object_format(ev: Evaluator, args: Args, kwargs: Kwargs) -> str:
    return operations.format_value(ev, args[0], args[1])


@method(object, "__repr__", "__hash__", arity=(1, 1))
def _object_repr(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    graph_break("identity", f"the default text or hash of a {type(args[0]).__qualname__}")


@function(builtins.id, arity=(1, 1))
def _id(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    record = ev.heap.record(args[0])
    if record is None:
        if isinstance(args[0], type):
            return id(args[0])
        return ev.heap.make_address(args[0])
    ev.heap.guard(record.source, GuardKind.IDENTITY, record.original, "id")
    return id(record.original)


@function(builtins.hash, arity=(1, 1))
def _hash(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    value = args[0]
    found = operations.python_method(ev, value, "__hash__")
    if found is not ABSENT:
        return int(ev.call(found, [value]))
    if isinstance(value, (tuple, frozenset, int, float, str, bytes)) and type(value) is not Address:
        ev.heap.fill_deep(value)
        if _hashes_by_value(value):
            return int(ev.native(hash, value))
    if type(value) in LITERALS or type(value) is tuple and all(type(item) in LITERALS for item in value):
        return int(ev.native(hash, value))
    record = ev.heap.record(value)
    if record is not None:
        ev.heap.guard(record.source, GuardKind.IDENTITY, record.original, "id")
        return int(ev.native(hash, record.original))
    graph_break("identity", f"hash() of a {type(value).__qualname__}")


def _hashes_by_value(value: Any) -> bool:
    """True when the hash depends on no address (that of a class or of None differs from process to process only)."""
    if isinstance(value, (tuple, frozenset)):
        return all(_hashes_by_value(item) for item in value)
    return type(value) in LITERALS or isinstance(type(value).__hash__, types.FunctionType) or isinstance(value, (int, float, str, bytes))


@function(builtins.vars, arity=(0, 1))
def _vars(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        graph_break("opaque_object", "vars() of the running frame")
    return ev.getattr(args[0], "__dict__")


@function(builtins.input, builtins.open, builtins.breakpoint)
def _unsupported(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    graph_break("native_call", "input, open or breakpoint")


@function(builtins.compile)
def _compile(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if not args or type(args[0]) not in (str, bytes):
        graph_break("native_call", "compile() of what is no text")
    kwargs.setdefault("dont_inherit", True)  # the evaluator's own future statements are not the program's
    future = ev.frames[-1].code.co_flags & _FUTURE
    if len(args) < 4:
        kwargs["flags"] = kwargs.get("flags", 0) | future
    return ev.native(compile, *args, **kwargs)


@function(builtins.exec)
def _exec(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    _run_text(ev, args, kwargs, "exec")


@function(builtins.eval)
def _eval(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return _run_text(ev, args, kwargs, "eval")


def _run_text(ev: Evaluator, args: Args, kwargs: Kwargs, kind: str) -> Any:
    if not args or kwargs:
        graph_break("native_call", f"{kind} with keywords")
    code, *rest = args
    if type(code) in (str, bytes):
        text = code.lstrip(" \t" if type(code) is str else b" \t") if kind == "eval" else code
        flags = ev.frames[-1].code.co_flags & _FUTURE
        code = ev.native(compile, text, "<string>", kind, flags=flags, dont_inherit=True)
    if not isinstance(code, types.CodeType):
        return ev.native(exec if kind == "exec" else eval, code, {})  # raises
    return classes.run_code(ev, code, rest, kind)


def _abstract(fn: Any) -> None:
    """A function of `_abc` on a class that the program made."""

    @function(fn)
    def model(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        if not args or not ev.heap.is_fresh(args[0]):
            graph_break("mutates_foreign_state", f"_abc.{fn.__name__} of a class that existed before")
        return ev.native(fn, *args, **kwargs)


for _name in ("_abc_init", "_abc_register", "_get_dump", "_reset_registry", "_reset_caches"):
    _abstract(getattr(_abc, _name))


@function(_abc._abc_instancecheck, arity=(2, 2))
def _abc_instancecheck(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return bool(ev.native(_abc._abc_instancecheck, *args))


@function(_abc._abc_subclasscheck, arity=(2, 2))
def _abc_subclasscheck(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return bool(ev.native(_abc._abc_subclasscheck, *args))


@function(_abc.get_cache_token, arity=(0, 0))
def _cache_token(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return _abc.get_cache_token()


@function(builtins.locals, arity=(0, 0))
def _locals(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return classes.snapshot(ev, ev.frames[-1])


@function(builtins.dir, arity=(0, 1))
def _dir(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return sorted(classes.snapshot(ev, ev.frames[-1]))
    value = args[0]
    if isinstance(value, type) and ev.heap.is_fresh(value) or type(value) in LITERALS:
        return ev.native(dir, value)
    if type(value).__flags__ & (1 << 9) and not isinstance(value, (type, types.ModuleType)):
        found = operations.python_method(ev, value, "__dir__")
        if found is not ABSENT:
            return sorted(ev.list_of(ev.call(found, [value])))
        if ev.heap.is_fresh(value):
            return ev.native(dir, value)
    if isinstance(value, type):
        found = operations.python_method(ev, value, "__dir__")
        if found is not ABSENT:
            return sorted(ev.list_of(ev.call(found, [value])))
        for base in value.__mro__:
            if not ev.heap.is_fresh(base):
                ev.heap.class_namespace(base)
        return ev.native(dir, value)
    graph_break("native_call", f"dir() of a {type(value).__qualname__}")


@function(builtins.globals)
def _globals(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return ev.heap.expose(ev.global_namespace(ev.frames[-1]))


@function(sys._getframe, arity=(0, 1))
def _getframe(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    depth = len(ev.frames) - 1 - (args[0] if args else 0)
    if depth < 0 or not all(type(arg) is int and arg >= 0 for arg in args):
        graph_break("opaque_object", "a frame outside of the compiled region")
    return FrameObject(ev.frames[depth], depth)


@function(gc.collect)
def _collect(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    """Weak references and finalizers are breaks, so nothing in the program sees when garbage goes, nor how much there was."""
    ev.deferred.append((gc.collect, tuple(args)))
    return 0


_FILTERS_MUTATED = getattr(_warnings, "_filters_mutated")  # noqa: B009  # the stubs lack it


@function(_FILTERS_MUTATED, arity=(0, 0))
def _filters_mutated(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    ev.deferred.append((_FILTERS_MUTATED, ()))


@function(_pickle.dumps)
def _dumps(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    for arg in (*args, *kwargs.values()):
        calls.check_reducible(ev, arg)
    return ev.native(_pickle.dumps, *args, **kwargs)


@function(_pickle.loads)
def _loads(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return calls.own_deep(ev, ev.native(_pickle.loads, *args, **kwargs))


def _setting(read: Callable[[], Any]) -> None:
    """A setting of the interpreter: read while capturing, and guarded."""

    def getter(_: Any) -> Any:
        return read()

    @function(read, arity=(0, 0))
    def model(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        value = read()
        if type(value) not in LITERALS:
            graph_break("native_call", f"{read.__name__}() while one is set")
        source = CallSource(ev.heap.object_source(read), getter=getter, label=f"{read.__name__}()")
        ev.heap.guard(source, GuardKind.EQUALITY, value)
        return value


for _read in (sys.get_int_max_str_digits, sys.gettrace, sys.getprofile, sys.getrecursionlimit, sys.getswitchinterval):
    _setting(_read)


FUNCTIONS[builtins.print] = output.print_
FUNCTIONS[logging.getLogger] = output.get_logger
for _method in output.LOGGER_METHODS:
    FUNCTIONS[_method] = functools.partial(output.log, _method)


@function(builtins.__import__)
def _import(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return import_module(ev, *args)


def import_module(ev: Evaluator, name: str, global_names: Any = None, _: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """An import statement whose module is loaded already."""
    if level:
        package = global_names["__package__"] or global_names["__name__"].rpartition(".")[0]
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        name = f"{base}.{name}" if name else base
        if name not in sys.modules:
            graph_break("import", name)
        module = sys.modules[name]
    else:
        if name not in sys.modules:
            found = _find_spec(name)
            if not found:
                raise Raised(ModuleNotFoundError(f"No module named {name!r}", name=name))
            graph_break("import", name)
        module = sys.modules[name if fromlist else name.partition(".")[0]]
    for item in fromlist or ():
        if item != "*" and not hasattr(module, item) and f"{module.__name__}.{item}" not in sys.modules:
            if _find_spec(f"{module.__name__}.{item}"):
                graph_break("import", f"{module.__name__}.{item}")
    return ev.heap.adopt(module)


def _find_spec(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False


# ---------------------------------------------------------------------- iteration


@function(builtins.len, arity=(1, 1))
def _len(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    return operations.length(ev, args[0])


@function(builtins.iter, arity=(1, 2))
def _iter(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2:
        if isinstance(args[0], (types.FunctionType, types.MethodType)):
            return ev.native(iter, *args)
        return ev.call(polyfills.iterate_until, args)
    return ev.iter(args[0])


@function(builtins.next, arity=(1, 2))
def _next(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and type(args[0]).__name__ == "TracedGenerator":
        return args[0].advance(None)
    item = ev.next(args[0])
    if item is not ABSENT:
        return item
    if len(args) > 1:
        return args[1]
    raise Raised(StopIteration())


def _use(polyfill: Callable[..., Any]) -> Model:
    def model(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        return ev.call(polyfill, args, kwargs)

    return model


function(builtins.any, arity=(1, 1))(_use(polyfills.any_))
function(builtins.all, arity=(1, 1))(_use(polyfills.all_))
function(functools.reduce, arity=(2, 3))(_use(polyfills.reduce_))
CLASSES[map] = _use(polyfills.map_)
CLASSES[filter] = _use(polyfills.filter_)
CLASSES[itertools.groupby] = _use(polyfills.groupby_)
CLASSES[itertools.accumulate] = _use(polyfills.accumulate_)
CLASSES[itertools.starmap] = _use(polyfills.starmap_)
CLASSES[itertools.takewhile] = _use(polyfills.takewhile_)
CLASSES[itertools.dropwhile] = _use(polyfills.dropwhile_)
CLASSES[itertools.filterfalse] = _use(polyfills.filterfalse_)


def _literals(ev: Evaluator, values: Any) -> bool:
    if not isinstance(values, (list, tuple)):
        return False
    ev.heap.fill(values)
    return all(type(item) in LITERALS for item in values)


def _extreme(native: Callable[..., Any], polyfill: Callable[..., Any]) -> Model:
    def model(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        if not kwargs and args and (_literals(ev, args) if len(args) > 1 else _literals(ev, args[0])):
            return ev.native(native, *args)
        return ev.call(polyfill, args, kwargs)

    return model


FUNCTIONS[builtins.max] = _extreme(max, polyfills.max_)
FUNCTIONS[builtins.min] = _extreme(min, polyfills.min_)


@function(builtins.sum)
def _sum(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if not args or len(args) > 2:
        return ev.native(sum, *args, **kwargs)
    if not kwargs and _literals(ev, args[0]):
        return ev.native(sum, *args)
    return ev.call(polyfills.sum_, args, kwargs)


@function(builtins.sorted)
def _sorted(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        return ev.native(sorted, *args, **kwargs)
    items = ev.list_of(args[0])
    _sort(ev, items, kwargs)
    return items


@method(list, "sort")
def _list_sort(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        return ev.native(list.sort, *args, **kwargs)
    ev.heap.fill(args[0])
    _sort(ev, args[0], kwargs)
    return None


def _sort(ev: Evaluator, items: Any, kwargs: Kwargs) -> None:
    """list.sort; a key that is no Python function is called here, so that builtins have their models."""
    reverse = ev.truth(kwargs.get("reverse", False))
    key = kwargs.get("key")
    if key is None or isinstance(key, types.FunctionType):
        ev.heap.fill_deep(items)
        ev.native(list.sort, items, key=key, reverse=reverse)
        return
    ev.call(polyfills.sort_list, [items, key, reverse])


@constructor(reversed, arity=(1, 1))
def _reversed(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    found = operations.python_method(ev, value, "__reversed__")
    if found is not ABSENT:
        return ev.call(found, [value])
    if operations.is_pure_instance(value):
        ev.heap.fill(value)
        return ev.native(reversed, value)
    if type(value) is FakeTensor:
        return ev.torch_native(reversed, value)
    if operations.python_method(ev, value, "__getitem__") is not ABSENT:
        return ev.call(polyfills.reverse_by_index, [value])
    return ev.native(reversed, value)


# ---------------------------------------------------------------------- text and numbers


@constructor(str)
def _str(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and not kwargs:
        return operations.to_text(ev, args[0])
    return ev.native(str, *args, **kwargs)


@function(builtins.repr, arity=(1, 1))
def _repr(ev: Evaluator, args: Args, kwargs: Kwargs) -> str:
    return operations.to_text(ev, args[0], "__repr__")


@function(builtins.format, arity=(1, 2))
def _format(ev: Evaluator, args: Args, kwargs: Kwargs) -> str:
    return operations.format_value(ev, args[0], args[1] if len(args) > 1 else "")


@method(str, "format")
def _str_format(ev: Evaluator, args: Args, kwargs: Kwargs) -> str:
    for value in (*args[1:], *kwargs.values()):
        operations.check_printable(ev, value)
    return str(ev.native(str.format, *args, **kwargs))


@constructor(bool, arity=(0, 1))
def _bool(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return ev.truth(args[0]) if args else False


def _number(target: type, *names: str) -> Model:
    def model(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        if args and type(args[0]) is FakeTensor:
            return ev.torch_native(target, *args)
        if args:
            for name in names:
                found = operations.python_method(ev, args[0], name)
                if found is not ABSENT:
                    return ev.native(target, ev.call(found, [args[0]]), *args[1:], **kwargs)
        return ev.native(target, *args, **kwargs)

    return model


CLASSES[int] = _number(int, "__int__", "__index__", "__trunc__")
CLASSES[float] = _number(float, "__float__", "__index__")
CLASSES[complex] = _number(complex, "__complex__", "__float__", "__index__")


# ---------------------------------------------------------------------- containers


@constructor(list, arity=(0, 1))
def _list(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return ev.list_of(args[0]) if args else []


@constructor(tuple, arity=(0, 1))
def _tuple(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return ()
    return args[0] if type(args[0]) is tuple else tuple(ev.list_of(args[0]))


@constructor(dict)
def _dict(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1:
        return ev.native(dict, *args, **kwargs)
    result: dict[Any, Any] = {}
    dict_update(ev, result, args, kwargs)
    return result


@constructor(collections.OrderedDict)
def _ordered_dict(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1:
        return ev.native(collections.OrderedDict, *args, **kwargs)
    result: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    dict_update(ev, result, args, kwargs)
    return result


@constructor(set, arity=(0, 1))
def _set(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    items = ev.list_of(args[0]) if args else []
    for item in items:
        operations.check_hashable(ev, item)
    return ev.native(set, items)


@constructor(frozenset, arity=(0, 1))
def _frozenset(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return frozenset(_set(ev, args, kwargs))


def dict_update(ev: Evaluator, target: Any, args: Args, kwargs: Kwargs) -> None:
    """dict.update"""
    for other in args:
        if isinstance(other, dict) and operations.python_method(ev, other, "keys") is ABSENT:
            if operations.python_method(ev, other, "__getitem__") is ABSENT or type(other).__iter__ is dict.__iter__:
                ev.heap.fill(other)
                ev.native(dict.update if type(target) is dict else type(target).update, target, other)
                continue
        ev.call(polyfills.dict_update, [target, other])
    for key, value in kwargs.items():
        operations.store_subscript(ev, target, key, value)


@method(dict, "update")
def _dict_update(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 2:
        ev.native(dict.update, *args, **kwargs)
    ev.heap.know_keys(args[0])
    dict_update(ev, args[0], args[1:], kwargs)


@method(dict, "get", arity=(2, 3))
def _dict_get(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    operations.check_hashable(ev, args[1])
    try:
        value = ev.heap.dict_get(args[0], args[1])
    except TypeError as exc:
        raise Raised(exc) from None
    if value is not ABSENT:
        return value
    return args[2] if len(args) > 2 else None


@method(dict, "__getitem__", arity=(2, 2))
def _dict_getitem(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return operations.dict_subscript(ev, args[0], args[1])


@method(dict, "__contains__", arity=(2, 2))
def _dict_contains(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    operations.check_hashable(ev, args[1])
    return ev.heap.dict_contains(args[0], args[1])


@method(dict, "pop", arity=(2, 3))
def _dict_pop(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    operations.check_hashable(ev, args[1])
    value = ev.heap.dict_get(args[0], args[1])
    if value is ABSENT:
        if len(args) > 2:
            return args[2]
        raise Raised(KeyError(args[1]))
    ev.native(dict.__delitem__, args[0], args[1])
    return value


@method(collections.OrderedDict, "pop")
def _ordered_pop(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    target, key, *rest = _take(args, kwargs, "self", "key", "default", defaults=(_MISSING,))
    value = ev.heap.dict_get(target, key)
    if value is ABSENT:
        if rest[0] is not _MISSING:
            return rest[0]
        raise Raised(KeyError(key))
    ev.native(collections.OrderedDict.__delitem__, target, key)
    return value


@method(dict, "setdefault", arity=(2, 3))
def _dict_setdefault(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    operations.check_hashable(ev, args[1])
    value = ev.heap.dict_get(args[0], args[1])
    if value is not ABSENT:
        return value
    default = args[2] if len(args) > 2 else None
    ev.native(dict.__setitem__, args[0], args[1], default)
    return default


@method(dict, "keys", arity=(1, 1))
def _dict_keys(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    ev.heap.know_keys(args[0])
    return ev.native(dict.keys, args[0])


@method(dict, "__iter__", arity=(1, 1))
def _dict_iter(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    ev.heap.know_keys(args[0])
    return ev.native(dict.__iter__, args[0])


@method(dict, "__reversed__", arity=(1, 1))
def _dict_reversed(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    ev.heap.know_keys(args[0])
    return ev.native(dict.__reversed__, args[0])


@method(dict, "__len__", arity=(1, 1))
def _dict_len(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    ev.heap.know_keys(args[0])
    return dict.__len__(args[0])


@method(dict, "__setitem__", arity=(3, 3))
def _dict_setitem(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    operations.check_hashable(ev, args[1])
    ev.native(dict.__setitem__, *args)


@method(list, "__getitem__", arity=(2, 2))
def _list_getitem(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    if isinstance(args[1], int):
        try:
            return ev.heap.list_get(args[0], args[1])
        except IndexError as exc:
            raise Raised(exc) from None
    ev.heap.fill(args[0])
    return ev.native(list.__getitem__, *args)


@method(list, "append", arity=(2, 2))
def _list_append(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    ev.heap.fill(args[0])
    ev.native(list.append, *args)


@method(list, "insert", arity=(3, 3))
def _list_insert(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    ev.heap.fill(args[0])
    ev.native(list.insert, *args)


@method(list, "extend", arity=(2, 2))
def _list_extend(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    extend_list(ev, args[0], args[1])
    return None


@method(list, "__iadd__", arity=(2, 2))
def _list_iadd(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    extend_list(ev, args[0], args[1])
    return args[0]


def extend_list(ev: Evaluator, target: Any, items: Any) -> None:
    """list.extend, item by item, so that what the iterable does meanwhile is seen."""
    ev.heap.fill(target)
    if isinstance(items, (list, tuple)) and operations.python_method(ev, items, "__iter__") is ABSENT:
        ev.heap.fill(items)
        ev.native(list.extend, target, items)
        return
    iterator = ev.iter(items)
    while (item := ev.next(iterator)) is not ABSENT:
        list.append(target, item)


@method(str, "join", arity=(2, 2))
def _join(ev: Evaluator, args: Args, kwargs: Kwargs) -> str:
    return str(ev.native(str.join, args[0], ev.list_of(args[1])))


@constructor(functools.partial)
def _partial(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return ev.native(functools.partial, *args, **kwargs)


# ---------------------------------------------------------------------- operator module


def _binary_function(text: str) -> Model:
    return lambda ev, args, kwargs: operations.binary(ev, text, args[0], args[1])


for _text, (_function, *_) in operations.BINARY.items():
    OPERATOR_FUNCTIONS[_function.__name__] = _binary_function(_text)


def _compare_function(text: str) -> Model:
    return lambda ev, args, kwargs: operations.compare(ev, text, args[0], args[1])


for _text, (_function, *_) in operations.COMPARISONS.items():
    OPERATOR_FUNCTIONS[_function.__name__] = _compare_function(_text)
OPERATOR_FUNCTIONS.update(
    {
        "getitem": lambda ev, args, kwargs: operations.subscript(ev, *args),
        "setitem": lambda ev, args, kwargs: operations.store_subscript(ev, *args),
        "delitem": lambda ev, args, kwargs: operations.delete_subscript(ev, *args),
        "contains": lambda ev, args, kwargs: operations.contains(ev, args[1], args[0]),
        "not_": lambda ev, args, kwargs: not ev.truth(args[0]),
        "truth": lambda ev, args, kwargs: ev.truth(args[0]),
        "is_": lambda ev, args, kwargs: args[0] is args[1],
        "is_not": lambda ev, args, kwargs: args[0] is not args[1],
        "neg": lambda ev, args, kwargs: operations.unary(ev, "__neg__", args[0]),
        "pos": lambda ev, args, kwargs: operations.unary(ev, "__pos__", args[0]),
        "invert": lambda ev, args, kwargs: operations.unary(ev, "__invert__", args[0]),
    }
)


#: parameters of the functions of `operator` that have a model; all are positional
OPERATOR_ARITY = {name: len(inspect.signature(getattr(operator, name)).parameters) for name in OPERATOR_FUNCTIONS}


def _itemgetter(ev: Evaluator, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    keys = fn.__reduce__()[1]
    found = [operations.subscript(ev, args[0], key) for key in keys]
    return found[0] if len(keys) == 1 else tuple(found)


def _attrgetter(ev: Evaluator, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    found = []
    for path in fn.__reduce__()[1]:
        value = args[0]
        for name in path.split("."):
            value = ev.getattr(value, name)
        found.append(value)
    return found[0] if len(found) == 1 else tuple(found)


def _methodcaller(ev: Evaluator, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    reduced = fn.__reduce__()
    if isinstance(reduced[0], functools.partial):
        name, rest, named = reduced[0].args[0], reduced[1], reduced[0].keywords
    else:
        name, rest, named = reduced[1][0], reduced[1][1:], {}
    return ev.call(ev.getattr(args[0], name), list(rest), dict(named))


def _dereference(ev: Evaluator, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """What a weak reference that existed before refers to; guarded like anything else that is read."""
    record = ev.heap.record(fn)
    if args or kwargs or record is None:
        graph_break("native_call", "call of a weak reference that was made inside")
    return ev.heap.translate(fn(), heap_module.referent(record.source))


OBJECT_CALLS[weakref.ReferenceType] = _dereference
OBJECT_CALLS[operator.itemgetter] = _itemgetter
OBJECT_CALLS[operator.attrgetter] = _attrgetter
OBJECT_CALLS[operator.methodcaller] = _methodcaller


# ---------------------------------------------------------------------- libraries


@function(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, policy.is_compiling)
def _is_compiling(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    """True: libraries that branch on it take the branch made for capture. Eager code between graphs answers False."""
    return True


@function(torch.compiler.is_exporting)
def _is_exporting(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return False


@constructor(torch.autograd.profiler.record_function)
def _record_function(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    """Changes no result, so it is no reason to split a graph."""
    return ev.call(polyfills.UnseenRecord, args, kwargs)


@function(set_grad_enabled_raw)
def _set_grad_enabled(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    enabled = ev.truth(args[0])
    if enabled == torch.is_grad_enabled():
        return
    ev.recorder.add_effect(regions.set_grad_enabled, enabled)
    with DisableTorchFunction():
        set_grad_enabled_raw(enabled)


@function(torch.set_autocast_enabled, arity=(1, 2))
def _set_autocast_enabled(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    if len(args) != 2:
        graph_break("torch_call", "torch.set_autocast_enabled without a device type")
    _set_autocast(ev, torch.set_autocast_enabled, args, torch.is_autocast_enabled)


@function(torch.set_autocast_dtype, arity=(2, 2))
def _set_autocast_dtype(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    _set_autocast(ev, torch.set_autocast_dtype, args, torch.get_autocast_dtype)


def _set_autocast(ev: Evaluator, setter: Any, args: Args, getter: Any) -> None:
    ev.modes.touch(args[0])
    before = ev.native(getter, args[0])
    ev.native(setter, *args)
    if getter(args[0]) != before:
        ev.recorder.add_effect(setter, *args)


@function(torch.is_autocast_cache_enabled, arity=(0, 0))
def _is_autocast_cache_enabled(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return ev.modes.cache


@function(torch.set_autocast_cache_enabled, arity=(1, 1))
def _set_autocast_cache_enabled(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    enabled = ev.truth(args[0])
    if enabled != ev.modes.cache:
        ev.modes.cache = enabled
        ev.recorder.add_effect(torch.set_autocast_cache_enabled, enabled)


@function(torch.autocast_increment_nesting, arity=(0, 0))
def _autocast_increment_nesting(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    return _nest_autocast(ev, 1, torch.autocast_increment_nesting)


@function(torch.autocast_decrement_nesting, arity=(0, 0))
def _autocast_decrement_nesting(ev: Evaluator, args: Args, kwargs: Kwargs) -> int:
    return _nest_autocast(ev, -1, torch.autocast_decrement_nesting)


def _nest_autocast(ev: Evaluator, change: int, target: Any) -> int:
    ev.modes.nesting += change
    ev.recorder.add_effect(target)
    return ev.modes.entry_nesting + ev.modes.nesting


@function(torch.clear_autocast_cache, arity=(0, 0))
def _clear_autocast_cache(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    ev.recorder.add_effect(torch.clear_autocast_cache)


@method(torch.device, "__enter__", "__exit__")
def _device_context(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    graph_break("torch_call", "with torch.device(...) changes where factories put tensors")


def _numpy_function(ev: Evaluator, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """An element-wise function of NumPy, of literals."""
    if kwargs or not all(type(value) in LITERALS for value in args):
        graph_break("native_call", f"numpy.{fn.__name__} of more than numbers")
    return ev.native(fn, *args)


for _kind in ELEMENTWISE:
    OBJECT_CALLS[_kind] = _numpy_function


def _enum_call(ev: Evaluator, cls: Any, args: Args, kwargs: Kwargs) -> Any:
    """A member by its value."""
    if len(args) == 1 and not kwargs and type(args[0]) in LITERALS:
        member = cls.__dict__.get("_value2member_map_", {}).get(args[0])
        if member is not None and not ev.heap.is_fresh(cls):
            return member
    if len(args) == 1 and type(args[0]) is cls:
        return args[0]
    meta = type(cls)
    return ev.call(ev.heap.class_value(meta, "__call__", enum.EnumMeta.__call__), [cls, *args], kwargs)


METACLASS_CALLS[enum.EnumMeta] = _enum_call

_OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
)  # fmt: skip
_module_call_impl: Any = torch.nn.Module._call_impl
_module_namespace = vars(sys.modules[torch.nn.Module.__module__])


@function(_module_call_impl)
def _module_call(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    """torch.nn.Module._call_impl where no hook is registered: forward. Other modules are inlined."""
    heap = ev.heap
    module = args[0]
    record = heap.record(module.__dict__) if heap.record(module) is not None else None
    if record is None or not all(_is_empty_hook_table(ev, record, name) for name in _OWN_HOOKS) or not _no_global_hooks(ev):
        return calls.inline_function(ev, _module_call_impl, args, kwargs)
    return ev.call(ev.getattr(module, "forward"), args[1:], kwargs)


def _is_empty_hook_table(ev: Evaluator, record: Any, name: str) -> bool:
    value = record.stand_in.get(name, ABSENT)
    original = record.original.get(name)
    if value is UNREAD and isinstance(original, dict) and not original:
        ev.heap.guard(ev.heap.key_source(record.source, name), GuardKind.TRUTH, False)
        return True
    return isinstance(value, dict) and not value


def _no_global_hooks(ev: Evaluator) -> bool:
    heap = ev.heap
    namespace = heap.namespace(_module_namespace)
    for name in _GLOBAL_HOOKS:
        if name in namespace.values or not isinstance(_module_namespace[name], dict) or _module_namespace[name]:
            return False
        heap.guard(heap.key_source(namespace.source, name), GuardKind.TRUTH, False)
    return True


@function(*_torch_private.HAS_TORCH_FUNCTION)
def _has_torch_function(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    """Whether the program's own arguments override torch functions; the mode that records is none of its business."""
    values = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    for value in values:
        cls = ev.type_of(value)
        if cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or cls in LITERALS:
            continue
        if hasattr(cls, "__torch_function__"):
            graph_break("unsupported_tensor", f"a {cls.__qualname__}, which overrides torch functions")
    return False


@function(_torch_private.is_function_mode_enabled)
def _is_function_mode_enabled(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return False


@function(torch._check)
def _check(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    """torch._check: what it says of numbers that only running the graph tells is checked there."""
    condition, *rest = [*args, *kwargs.values()]
    if type(condition) is torch.SymBool:
        ev.torch_native(torch._check, condition)
        ev.recorder.check(condition)
        return
    if not ev.truth(condition):
        message = ev.call(rest[0], []) if rest and rest[0] is not None else "Expected cond to be True, but got False"
        raise Raised(RuntimeError(message))


@function(torch._check_is_size)
def _check_is_size(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    _check(ev, [operations.compare(ev, ">=", args[0], 0)], {})


@function(torch.is_tensor)
def _is_tensor(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    return is_instance(ev, args[0], torch.Tensor)


@function(dataclasses.fields)
def _fields(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    cls = target if isinstance(target, type) else type(target)
    found = ev.heap.class_lookup(cls, "__dataclass_fields__")
    if ev.heap.is_fresh(cls) or ev.heap.is_fresh(found):
        return calls.inline_function(ev, dataclasses.fields, args, kwargs)  # type: ignore[arg-type]  # a Python function
    return ev.native(dataclasses.fields, cls) if not hasattr(cls, "__dataclass_fields__") else dataclasses.fields(cls)


def _on_literals(fn: Callable[..., Any]) -> None:
    """Let a library function of Python run as it is when all its arguments are literals: its answer depends on nothing else."""

    @function(fn)
    def model(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        values = (*args, *kwargs.values())
        if all(type(value) in LITERALS or isinstance(value, (re.Pattern, re.RegexFlag)) for value in values):
            try:
                return fn(*args, **kwargs)
            except Exception as exc:
                raise Raised(exc) from None
        return calls.inline_function(ev, fn, args, kwargs)  # type: ignore[arg-type]  # a Python function


for _name in ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "escape"):
    _on_literals(getattr(re, _name))
for _name in ("join", "split", "basename", "dirname", "splitext", "normpath", "isabs"):
    _on_literals(getattr(os.path, _name))


FUNCTIONS[torch.autograd.Function.apply.__func__] = custom_functions.apply  # type: ignore[attr-defined]  # a classmethod, bound


@function(polyfills.FunctionContext.mark_dirty, polyfills.FunctionContext.set_materialize_grads)
def _refuse_dirty(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    graph_break("torch_call", "a custom autograd function that writes into its inputs or takes None for gradients")


FUNCTIONS[copy.deepcopy] = lambda ev, args, kwargs: (
    ev.call(polyfills.deepcopy, args) if len(args) == 1 and not kwargs else graph_break("native_call", "copy.deepcopy with a memo")
)


@function(polyfills.callable_atom)
def _is_copy_atom(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    value = args[0]
    atoms = (types.FunctionType, types.BuiltinFunctionType, enum.Enum, torch.dtype, torch.device, re.Pattern, property)
    return type(value) in LITERALS or isinstance(value, atoms)


@function(polyfills.refuse_copy)
def _refuse_copy(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    graph_break("native_call", f"copy.deepcopy of a {type(args[0]).__qualname__}")


@function(polyfills.is_plain_instance)
def _is_plain_instance(ev: Evaluator, args: Args, kwargs: Kwargs) -> bool:
    cls = type(args[0])
    return heap_module.can_shadow(cls) and heap_module.container_base(cls) is None and not any(
        base.__dict__.get("__slots__") for base in cls.__mro__
    )


def _class_signature(ev: Evaluator, cls: type) -> Any:
    """The signature of a class whose instances are made by a Python `__init__` or `__new__`."""
    heap = ev.heap
    if heap.class_lookup(type(cls), "__call__") is not type.__call__:
        graph_break("native_call", f"inspect.signature of {cls.__qualname__}, whose metaclass has a __call__")
    for name in ("__signature__", "__wrapped__", "__text_signature__", "__new__", "__init__"):
        found = heap.class_lookup(cls, name)
        if isinstance(found, types.FunctionType) and not heap.is_fresh(found):
            heap.adopt(found)
            record = heap.record(found)
            if record is not None:
                heap.guard(record.source, GuardKind.FUNCTION_CODE, found.__code__)
    try:
        return ev.off_net(lambda: inspect.signature(cls))
    except (TypeError, ValueError) as exc:
        raise Raised(exc) from None


@function(inspect.signature)
def _signature(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    target = args[0]
    inner = target.__func__ if isinstance(target, types.MethodType) else target
    if isinstance(inner, type) and not kwargs and len(args) == 1:
        return _class_signature(ev, inner)
    if not isinstance(inner, types.FunctionType) or kwargs or len(args) > 1:
        graph_break("native_call", "inspect.signature of something that is no plain function")
    while inner is not None:
        ev.heap.adopt(inner)
        record = ev.heap.record(inner)
        if record is not None:
            ev.heap.guard(record.source, GuardKind.FUNCTION_CODE, inner.__code__)
        inner = inner.__dict__.get("__wrapped__")
    try:
        return inspect.signature(target)
    except (TypeError, ValueError) as exc:
        raise Raised(exc) from None


@function(sys.exc_info)
def _exc_info(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    exc = ev.current_exception
    if exc is None:
        return (None, None, None)
    return (type(exc), exc, ev.traceback_of(exc))


if hasattr(sys, "exception"):

    @function(sys.exception, arity=(0, 0))
    def _current_exception(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
        return ev.current_exception


@method(BaseException, "with_traceback", arity=(2, 2))
def _with_traceback(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    attributes.generic_store(ev, args[0], "__traceback__", args[1])
    return args[0]


def _adopt_leaves(ev: Evaluator, group: Any) -> None:
    """The parts of a group that existed before existed before."""
    for part in group.exceptions:
        ev.heap.adopt(part)
        if isinstance(part, BaseExceptionGroup):
            _adopt_leaves(ev, part)


@method(BaseExceptionGroup, "subgroup", arity=(2, 2))
def _subgroup(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    return _split_group(ev, args, kwargs)[0]


@method(BaseExceptionGroup, "split", arity=(2, 2))
def _split_group(ev: Evaluator, args: Args, kwargs: Kwargs) -> Any:
    """The parts of a group have the group's traceback."""
    group, condition = args
    if ev.heap.record(group) is not None:
        _adopt_leaves(ev, group)
    if any(isinstance(part, BaseExceptionGroup) and ev.traceback_of(part) is not None for part in group.exceptions):
        graph_break("exception_group", "splits a group that holds a group which was raised")
    parts = ev.native(BaseExceptionGroup.split, group, condition)
    for part in parts:
        if part is not None and part is not group and ev.traceback_of(group) is not None:
            ev.tracebacks[id(part)] = (part, ev.traceback_of(group))
    return parts


@function(traceback.clear_frames)
def _clear_frames(ev: Evaluator, args: Args, kwargs: Kwargs) -> None:
    """Only drops the variables of frames that have ended."""
    if args and args[0] is not None and type(args[0]) is not Traceback:
        calls.inline_function(ev, traceback.clear_frames, args, kwargs)  # type: ignore[arg-type]  # a Python function
