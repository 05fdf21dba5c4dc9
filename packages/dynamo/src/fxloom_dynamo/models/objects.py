"""Models of builtins about types, attributes and identity: isinstance, getattr, super, hash, dir, object's own methods, ABCs.

In: the evaluator and the arguments of the call. Out: what the call returns, or its exception as `Raised`; what the answer depends on is
guarded. The real function is not called where it would see a proxy or a fake for what it is. `load_all` imports this module, which fills
the tables of `interpreter.model_tables`.
"""

from __future__ import annotations

import _abc
import abc
import builtins
import enum
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter import frame_locals, special_methods
from fxloom_dynamo.interpreter.model_tables import Args, Kwargs, constructor, function, method
from fxloom_dynamo.objects.sentinels import ABSENT, Address, Raised
from fxloom_dynamo.objects.value_types import HEAPTYPE, LITERALS
from fxloom_dynamo.semantics import attribute_writes, attributes, classes, operators, subscripts, texts
from fxloom_dynamo.tensors import attached_state, subclasses
from fxloom_interfaces.sources import CallSource
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@function(builtins.isinstance, arity=(2, 2))
def _isinstance(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    value, wanted = args
    return is_instance(ev, value, wanted)


def is_instance(ev: Interpreter, value: Any, wanted: Any) -> bool:
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
    if meta is type(torch.FloatTensor) and type(value) is FakeTensor:
        legacy: Any = wanted
        device = "cuda" if legacy.is_cuda else "cpu"
        return bool((value.dtype, value.layout, value.device.type) == (legacy.dtype, legacy.layout, device))
    if wanted is torch.nn.Buffer and type(value) is FakeTensor:
        return attached_state.is_marked(ev, value, "_is_buffer")
    if wanted is torch.nn.Parameter and type(value) is FakeTensor and cls is not torch.Tensor:
        return issubclass(cls, wanted) or attached_state.is_marked(ev, value, "_is_param")
    if type(value) is FakeTensor or cls is not type(value):
        return issubclass(cls, wanted)
    if meta is type or wanted is torch.nn.Parameter or meta.__module__.startswith("torch"):
        if not type(value).__flags__ & HEAPTYPE:
            return isinstance(value, wanted)
        return bool(ev.native(isinstance, value, wanted))
    check = ev.heap.class_lookup(meta, "__instancecheck__")
    if isinstance(check, types.FunctionType) and meta is not abc.ABCMeta and not issubclass(meta, (enum.EnumMeta,)):
        if meta.__module__ == "typing":
            return isinstance(value, wanted)
        return ev.truth(ev.call(ev.heap.class_value(meta, "__instancecheck__", check), [wanted, value]))
    return _note_subclass(ev, cls, wanted, bool(ev.native(isinstance, value, wanted)))


@function(builtins.issubclass, arity=(2, 2))
def _issubclass(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    cls, wanted = args
    answer = bool(ev.native(issubclass, cls, wanted))
    for one in wanted if isinstance(wanted, tuple) else (wanted,):
        if isinstance(cls, type) and isinstance(one, type):
            _note_subclass(ev, cls, one, bool(ev.native(issubclass, cls, one)))
    return answer


def _note_subclass(ev: Interpreter, cls: type, wanted: type, answer: bool) -> bool:
    """Guard what an abstract class said: classes can be registered with it, or get the methods that it asks for."""
    builtin = not cls.__flags__ & HEAPTYPE and wanted.__module__ in ("collections.abc", "numbers")
    if isinstance(wanted, abc.ABCMeta) and not builtin and not ev.heap.is_fresh(cls) and not ev.heap.is_fresh(wanted):
        check = type(wanted).__subclasscheck__.__get__(wanted)
        label = f"issubclass({{}}, {wanted.__module__}.{wanted.__qualname__})"
        ev.heap.guard(CallSource(ev.heap.object_source(cls), getter=check, label=label), GuardKind.EQUALITY, answer)
    return answer


@constructor(type)
def _type(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and not kwargs:
        return ev.type_of(args[0])
    if len(args) == 3 and isinstance(args[1], tuple):
        meta = classes.winner(type, args[1])
        if meta is not type:
            return ev.call(meta, args, kwargs)
    return classes.make_class(ev, type, args, kwargs)


@function(builtins.__build_class__)
def _build_class(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return classes.build_class(ev, args, kwargs)


@function(builtins.callable, arity=(1, 1))
def _callable(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    ev.heap.class_lookup(type(args[0]), "__call__")
    return callable(args[0])


@constructor(super)
def _super(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args:
        if len(args) == 1:
            graph_break("native_call", "unbound super()")
        return _bound_super(ev, *args)
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
    return _bound_super(ev, cls, receiver)


def _bound_super(ev: Interpreter, cls: Any, receiver: Any, *rest: Any) -> Any:
    if type(receiver) is FakeTensor and not rest and isinstance(cls, type) and issubclass(ev.type_of(receiver), cls):
        return subclasses.TensorSuper(cls, ev.type_of(receiver), receiver)
    return ev.native(super, cls, receiver, *rest)


@function(builtins.getattr, arity=(2, 3))
def _getattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2:
        return ev.getattr(args[0], args[1])
    return ev.getattr_or(args[0], args[1], args[2])


@function(builtins.hasattr, arity=(2, 2))
def _hasattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return ev.getattr_or(args[0], args[1], ABSENT) is not ABSENT


@function(builtins.setattr, arity=(3, 3))
def _setattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.setattr(args[0], args[1], args[2])


@function(builtins.delattr, arity=(2, 2))
def _delattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    attribute_writes.delete(ev, args[0], args[1])


@method(object, "__setattr__", arity=(3, 3))
def _object_setattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    if issubclass(type(args[0]), type):
        ev.native(object.__setattr__, *args)  # refuses classes
    attribute_writes.generic_store(ev, *args)


@method(object, "__getattribute__", arity=(2, 2))
def _object_getattribute(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return attributes.generic_load(ev, *args)


@method(object, "__delattr__", arity=(2, 2))
def _object_delattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    attribute_writes.generic_delete(ev, *args)


@method(type, "__setattr__")
def _type_setattr(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    attribute_writes.store_class(ev, *args)


@method(type, "__getattribute__")
def _type_getattribute(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return attributes.load(ev, *args)


@method(object, "__init__")
def _object_init(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 1 or kwargs:
        cls = type(args[0])
        if ev.heap.class_lookup(cls, "__new__") is object.__new__ or ev.heap.class_lookup(cls, "__init__") is not object.__init__:
            raise Raised(TypeError(f"{cls.__name__}.__init__() takes exactly one argument (the instance to initialize)"))


@method(object, "__eq__", arity=(2, 2))
def _object_eq(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return True if args[0] is args[1] else NotImplemented


@method(object, "__ne__", arity=(2, 2))
def _object_ne(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return not ev.truth(operators.compare(ev, "==", args[0], args[1]))


@method(object, "__str__", arity=(1, 1))
def _object_str(ev: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return texts.to_text(ev, args[0], "__repr__")


@method(object, "__format__", arity=(2, 2))
def _object_format(ev: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return texts.format_value(ev, args[0], args[1])


@method(object, "__repr__", "__hash__", arity=(1, 1))
def _object_repr(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    graph_break("identity", f"the default text or hash of a {type(args[0]).__qualname__}")


@function(builtins.id, arity=(1, 1))
def _id(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    record = ev.heap.record(args[0])
    if record is None:
        if isinstance(args[0], type):
            return id(args[0])
        return ev.heap.make_address(args[0])
    ev.heap.guard(record.source, GuardKind.IDENTITY, record.original, "id")
    return id(record.original)


@function(builtins.hash, arity=(1, 1))
def _hash(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    value = subscripts.hashable(ev, args[0])
    found = special_methods.python_method(ev, value, "__hash__")
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
def _vars(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        graph_break("opaque_object", "vars() of the running frame")
    return ev.getattr(args[0], "__dict__")


def _abstract(fn: Any) -> None:
    """A function of `_abc` on a class that the program made."""

    @function(fn)
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not args or not ev.heap.is_fresh(args[0]):
            graph_break("mutates_foreign_state", f"_abc.{fn.__name__} of a class that existed before")
        return ev.native(fn, *args, **kwargs)


for _name in ("_abc_init", "_abc_register", "_get_dump", "_reset_registry", "_reset_caches"):
    _abstract(getattr(_abc, _name))


@function(_abc._abc_instancecheck, arity=(2, 2))
def _abc_instancecheck(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return bool(ev.native(_abc._abc_instancecheck, *args))


@function(_abc._abc_subclasscheck, arity=(2, 2))
def _abc_subclasscheck(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return bool(ev.native(_abc._abc_subclasscheck, *args))


@function(_abc.get_cache_token, arity=(0, 0))
def _cache_token(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _abc.get_cache_token()


@function(builtins.dir, arity=(0, 1))
def _dir(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return sorted(frame_locals.snapshot(ev, ev.frames[-1]))
    value = args[0]
    if isinstance(value, type) and ev.heap.is_fresh(value) or type(value) in LITERALS:
        return ev.native(dir, value)
    if type(value).__flags__ & (1 << 9) and not isinstance(value, (type, types.ModuleType)):
        found = special_methods.python_method(ev, value, "__dir__")
        if found is not ABSENT:
            return sorted(ev.list_of(ev.call(found, [value])))
        if ev.heap.is_fresh(value):
            return ev.native(dir, value)
    if isinstance(value, type):
        found = special_methods.python_method(ev, value, "__dir__")
        if found is not ABSENT:
            return sorted(ev.list_of(ev.call(found, [value])))
        for base in value.__mro__:
            if not ev.heap.is_fresh(base):
                ev.heap.class_namespace(base)
        return ev.native(dir, value)
    graph_break("native_call", f"dir() of a {type(value).__qualname__}")
