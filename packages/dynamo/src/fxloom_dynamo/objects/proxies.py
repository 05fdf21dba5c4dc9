"""Proxies by kind: what replaces a tensor, function, tuple, container or instance that existed before the frame.

In: the heap, an original and its source. Out: the proxy, known to the heap under a record, with guards on what was read
to make it; contents are read later, on demand (`ShadowHeap.dict_get` and its kin). What can't be followed raises GraphBreak.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
import types
import weakref
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode.continuations import STACK_PREFIX
from fxloom_dynamo.guard.guards import GuardKind, TensorProperties, stride_code
from fxloom_dynamo.libraries.numpy_numbers import numpy
from fxloom_dynamo.objects import array_values, iterators
from fxloom_dynamo.objects.sentinels import UNREAD, own_dict
from fxloom_dynamo.objects.unguarded import AppendOnly, append_only_method, may_be_append_only
from fxloom_dynamo.objects.value_types import (
    EXACT_CONTAINERS,
    FROZEN,
    FUNCTION_TYPES,
    HEAPTYPE,
    LITERALS,
    WINDOWS,
    c_descriptor_of,
    can_shadow,
    container_base,
    dict_values,
    has_finalizer,
    has_proxy,
    is_bound,
    is_buffer,
    ordered_keys,
    referent,
    set_contents,
    set_members,
)
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.sources import (
    CallSource,
    DictKeySource,
    InstanceDictSource,
    LocalSource,
    ObjectSource,
    Source,
)
from fxloom_shapes.fake.symbolize import DimPolicy, symbolize
from fxloom_shapes.symbols.symbol import LARGEST

if TYPE_CHECKING:
    from fxloom_dynamo.objects.records import Record
    from fxloom_dynamo.objects.shadow_heap import ShadowHeap


def proxy_of(heap: ShadowHeap, original: Any, source: Source, cls: type) -> Any:
    """The proxy of an object of class `cls` that the heap has not met yet, literals aside."""
    if issubclass(type(original), torch.Tensor):
        return _tensor(heap, original, source)
    if numpy is not None and cls is numpy.ndarray:
        array = array_values.proxy_of(heap, original, source)
        if array is not None:
            heap.guard(source, GuardKind.TYPE, cls)
            heap.add(original, array, source, "array")
            return array
    if cls is types.MethodWrapperType or cls is types.BuiltinFunctionType and is_bound(original):
        return _bound_c_method(heap, original, source)
    if issubclass(type(original), FUNCTION_TYPES):
        return _function(heap, original, source)
    if cls is types.CellType:
        heap.guard(source, GuardKind.TYPE, cls)
        return heap.translate_cell(original, source, heap.attr_source(source, "cell_contents"))
    if cls in WINDOWS:
        graph_break("opaque_object", f"a {cls.__qualname__} that was made before the frame")
    if issubclass(type(original), tuple):
        return _tuple(heap, original, source)
    if cls is types.MethodType:
        return _method(heap, original, source)
    if cls is functools.partial:
        return _partial(heap, original, source)
    if cls in FROZEN:
        return _opaque(heap, original, source)
    if cls is weakref.ReferenceType:
        return _weak_reference(heap, original, source)
    if hasattr(cls, "__next__") and not can_shadow(cls):
        if iterators.is_readable(original) and heap.policy.iterator(iterators.state(original), source):
            return _iterator(heap, original, source)
        if isinstance(source, LocalSource) and source.local.startswith(STACK_PREFIX):
            graph_break("interrupted_loop", f"a {cls.__qualname__} that a break has left outside")
        graph_break("opaque_object", f"a {cls.__qualname__} that was made before the frame")
    if may_be_append_only(original) and heap.policy.leaves_unguarded(len(original), source):
        return heap.leave_unguarded(original, source)
    if cls in EXACT_CONTAINERS:
        return _container(heap, original, source, cls)
    if can_shadow(cls):
        return _instance(heap, original, source)
    if cls is slice:
        return _slice(heap, original, source)
    if cls is frozenset:
        return _immutable(heap, original, source)
    return _opaque(heap, original, source)


def number(heap: ShadowHeap, value: int | float, source: Source, policy: DimPolicy) -> Any:
    """The symbolic number at `source`; the value itself where it is specialized."""
    env = heap.fake_mode.env
    if env is None:
        return value
    if isinstance(value, int):
        if abs(value) >= LARGEST:
            return value
        key = ("number", source)
        return env.create(
            value, source, low=policy.low, high=policy.high, pinned=policy.pinned, label=policy.label, duck_key=key
        )
    if (policy.low, policy.high) != (None, None):
        raise ConfigError(f"dynamic_shapes gives {source.name} a range, but it is a float ({value}); only whole numbers have one: say True")
    return env.create_float(value, source, pinned=policy.pinned) if math.isfinite(value) else value


def _tensor(heap: ShadowHeap, real: torch.Tensor, source: Source) -> Any:
    if torch.nn.parameter.is_lazy(real):
        graph_break("uninitialized", f"{source} gets its shape when its module runs for the first time")
    with DisableTorchFunction():
        try:
            properties = _dynamic_properties(heap, real, source)
            fake = heap.fake_mode.from_tensor(real, as_plain=True, as_stored=True)
        except NotImplementedError as error:  # a wrapper of a function transform has no storage
            graph_break("unsupported_tensor", str(error))
        heap.guard(source, GuardKind.TENSOR, properties)
    heap.add(real, fake, source, "tensor")
    heap.on_tensor(fake, real, source)
    return fake


def _dynamic_properties(heap: ShadowHeap, real: torch.Tensor, source: Source) -> TensorProperties:
    """What to guard of a tensor, its dynamic dimensions made symbolic."""
    properties = TensorProperties.of(real)
    env = heap.fake_mode.env
    if env is None or isinstance(source, ObjectSource):
        return properties
    dims, strides = heap.policy.tensor(real, source, isinstance(real, torch.nn.Parameter) or is_buffer(source))
    if not dims and not strides:
        return properties
    made = symbolize(env, real, source, dims, strides)
    if made.descriptor.env is None:  # all were 0 or 1
        return properties
    sizes = tuple(size if type(size) is int else None for size in made.descriptor.size)
    return dataclasses.replace(properties, sizes=sizes, strides=tuple(map(stride_code, made.strides)))


def size(heap: ShadowHeap, original: torch.Size, source: Source) -> torch.Size:
    """The proxy of a shape that the caller has: each of its numbers may change."""
    if isinstance(source, ObjectSource):
        return original
    known = heap.by_original.get(id(original))
    if known is not None:
        return heap.alias(known, source)  # type: ignore[no-any-return]  # a size
    heap.guard(source, GuardKind.TYPE, torch.Size)
    heap.guard(source, GuardKind.LENGTH, len(original))
    items = [heap.translate(item, heap.item_source(source, place)) for place, item in enumerate(original)]
    if all(type(item) is int for item in items):
        return original
    record = heap.add(original, torch.Size(items), source, "tuple")
    record.filled = True
    return record.proxy  # type: ignore[no-any-return]  # a size


def _function(heap: ShadowHeap, original: Any, source: Source) -> Any:
    record = heap.add(original, original, source, "function")
    if isinstance(source, ObjectSource):
        return original
    if issubclass(type(original), types.FunctionType) and "<locals>" in original.__qualname__:
        # Made anew on every call of what encloses it: the code is the same, cells and defaults are guarded as read.
        record.kind = "closure"
        heap.guard(source, GuardKind.FUNCTION_CODE, original.__code__)
        return original
    heap.guard(source, GuardKind.IDENTITY, original)
    return original


def _tuple(heap: ShadowHeap, original: tuple[Any, ...], source: Source) -> Any:
    cls = type(original)
    heap.guard(source, GuardKind.TYPE, cls)
    if not cls.__flags__ & HEAPTYPE and cls is not tuple:  # torch.return_types and other struct sequences
        items = [heap.translate(item, heap.item_source(source, i)) for i, item in enumerate(original)]
        if all(new is old for new, old in zip(items, original, strict=True)):
            proxy = original  # some (`sys.version_info`) can't be made again
        else:
            proxy = cls(items)
    else:
        heap.guard(source, GuardKind.LENGTH, len(original))
        items = [heap.translate(item, heap.item_source(source, i)) for i, item in enumerate(original)]
        if all(new is old for new, old in zip(items, original, strict=True)) and cls is tuple:
            proxy = original
        else:
            proxy = tuple.__new__(cls, items)
    record = heap.add(original, proxy, source, "tuple")
    record.filled = True
    if cls.__dictoffset__ and proxy is not original:
        load_attributes(heap, record)
    return proxy


def _iterator(heap: ShadowHeap, original: Any, source: Source) -> Any:
    """An iterator of a builtin kind, as far as it is."""
    heap.guard(source, GuardKind.TYPE, type(original))
    now = iterators.state(original)
    heap.guard(CallSource(source, getter=iterators.state, label="state({})"), GuardKind.EQUALITY, now)
    over = []
    for index, part in enumerate(iterators.parts(original)):
        over.append(heap.translate(part, CallSource(source, getter=iterators.part(index), label=f"part({{}}, {index})")))
        heap.refuse(over[-1])
    proxy = iterators.proxy_of(original, tuple(over))
    heap.add(original, proxy, source, "iterator").read.update(state=now, over=over)
    return proxy


def _method(heap: ShadowHeap, original: types.MethodType, source: Source) -> Any:
    heap.guard(source, GuardKind.TYPE, types.MethodType)
    func = heap.translate(original.__func__, heap.attr_source(source, "__func__"))
    owner = heap.translate(original.__self__, heap.attr_source(source, "__self__"))
    proxy = types.MethodType(func, owner)
    heap.add(original, proxy, source, "method")
    return proxy


def _bound_c_method(heap: ShadowHeap, original: Any, source: Source) -> Any:
    """`items.append` found somewhere: it has to act on the proxy of `items`."""
    descriptor = c_descriptor_of(original)
    if descriptor is None:
        return _opaque(heap, original, source)
    heap.guard(source, GuardKind.TYPE, type(original))
    heap.guard(heap.attr_source(source, "__name__"), GuardKind.EQUALITY, original.__name__)
    owner = heap.translate(original.__self__, heap.attr_source(source, "__self__"))
    proxy = append_only_method(owner, original.__name__) if type(owner) is AppendOnly else descriptor.__get__(owner, type(owner))
    heap.add(original, proxy, source, "method")
    return proxy


def _partial(heap: ShadowHeap, original: functools.partial[Any], source: Source) -> Any:
    heap.guard(source, GuardKind.TYPE, functools.partial)
    func = heap.translate(original.func, heap.attr_source(source, "func"))
    args = heap.translate(original.args, heap.attr_source(source, "args"))
    keywords = heap.translate(original.keywords, heap.attr_source(source, "keywords"))
    heap.fill(keywords)
    proxy = functools.partial(func, *args, **keywords)
    heap.add(original, proxy, source, "method")
    return proxy


def _immutable(heap: ShadowHeap, original: Any, source: Source) -> Any:
    if all(type(part) in LITERALS for part in original):
        heap.guard(source, GuardKind.EQUALITY, original)
        return original
    return _opaque(heap, original, source)


def _slice(heap: ShadowHeap, original: slice, source: Source) -> slice:
    """Each of its numbers may change."""
    if isinstance(source, ObjectSource):
        return _opaque(heap, original, source)  # type: ignore[no-any-return]  # itself
    heap.guard(source, GuardKind.TYPE, slice)
    parts = {name: CallSource(source, getter=operator.attrgetter(name), label=f"{{}}.{name}") for name in ("start", "stop", "step")}
    items = [heap.translate(getattr(original, name), place) for name, place in parts.items()]
    same = all(item is getattr(original, name) for item, name in zip(items, parts, strict=True))
    record = heap.add(original, original if same else slice(*items), source, "tuple")
    record.filled = True
    return record.proxy  # type: ignore[no-any-return]  # a slice


def _opaque(heap: ShadowHeap, original: Any, source: Source) -> Any:
    heap.add(original, original, source, "opaque")
    if not isinstance(source, ObjectSource):
        heap.guard(source, GuardKind.IDENTITY, original)
    if issubclass(type(original), BaseException):
        heap.translate(original.args, heap.attr_source(source, "args"))  # C code reads them: its text, a copy
    return original


def _weak_reference(heap: ShadowHeap, original: weakref.ReferenceType[Any], source: Source) -> Any:
    """All references to one object without callbacks are one object, so the object's identity is theirs."""
    if original.__callback__ is not None or original() is None:
        graph_break("opaque_object", "a weak reference with a callback, or to an object that is gone")
    heap.add(original, original, source, "opaque")
    if not isinstance(source, ObjectSource):
        heap.guard(source, GuardKind.TYPE, weakref.ReferenceType)
        heap.guard(referent(source), GuardKind.IDENTITY, original())
    return original


def _container(heap: ShadowHeap, original: Any, source: Source, cls: type) -> Any:
    heap.guard(source, GuardKind.TYPE, cls)
    if cls is defaultdict:
        factory = heap.translate(original.default_factory, heap.attr_source(source, "default_factory"))
        proxy: Any = defaultdict(factory)
    elif cls is deque:
        proxy = deque(maxlen=original.maxlen)
        heap.guard(heap.attr_source(source, "maxlen"), GuardKind.EQUALITY, original.maxlen)
    else:
        proxy = cls()
    record = heap.add(original, proxy, source, cls.__name__)
    _load_contents(heap, record, cls)
    return proxy


def _instance(heap: ShadowHeap, original: Any, source: Source) -> Any:
    cls = type(original)
    if has_finalizer(cls):
        graph_break("finalizer", f"{cls.__qualname__} defines __del__")
    if not isinstance(source, ObjectSource):
        heap.guard(source, GuardKind.TYPE, cls)
    base = container_base(cls)
    proxy = (base or object).__new__(cls)  # type: ignore[call-overload]  # a container's __new__ takes the class
    record = heap.add(original, proxy, source, "instance")
    if base is not None:
        _load_contents(heap, record, base)
    if cls.__dictoffset__:
        load_attributes(heap, record)
    return proxy


def load_attributes(heap: ShadowHeap, record: Record) -> None:
    """Make the instance dict of a proxy one that stands for the original's."""
    names = own_dict(record.original)
    if type(names) is not dict:
        return
    own = own_dict(record.proxy)
    known = heap.by_original.get(id(names))
    if known is None:
        own.update(dict.fromkeys(names, UNREAD))
        inner = heap.add(names, own, heap.derive(InstanceDictSource, record.source), "dict")
        inner.keys = tuple(names)
    elif known.proxy is not own:  # two objects with one dict
        object.__setattr__(record.proxy, "__dict__", known.proxy)
        heap.alias(known, heap.derive(InstanceDictSource, record.source))


def _load_contents(heap: ShadowHeap, record: Record, base: type) -> None:
    original, proxy, source = record.original, record.proxy, record.source
    if issubclass(base, dict):
        record.keys = ordered_keys(original)
        if record.keys != tuple(dict.keys(original)):
            graph_break("dict_key", f"an OrderedDict whose order was changed, {source}")
        if all(type(key) in LITERALS for key in record.keys):
            for key in record.keys:
                base.__setitem__(proxy, key, UNREAD)  # type: ignore[attr-defined]  # a dict
            return
        heap.guard(source, GuardKind.LENGTH, len(record.keys))
        if any(map(has_proxy, record.keys)):
            record.listed = CallSource(source, getter=dict_values, label="tuple({}.values())")
        keys = []
        for index, key in enumerate(record.keys):
            keys.append(key)
            if has_proxy(key):
                keys[-1] = key = heap.translate(key, heap.derive(DictKeySource, source, index))
                heap.refuse(key)
                base.__setitem__(proxy, key, UNREAD)  # type: ignore[attr-defined]  # a dict
                continue
            if not issubclass(type(key), (type, enum.Enum, *FUNCTION_TYPES)) and type(key) not in LITERALS:
                if type(key).__module__ in ("typing", "types"):
                    heap.guard(heap.derive(DictKeySource, source, index), GuardKind.IDENTITY, key)
                elif not (type(key) is tuple and all(type(part) in LITERALS or issubclass(type(part), type) for part in key)):
                    graph_break("dict_key", f"a key of type {type(key).__qualname__} in {source}")
                else:
                    heap.guard(heap.derive(DictKeySource, source, index), GuardKind.EQUALITY, key)
            else:
                heap.translate(key, heap.derive(DictKeySource, source, index))
            base.__setitem__(proxy, key, UNREAD)  # type: ignore[attr-defined]  # a dict
        record.keys = tuple(keys)
    elif issubclass(base, set):
        items = set_members(original)
        if all(type(item) in LITERALS or issubclass(type(item), (type, enum.Enum, *FUNCTION_TYPES)) for item in items):
            heap.guard(CallSource(source, getter=set_contents, label="frozenset({})"), GuardKind.EQUALITY, frozenset(items))
        else:
            listed = CallSource(source, getter=set_members, label="tuple({})")
            heap.guard(listed, GuardKind.LENGTH, len(items))
            items = tuple(_member(heap, item, heap.item_source(listed, at)) for at, item in enumerate(items))
        set.update(proxy, items)
        record.read = dict.fromkeys(items)
        record.filled = True
    else:
        heap.guard(source, GuardKind.LENGTH, len(original))
        if base is deque:
            for index, item in enumerate(original):
                value = heap.translate(item, heap.item_source(source, index))
                deque.append(proxy, value)
                record.read[index] = value
            record.filled = True
        else:
            list.extend(proxy, [UNREAD] * len(original))
            record.filled = not original


def _member(heap: ShadowHeap, item: Any, source: Source) -> Any:
    hasher = type(item).__hash__
    if isinstance(hasher, types.FunctionType) or issubclass(type(item), tuple):
        graph_break("dict_key", f"a member of type {type(item).__qualname__} in {source}")
    return heap.translate(item, source)
