"""What `obj.name` means, by the kind of `obj`.

In: an object and a name, as the evaluator holds them. Out: the attribute, a proxy where it existed before the frame, or AttributeError as
`Raised`. Invariant: whatever decided the answer, in the instance and in each class, is guarded.

Python's own protocol is followed (`__getattribute__`, data descriptors, instance dict, other descriptors, `__getattr__`);
code of the program that takes part in it is inlined, and every class lookup is noted for a guard.
"""

from __future__ import annotations

import collections
import enum
import functools
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter import frame_locals
from fxloom_dynamo.interpreter.descriptors import bind, bind_class_method, descriptor_get, is_property, member, missing
from fxloom_dynamo.interpreter.generators import TracedGenerator
from fxloom_dynamo.objects import proxies
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.sentinels import ABSENT, FrameObject, Raised, Traceback, own_dict
from fxloom_dynamo.objects.unguarded import AppendOnly, append_only_method
from fxloom_dynamo.objects.value_types import CONTROLLED, EXACT_CONTAINERS, FROZEN, HEAPTYPE, LITERALS
from fxloom_dynamo.semantics import numbers
from fxloom_dynamo.symbolic_numbers import values
from fxloom_dynamo.symbolic_numbers.values import concrete
from fxloom_dynamo.tensors import attributes, numpy_calls
from fxloom_dynamo.tensors.subclasses import TensorSuper
from fxloom_dynamo.traced import polyfills
from fxloom_interfaces.sources import InstanceDictSource
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

_GENERIC_GETATTRIBUTE_OWNERS = (object, dict, list, tuple, set, BaseException, str, int, float)
_CALLABLES = (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType)
#: what the interpreter's `enum` has set of a member for good
_FIXED_OF_MEMBERS = frozenset({"_name_", "__objclass__", "_sort_order_"})
_TUPLE_GETTER = type(collections.namedtuple("_Pair", "left right").left)  # type: ignore[attr-defined]  # a field's descriptor
_module_getattr = torch.nn.Module.__getattr__


def load(ev: Interpreter, obj: Any, name: str) -> Any:
    """obj.name"""
    if ev.heap.untraceable:
        if type(obj) is Array:
            return numpy_calls.attribute(ev, obj, name)
        if type(obj) is AppendOnly:
            return append_only_method(obj, name)
        if ev.heap.exposed(obj) is not None and name in polyfills.NAMESPACE_METHODS:
            return types.MethodType(polyfills.NAMESPACE_METHODS[name], obj)
        ev.heap.refuse(obj)
    cls = type(obj)
    if cls is FakeTensor:
        return attributes.load(ev, obj, name)
    if cls in SYMBOLIC:
        method = numbers.METHODS.get((values.PYTHON_TYPES[cls], name))
        return functools.partial(method, obj) if method is not None else _native(ev, concrete(obj), name)
    if isinstance(obj, types.ModuleType):
        return module_attribute(ev, obj, name)
    if isinstance(obj, type):
        return _class(ev, obj, name)
    if cls is super or cls is TensorSuper:
        return _super(ev, obj, name)
    if cls is types.FunctionType:
        return _function(ev, obj, name)
    if cls is types.MethodType:
        return _method(ev, obj, name)
    if cls is FrameObject:
        return _frame(ev, obj, name)
    if cls is Traceback or cls is types.TracebackType:
        graph_break("opaque_object", f"{name} of the traceback of an exception")
    if cls is types.CellType and name == "cell_contents":
        value = ev.heap.cell_get(obj)
        if value is ABSENT:
            raise Raised(ValueError("Cell is empty"))
        return value
    if cls in FROZEN:
        return _frozen(ev, obj, name)
    if cls is collections.OrderedDict or (
        cls.__flags__ & HEAPTYPE and not isinstance(obj, enum.Enum) and cls is not TracedGenerator
    ):
        return _instance(ev, obj, name)
    return _native(ev, obj, name)


# ---------------------------------------------------------------------- instances


def _instance(ev: Interpreter, obj: Any, name: str) -> Any:
    cls = type(obj)
    if issubclass(cls, threading.local):
        return generic_load(ev, obj, name)
    custom = ev.heap.class_lookup(cls, "__getattribute__")
    try:
        if isinstance(custom, types.FunctionType):
            return ev.call(ev.heap.class_value(cls, "__getattribute__", custom), [obj, name])
        if getattr(custom, "__objclass__", None) not in _GENERIC_GETATTRIBUTE_OWNERS:
            return _native(ev, obj, name)
        return generic_load(ev, obj, name)
    except Raised as raised:
        if not isinstance(raised.exc, AttributeError):
            raise
        fallback = ev.heap.class_lookup(cls, "__getattr__")
        if fallback is ABSENT:
            raise
        if fallback is _module_getattr:
            return _module_attribute(ev, obj, name)
        return ev.call(bind(ev, fallback, "__getattr__", obj, cls, cls), [name])


def generic_load(ev: Interpreter, obj: Any, name: str) -> Any:
    """object.__getattribute__(obj, name)"""
    heap = ev.heap
    cls = type(obj)
    raw = heap.class_lookup(cls, name)
    kind = type(raw)
    if raw is not ABSENT and kind is not types.FunctionType:
        if is_property(raw):
            if raw.fget is None:
                return ev.native(raw.__get__, obj, cls)
            return ev.call(member(ev, cls, name, raw, raw.fget), [obj])
        if kind is types.MemberDescriptorType:
            return _slot(ev, obj, raw, name)
        if kind is _TUPLE_GETTER:
            return raw.__get__(obj, cls)
        if kind is types.GetSetDescriptorType:
            if name == "__class__":
                return cls
            if name == "__dict__":
                return instance_dict(ev, obj) if issubclass(cls, threading.local) else own_dict(obj)
            if name == "__traceback__" and isinstance(obj, BaseException):
                return ev.traceback_of(obj)
            if name == "__weakref__":
                graph_break("opaque_object", "weak references of an object")
            return _followed(ev, obj, name, ev.native(raw.__get__, obj, cls))
        if (hasattr(kind, "__set__") or hasattr(kind, "__delete__")) and hasattr(kind, "__get__"):
            return descriptor_get(ev, raw, name, obj, cls)
    if cls.__dictoffset__ or issubclass(cls, threading.local):
        value = heap.dict_get(instance_dict(ev, obj), name)
        if value is not ABSENT:
            return value
    if raw is ABSENT:
        raise missing(ev, obj, name)
    return bind(ev, raw, name, obj, cls, cls)


def instance_dict(ev: Interpreter, obj: Any) -> dict[str, Any]:
    record = ev.heap.record(obj)
    if isinstance(obj, threading.local):
        return _thread_dict(ev, obj, record)
    if record is not None and record.kind == "opaque":
        return _opaque_dict(ev, obj, record)
    if type(obj) in EXACT_CONTAINERS:  # an OrderedDict, which all but never has attributes
        if record is not None:
            proxies.load_attributes(ev.heap, record)
        return own_dict(obj)
    if record is None and not ev.heap.is_fresh(obj):
        return _foreign_dict(ev, obj)
    return own_dict(obj)


def _thread_dict(ev: Interpreter, obj: threading.local, record: Any) -> dict[str, Any]:
    """The proxy of what a thread-local object holds for the thread that runs: a guard asks the thread that it runs in."""
    if record is None:
        graph_break("opaque_object", f"a {type(obj).__qualname__} (threading.local) that was made inside")
    found: dict[str, Any] = ev.heap.translate(obj.__dict__, ev.heap.attr_source(record.source, "__dict__"))
    return found


def _frozen(ev: Interpreter, obj: Any, name: str) -> Any:
    """An attribute of what describes code (`value_types.FROZEN`). Nobody sets one, but what it refers to may be an object as any other."""
    value: Any = getattr(obj, name, ABSENT)
    if value is ABSENT:
        raise missing(ev, obj, name)
    kind = type(value)
    if _is_description(value) or kind is types.MethodType and value.__self__ is obj or kind in _CALLABLES:
        return value
    if kind is types.MappingProxyType:
        if not all(_is_description(part) for part in value.values()):
            graph_break("opaque_object", f"{name} of a {type(obj).__qualname__}, which holds objects")
        return value
    if ev.heap.is_fresh(value) or ev.heap.record(value) is not None:
        return value  # of a description that C code or a model has made from the program's own
    record = ev.heap.record(obj)
    source = ev.heap.object_source(obj) if record is None else record.source
    return ev.heap.translate(value, ev.heap.attr_source(source, name))


def _is_description(value: Any) -> bool:
    return type(value) in LITERALS or type(value) in FROZEN or isinstance(value, enum.Enum)


def _opaque_dict(ev: Interpreter, obj: Any, record: Any) -> dict[str, Any]:
    """The proxy of the instance dict of an object that stands for itself."""
    found = ev.heap.translate(own_dict(obj), InstanceDictSource(record.source))
    return found  # type: ignore[no-any-return]  # a dict


def _foreign_dict(ev: Interpreter, obj: Any) -> dict[str, Any]:
    """An instance that C code handed out: made by it just now, or older than the frame; treat as the latter.

    Exceptions are the former: older ones are reached through what holds them.
    """
    if isinstance(obj, BaseException):
        return own_dict(obj)
    ev.heap.translate(obj, ev.heap.object_source(obj))
    record = ev.heap.by_original.get(id(obj))
    if record is not None and record.proxy is not obj:
        return own_dict(record.proxy)
    if record is not None:
        return _opaque_dict(ev, obj, record)
    return own_dict(obj)


def _slot(ev: Interpreter, obj: Any, slot: Any, name: str) -> Any:
    record = ev.heap.record(obj)
    if record is not None and record.proxy is not record.original and name not in record.slots:
        try:
            original = slot.__get__(record.original)
        except AttributeError as error:
            if ev.heap.class_lookup(type(obj), "__getattr__") is not ABSENT:
                graph_break("opaque_object", f"an unset slot {name!r} of {type(obj).__qualname__}, which has a __getattr__")
            ev.heap.guard(record.source, GuardKind.HAS_ATTRIBUTE, (name, False), name)
            raise Raised(ev.clean(error)) from None
        value = ev.heap.translate(original, ev.heap.attr_source(record.source, name))
        record.slots[name] = value
        slot.__set__(obj, value)
        return value
    if record is not None and record.proxy is record.original:
        return ev.heap.translate(slot.__get__(obj), ev.heap.attr_source(record.source, name))
    if record is None and not ev.heap.is_fresh(obj):
        proxy = ev.heap.adopt(obj)
        if proxy is not obj:
            return _slot(ev, proxy, slot, name)
    return ev.native(slot.__get__, obj)


def _module_attribute(ev: Interpreter, obj: Any, name: str) -> Any:
    """torch.nn.Module.__getattr__, modelled: parameters, buffers, submodules."""
    heap = ev.heap
    own = own_dict(obj)
    for kind in ("_parameters", "_buffers", "_modules"):
        members = heap.dict_get(own, kind)
        if members is not ABSENT:
            value = heap.dict_get(members, name)
            if value is not ABSENT:
                return value
    raise missing(ev, obj, name)


# ---------------------------------------------------------------------- other kinds


def module_attribute(ev: Interpreter, obj: types.ModuleType, name: str) -> Any:
    heap = ev.heap
    namespace = heap.namespaces.get(id(obj.__dict__))
    if namespace is None:
        namespace = heap.namespace(obj.__dict__, InstanceDictSource(heap.object_source(obj)))
    if name == "__dict__":
        return heap.expose(namespace)
    value = heap.name_get(namespace, name)
    if value is not ABSENT:
        return value
    if type(obj) is not types.ModuleType:  # lazy modules: their __getattr__ is a method
        found = heap.class_lookup(type(obj), "__getattr__")
        if found is ABSENT:
            raw = heap.class_lookup(type(obj), name)
            if raw is not ABSENT:
                return bind(ev, raw, name, obj, type(obj), type(obj))
            raise missing(ev, obj, name)
        value = ev.native(getattr, obj, name)
        if type(value) in LITERALS:  # a setting, such as torch.backends.cudnn.benchmark
            return heap.translate(value, heap.attr_source(heap.source_of(obj), name))
        return heap.adopt(value)
    fallback = heap.name_get(namespace, "__getattr__")
    if fallback is not ABSENT:
        return ev.call(fallback, [name])
    raise Raised(AttributeError(f"module {obj.__name__!r} has no attribute {name!r}"))


def _class(ev: Interpreter, obj: type, name: str) -> Any:
    heap = ev.heap
    meta = type(obj)
    if isinstance(obj, enum.EnumMeta) and not name.startswith("__"):
        found = obj.__members__.get(name)
        if found is not None:
            return found
    if name == "__class__" and meta is type:  # object's descriptor, which the class itself inherits, too
        return type
    raw_meta = heap.class_lookup(meta, name) if meta is not type else type.__dict__.get(name, ABSENT)
    if raw_meta is not ABSENT:
        kind = type(raw_meta)
        if name == "__class__":
            return meta
        if is_property(raw_meta):
            return ev.call(member(ev, meta, name, raw_meta, raw_meta.fget), [obj])
        if kind in (types.GetSetDescriptorType, types.MemberDescriptorType):
            value = ev.native(getattr, obj, name)
            if heap.is_fresh(obj):
                return value
            if name == "__dict__":
                return heap.class_namespace(obj)
            if type(value) in LITERALS or isinstance(value, (type, tuple)):
                return value  # identity of the class is guarded; names and bases of classes are taken as fixed
            return heap.translate(value, heap.attr_source(heap.source_of(obj), name))
    raw = heap.class_lookup(obj, name)
    if raw is not ABSENT:
        return bind_to_class(ev, raw, name, obj, obj)
    if raw_meta is not ABSENT:
        return bind(ev, raw_meta, name, obj, meta, meta)
    if meta is not type:
        fallback = heap.class_lookup(meta, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return ev.call(heap.class_value(meta, "__getattr__", fallback), [obj, name])
    raise Raised(AttributeError(f"type object '{obj.__name__}' has no attribute '{name}'"))


def bind_to_class(ev: Interpreter, raw: Any, name: str, cls: type, owner: type) -> Any:
    """What a raw class attribute becomes when read through the class."""
    kind = type(raw)
    if kind is types.FunctionType or kind in CONTROLLED:
        return ev.heap.class_value(owner, name, raw)
    if kind is staticmethod:
        return member(ev, owner, name, raw, raw.__func__)
    if kind is classmethod:
        return bind_class_method(ev, raw, name, cls, owner)
    if kind is types.ClassMethodDescriptorType:
        return raw.__get__(None, cls)
    if kind is property or isinstance(raw, (*_CALLABLES, types.GetSetDescriptorType, types.MemberDescriptorType, type)):
        return raw
    if not hasattr(kind, "__get__"):
        return ev.heap.class_value(owner, name, raw)
    return descriptor_get(ev, raw, name, None, cls)


def _super(ev: Interpreter, obj: Any, name: str) -> Any:
    start, owner, receiver = obj.__thisclass__, obj.__self_class__, obj.__self__
    if name == "__class__":
        return super
    mro = owner.__mro__
    for base in mro[mro.index(start) + 1 :]:
        raw = ev.heap.class_lookup(base, name)
        if name in base.__dict__ or (base, name) in ev.heap.class_writes:
            if receiver is owner:
                return bind_to_class(ev, raw, name, owner, base)
            if is_property(raw):
                return ev.call(member(ev, base, name, raw, raw.fget), [receiver])
            if type(raw) is types.GetSetDescriptorType and type(receiver) is FakeTensor:
                return ev.torch_native(raw.__get__, receiver)
            return bind(ev, raw, name, receiver, owner, base)
    raise Raised(AttributeError(f"'super' object has no attribute '{name}'"))


_FUNCTION_PARTS = frozenset({"__code__", "__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__kwdefaults__"})


def _function(ev: Interpreter, obj: types.FunctionType, name: str) -> Any:
    record = ev.heap.record(obj)
    if name == "__get__":
        return obj.__get__
    if record is None:  # made by the program
        if name == "__dict__" and ev.heap.is_fresh(obj):
            return obj.__dict__
        if name == "__globals__":
            return ev.heap.expose(ev.heap.namespace(obj.__globals__))
        if name == "__dict__":
            graph_break("opaque_object", f"{name} of a function")
        return ev.native(getattr, obj, name)
    if name == "__class__":
        return types.FunctionType
    if name == "__globals__":
        return ev.heap.expose(ev.heap.namespace(obj.__globals__))
    if name in ("__closure__", "__builtins__"):
        graph_break("opaque_object", f"{name} of a function")
    raw = getattr(types.FunctionType, name, ABSENT)
    if raw is not ABSENT and isinstance(raw, (types.MethodWrapperType, types.WrapperDescriptorType)):
        return ev.native(getattr, obj, name)
    if not hasattr(obj, name):
        own = ev.heap.translate(obj.__dict__, InstanceDictSource(record.source))
        value = ev.heap.dict_get(own, name)
        if value is ABSENT:
            raise Raised(AttributeError(f"'function' object has no attribute '{name}'"))
        return value
    if name == "__dict__":
        return ev.heap.translate(obj.__dict__, InstanceDictSource(record.source))
    if name == "__code__":
        ev.heap.adopt(obj.__code__)
    return ev.heap.translate(getattr(obj, name), ev.heap.attr_source(record.source, name))


def _method(ev: Interpreter, obj: types.MethodType, name: str) -> Any:
    if name == "__func__":
        return obj.__func__
    if name == "__self__":
        return obj.__self__
    if name == "__class__":
        return types.MethodType
    if name in ("__call__", "__get__", "__eq__", "__hash__"):
        return ev.native(getattr, obj, name)
    return load(ev, obj.__func__, name)


def _native(ev: Interpreter, obj: Any, name: str) -> Any:
    """An attribute of a C object (or enum member)."""
    cls = type(obj)
    if cls is TracedGenerator:
        if name in ("send", "throw", "close", "__next__", "__iter__"):
            return getattr(obj, name)
        return _generator(ev, obj, name)
    if name == "__class__":
        return cls
    if isinstance(obj, enum.Enum):
        raw = ev.heap.class_lookup(cls, name)
        if isinstance(raw, types.FunctionType):
            return types.MethodType(ev.heap.class_value(cls, name, raw), obj)
        if is_property(raw):
            return ev.call(member(ev, cls, name, raw, raw.fget), [obj])
        if isinstance(raw, types.DynamicClassAttribute) and isinstance(raw.fget, types.FunctionType):
            return ev.call(member(ev, cls, name, raw, raw.fget), [obj])
        value = ev.native(getattr, obj, name)
        own = ev.heap.is_fresh(obj) or ev.heap.is_fresh(cls)
        if name in vars(obj) and name not in _FIXED_OF_MEMBERS and not own:
            names = ev.heap.derive(InstanceDictSource, ev.heap.object_source(obj))
            return ev.heap.translate(value, ev.heap.key_source(names, name))
        return value if type(value) in LITERALS or isinstance(value, enum.Enum) else ev.heap.adopt(value)
    if isinstance(obj, BaseException) and name == "__traceback__":
        return ev.traceback_of(obj)
    try:
        value = ev.native(getattr, obj, name)
    except Raised as raised:
        record = ev.heap.record(obj)
        if not isinstance(raised.exc, AttributeError) or record is None:
            raise
        if record.proxy is not record.original and hasattr(record.original, name):  # of a partial
            return ev.heap.translate(getattr(record.original, name), ev.heap.attr_source(record.source, name))
        ev.heap.guard(record.source, GuardKind.HAS_ATTRIBUTE, (name, False), name)
        raise
    return value if isinstance(value, _CALLABLES) else _followed(ev, obj, name, value)


def _followed(ev: Interpreter, obj: Any, name: str, value: Any) -> Any:
    """What C code gave for `obj.name`: of an object that was there before, another value may be there at the next call."""
    record = ev.heap.record(obj)
    if record is not None and record.kind == "opaque":
        return ev.heap.translate(value, ev.heap.attr_source(record.source, name))
    return value


def _frame(ev: Interpreter, obj: FrameObject, name: str) -> Any:
    """What a frame of the program shows."""
    frame = obj.frame
    if name == "f_globals":
        return ev.heap.expose(ev.global_namespace(frame))
    if name == "f_code":
        return frame.code
    if name == "f_lineno":
        return frame.site().line
    if name == "f_back" and obj.depth > 0:
        return FrameObject(ev.frames[obj.depth - 1], obj.depth - 1)
    if name == "f_locals":
        return frame_locals.snapshot(ev, frame)
    graph_break("opaque_object", f"{name} of a frame")


def _generator(ev: Interpreter, obj: Any, name: str) -> Any:
    """What a generator shows of itself."""
    frame = obj.frame
    if name in ("__name__", "__qualname__"):
        return getattr(frame.function, name)
    if name == "gi_running":
        return obj.running
    if name == "gi_suspended":
        return obj.started and not obj.running and not obj.finished
    if name == "gi_code":
        return frame.code
    if name == "gi_yieldfrom":
        return None if obj.running or obj.finished or not obj.started else obj._delegate()
    if name == "gi_frame" and obj.finished:
        return None
    if name == "__class__":
        return types.GeneratorType
    if not hasattr(types.GeneratorType, name):
        raise missing(ev, obj, name)
    graph_break("opaque_object", f"generator attribute {name}")


# ---------------------------------------------------------------------- writes
