"""What `obj.name = value` and `del obj.name` mean, by the kind of `obj`.

In: an object, a name and, for a store, the value. Out: nothing is returned; the proxy or a note of the heap has changed, and
AttributeError comes as `Raised`. Invariant: nothing that existed before is written before the graph has run.

Python's own protocol is followed (`__setattr__`, data descriptors, the instance dict); code of the program that takes part in it is
inlined. Writes go to proxies, and to the heap's notes on what can't be replaced (classes, modules).
"""

from __future__ import annotations

import functools
import threading
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.descriptors import bind, is_property, member, missing
from fxloom_dynamo.objects.sentinels import ABSENT, DELETED, UNREAD, Raised, Traceback
from fxloom_dynamo.objects.value_types import EXACT_CONTAINERS, HEAPTYPE, is_mutable_type
from fxloom_dynamo.semantics.attributes import instance_dict, module_attribute
from fxloom_dynamo.tensors import attributes
from fxloom_interfaces.sources import InstanceDictSource
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def store(ev: Interpreter, obj: Any, name: str, value: Any) -> None:
    """obj.name = value"""
    if ev.heap.untraceable:
        ev.heap.refuse(obj)
    cls = type(obj)
    if cls is FakeTensor:
        attributes.store(ev, obj, name, value)
    elif cls is types.CellType and name == "cell_contents":
        obj.cell_contents = value
    elif isinstance(obj, types.ModuleType):
        _module_namespace(ev, obj).set(name, value)
    elif isinstance(obj, type):
        custom = ev.heap.class_lookup(type(obj), "__setattr__") if type(obj) is not type else ABSENT
        if isinstance(custom, types.FunctionType):
            ev.call(ev.heap.class_value(type(obj), "__setattr__", custom), [obj, name, value])
        else:
            store_class(ev, obj, name, value)
    elif (custom := _custom(ev, cls, "__setattr__")) is not None:
        ev.call(bind(ev, custom, "__setattr__", obj, cls, cls), [name, value])
    else:
        generic_store(ev, obj, name, value)


def _custom(ev: Interpreter, cls: type, name: str) -> Any:
    """What a class has for `__setattr__` or `__delattr__` in place of a C type's own; None for such."""
    if not cls.__flags__ & HEAPTYPE:
        return None
    found = ev.heap.class_lookup(cls, name)
    return None if isinstance(found, types.WrapperDescriptorType) and found.__name__ == name else found


def store_class(ev: Interpreter, obj: type, name: str, value: Any) -> None:
    """type.__setattr__(obj, name, value)"""
    if ev.heap.is_fresh(obj):
        ev.native(type.__setattr__, obj, name, value)
        return
    if obj in ev.heap.class_namespaces:
        graph_break("mutates_foreign_state", f"writes {obj.__qualname__}.{name} after its __dict__ was looked at")
    if not is_mutable_type(obj):
        raise Raised(TypeError(f"cannot set {name!r} attribute of immutable type {obj.__name__!r}"))
    if name.startswith("__") and name.endswith("__"):
        graph_break("mutates_foreign_state", f"writes {obj.__qualname__}.{name}")
    ev.heap.class_lookup(obj, name)
    ev.heap.class_writes[obj, name] = value


def _delete_class(ev: Interpreter, obj: type, name: str) -> None:
    """type.__delattr__(obj, name)"""
    if not is_mutable_type(obj):
        raise Raised(TypeError(f"cannot set {name!r} attribute of immutable type {obj.__name__!r}"))
    if name.startswith("__") and name.endswith("__"):
        graph_break("mutates_foreign_state", f"deletes {obj.__qualname__}.{name}")
    ev.heap.class_lookup(obj, name)
    written = ev.heap.class_writes.get((obj, name), ABSENT)
    if written is DELETED or written is ABSENT and name not in obj.__dict__:
        raise Raised(AttributeError(f"type object {obj.__name__!r} has no attribute {name!r}"))
    ev.heap.class_writes[obj, name] = DELETED


def _module_namespace(ev: Interpreter, obj: types.ModuleType) -> Any:
    if type(obj) is not types.ModuleType:
        graph_break("mutates_foreign_state", f"writes an attribute of {type(obj).__qualname__} {obj.__name__}")
    return ev.heap.namespace(obj.__dict__, InstanceDictSource(ev.heap.object_source(obj)))


def generic_store(ev: Interpreter, obj: Any, name: str, value: Any) -> None:
    """object.__setattr__(obj, name, value)"""
    heap = ev.heap
    cls = type(obj)
    raw = heap.class_lookup(cls, name)
    kind = type(raw)
    if is_property(raw):
        if raw.fset is None:
            ev.native(raw.__set__, obj, value)
        ev.call(member(ev, cls, name, raw, raw.fset), [obj, value])
        return
    record = heap.record(obj)
    if kind is types.MemberDescriptorType:
        if record is not None:
            if record.proxy is record.original:
                graph_break("mutates_foreign_state", f"writes slot {name!r} of a {cls.__qualname__}")
            record.slots.setdefault(name, UNREAD)
        ev.native(raw.__set__, obj, value)
        return
    if raw is not ABSENT and kind is not types.FunctionType:
        setter = heap.class_lookup(kind, "__set__") if kind.__flags__ & HEAPTYPE else ABSENT
        if isinstance(setter, types.FunctionType):
            ev.call(heap.class_value(kind, "__set__", setter), [heap.class_value(cls, name, raw), obj, value])
            return
        if setter is not ABSENT and not isinstance(setter, types.WrapperDescriptorType):
            graph_break("native_call", f"{kind.__qualname__}.__set__ is a {type(setter).__qualname__}")
        if name == "__traceback__" and isinstance(obj, BaseException):
            if value is not None and type(value) is not Traceback:
                raise Raised(TypeError("__traceback__ must be a traceback or None"))
            ev.exceptions.tracebacks[id(obj)] = (obj, value)
            return
        if kind is types.GetSetDescriptorType:
            if record is None and (heap.is_fresh(obj) or isinstance(obj, BaseException)):
                ev.native(setattr, obj, name, value)
                return
            graph_break("mutates_foreign_state", f"writes {name!r} of a {cls.__qualname__}")
    if isinstance(obj, threading.local):
        instance_dict(ev, obj)[name] = value
        return
    if record is not None and (record.proxy is record.original or issubclass(cls, functools.partial)):
        graph_break("mutates_foreign_state", f"writes attribute {name!r} of a {cls.__qualname__}")
    if record is None and not heap.is_fresh(obj) and cls not in EXACT_CONTAINERS:
        if isinstance(obj, (types.FunctionType, BaseException, functools.partial)):
            ev.native(setattr, obj, name, value)
            return
        if cls.__flags__ & HEAPTYPE:
            proxy = heap.adopt(obj)
            if proxy is not obj:
                generic_store(ev, proxy, name, value)
                return
        if hasattr(cls, "__dict__") and not cls.__dictoffset__:
            raise missing(ev, obj, name)
        graph_break("mutates_foreign_state", f"writes attribute {name!r} of a {cls.__qualname__}")
    if not cls.__dictoffset__:
        raise missing(ev, obj, name)
    instance_dict(ev, obj)[name] = value


def delete(ev: Interpreter, obj: Any, name: str) -> None:
    """del obj.name"""
    cls = type(obj)
    if cls is FakeTensor:
        attributes.delete(ev, obj, name)
        return
    custom = None if isinstance(obj, type) else _custom(ev, cls, "__delattr__")
    if custom is not None:
        ev.call(bind(ev, custom, "__delattr__", obj, cls, cls), [name])
    else:
        generic_delete(ev, obj, name)


def generic_delete(ev: Interpreter, obj: Any, name: str) -> None:
    """object.__delattr__(obj, name)"""
    heap = ev.heap
    cls = type(obj)
    if isinstance(obj, type):
        if heap.is_fresh(obj):
            ev.native(type.__delattr__, obj, name)
            return
        _delete_class(ev, obj, name)
        return
    if isinstance(obj, types.ModuleType):
        module_attribute(ev, obj, name)
        _module_namespace(ev, obj).set(name, DELETED)
        return
    raw = heap.class_lookup(cls, name)
    if is_property(raw):
        if raw.fdel is None:
            ev.native(raw.__delete__, obj)
        ev.call(member(ev, cls, name, raw, raw.fdel), [obj])
        return
    if raw is not ABSENT and type(raw).__flags__ & HEAPTYPE and hasattr(type(raw), "__delete__"):
        deleter = heap.class_lookup(type(raw), "__delete__")
        if not isinstance(deleter, types.FunctionType):
            graph_break("native_call", f"{type(raw).__qualname__}.__delete__ is a {type(deleter).__qualname__}")
        ev.call(heap.class_value(type(raw), "__delete__", deleter), [heap.class_value(cls, name, raw), obj])
        return
    record = heap.record(obj)
    local = isinstance(obj, threading.local)
    stands_for_itself = record is not None and record.proxy is record.original
    if not local and (stands_for_itself or not cls.__dictoffset__):
        graph_break("mutates_foreign_state", f"deletes attribute {name!r} of a {cls.__qualname__}")
    own = instance_dict(ev, obj)
    if heap.dict_get(own, name) is ABSENT:
        raise missing(ev, obj, name)
    heap.note_deletion(own, name)
    del own[name]
