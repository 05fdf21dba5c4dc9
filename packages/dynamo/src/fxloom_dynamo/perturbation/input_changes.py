"""Changes to what a program read: other values, other contents, other classes, torch's global state; each with its undoing.

In: the program, its arguments and the heaps of its captures. Out: changes with labels that are the same in every world made alike.
"""

from __future__ import annotations

import collections
import copy
import enum
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_dynamo.objects.value_types import is_mutable_type

Undo = Callable[[], Any]
#: Their globals and classes are not changed: pulling the rug from under Python or torch breaks what judges the outcome too.
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "fxloom_dynamo", "fxloom_interfaces", "fxloom_shapes"}


@dataclass(frozen=True, slots=True)
class Change:
    """apply: makes the change and returns what undoes it; raises where the object doesn't allow it."""

    label: str
    apply: Callable[[], Undo]


def all_changes(fn: Callable[..., Any], args: list[Any], heaps: Sequence[ShadowHeap]) -> Iterator[Change]:
    yield from _argument_changes(args)
    done: set[Any] = set()
    for heap in heaps:
        for record in list(heap.by_original.values()):
            if id(record.original) not in done:
                done.add(id(record.original))
                yield from _object_changes(record.original, record.source.name)
        for namespace in heap.namespaces.values():
            if not _is_library(namespace.real.get("__name__")):
                for name in namespace.values:
                    if (id(namespace.real), name) not in done:
                        done.add((id(namespace.real), name))
                        yield from _entry_changes(namespace.real, name, f"{namespace.source.name}[{name!r}]")
        for obj, name in heap.absent:
            known = heap.record(obj)
            if known is not None and (id(known.original), name) not in done:
                done.add((id(known.original), name))
                yield Change(f"{known.source.name}.{name}: set", lambda o=known.original, n=name: _set_new_attribute(o, n))  # type: ignore[misc]
        for cls, name in heap.class_reads:
            if (cls, name) not in done:
                done.add((cls, name))
                yield from _class_changes(cls, name)
    yield from _global_state_changes()


def _is_library(module: Any) -> bool:
    return not isinstance(module, str) or module.partition(".")[0] in _LIBRARIES


def _others(value: Any) -> Iterator[tuple[str, Any]]:
    """Values of the same kind, or near it, that are not `value`."""
    if isinstance(value, bool):
        yield "flipped", not value
        yield "as an int", int(value)
    elif isinstance(value, enum.Enum):
        yield from (("another member", member) for member in list(type(value)) if member is not value)
    elif isinstance(value, int):
        yield "plus 1", value + 1
        yield "as a float", float(value)
    elif isinstance(value, float):
        yield "plus 1.5", value + 1.5
        yield "NaN", float("nan")
        yield "negated", -value
    elif isinstance(value, str):
        yield "longer", value + "_"
    elif value is None:
        yield "not None", 3
    elif isinstance(value, torch.dtype):
        yield "another dtype", torch.float64 if value is not torch.float64 else torch.float16
    elif isinstance(value, torch.Tensor):
        yield from _other_tensors(value)
    elif type(value) in (list, tuple):
        yield "longer", value + value[-1:] if value else value + type(value)([1])
        yield "shorter", value[:-1]
        yield "an equal copy", type(value)(list(value))
    elif type(value) is dict:
        yield "with one more key", {**value, "fxloom": 1}
        yield "an equal copy", dict(value)
    elif type(value) is set:
        yield "with one more member", value | {"fxloom"}
    elif isinstance(value, types.FunctionType):
        yield "another function", _shifted(value)
    elif isinstance(value, (type, types.ModuleType)) or callable(value) and not isinstance(value, torch.nn.Module):
        yield "gone", None
    else:
        yield "an equal copy", copy.copy(value)


def _other_tensors(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    detached = value.detach()
    yield "other numbers", detached + 1 if value.dtype is not torch.bool else ~detached
    yield "float64", detached.double()
    yield "one more dimension", detached.unsqueeze(0).clone()
    if value.dim():
        yield "twice as long", torch.cat([detached, detached])
        if not isinstance(value, torch.nn.Parameter):  # kernels of recurrent layers read beyond the end of an empty one
            yield "empty", detached[:0]
    if value.dim() > 1:
        yield "transposed in memory", detached.transpose(0, 1).contiguous().transpose(0, 1)
    if value.is_floating_point():
        yield "requires_grad flipped", detached.clone().requires_grad_(not value.requires_grad)


def _shifted(fn: types.FunctionType) -> Callable[..., Any]:
    """A function that behaves otherwise."""

    def shifted(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return result + 1 if isinstance(result, (int, float, torch.Tensor)) else result

    return shifted


def _argument_changes(args: list[Any]) -> Iterator[Change]:
    for index, value in enumerate(args):
        for what, other in _others(value):
            yield Change(f"argument {index}: {what}", lambda i=index, other=other: _put(args, i, other))  # type: ignore[misc]
    for left, first in enumerate(args):
        for right in range(left + 1, len(args)):
            if type(args[right]) is type(first) and not isinstance(first, (int, float, str, type(None))):
                yield Change(
                    f"arguments {left} and {right}: one object", lambda r=right, first=first: _put(args, r, first)  # type: ignore[misc]
                )


def _put(container: Any, key: Any, value: Any) -> Undo:
    """container[key] = value"""
    absent = isinstance(container, dict) and key not in container
    before = None if absent else container[key]
    container[key] = value
    return (lambda: container.pop(key, None)) if absent else (lambda: container.__setitem__(key, before))


def _object_changes(obj: Any, where: str) -> Iterator[Change]:
    if isinstance(obj, torch.Tensor):
        yield from _tensor_changes(obj, where)
    elif isinstance(obj, types.FunctionType):
        if not _is_library(obj.__module__):
            yield from _function_changes(obj, where)
    elif isinstance(obj, types.CellType):
        yield from _cell_changes(obj, where)
    elif isinstance(obj, (type, types.ModuleType)):
        return  # by what was read of them: class_reads, namespaces
    elif isinstance(obj, list):
        for what, change in _LIST_CHANGES.items():
            yield Change(f"{where}: {what}", lambda change=change: _in_place(obj, change, list))  # type: ignore[misc]
        for index, value in enumerate(obj[:4]):
            for what, other in _others(value):
                yield Change(f"{where}[{index}]: {what}", lambda i=index, o=other: _put(obj, i, o))  # type: ignore[misc]
    elif isinstance(obj, collections.deque):
        for what, change in _DEQUE_CHANGES.items():
            yield Change(f"{where}: {what}", lambda change=change: _in_place(obj, change, list))  # type: ignore[misc]
    elif isinstance(obj, set):
        for what, change in _SET_CHANGES.items():
            yield Change(f"{where}: {what}", lambda change=change: _in_place(obj, change, set))  # type: ignore[misc]
    elif isinstance(obj, dict):
        yield from _dict_changes(obj, where)
    elif isinstance(obj, BaseException):
        yield Change(f"{where}.args: one more", lambda: _set_attribute(obj, "args", (*obj.args, "fxloom")))
        yield Change(f"{where}.args: others", lambda: _set_attribute(obj, "args", tuple(_other(arg) for arg in obj.args)))
    elif hasattr(obj, "__dict__") and not isinstance(obj, types.GenericAlias):
        yield from _instance_changes(obj, where)


_LIST_CHANGES: dict[str, Callable[[Any], Any]] = {
    "one more": lambda items: items.append(items[-1] if items else 1),
    "one less": lambda items: items.pop(),
    "reversed": lambda items: items.reverse(),
    "emptied": lambda items: items.clear(),
}
_DEQUE_CHANGES: dict[str, Callable[[Any], Any]] = {
    "one more": lambda items: items.append(items[-1] if items else 1),
    "one less": lambda items: items.popleft(),
    "rotated": lambda items: items.rotate(),
}
_SET_CHANGES: dict[str, Callable[[Any], Any]] = {
    "one more": lambda items: items.add("fxloom"),
    "one less": lambda items: items.pop(),
}


def _in_place(obj: Any, change: Callable[[Any], Any], kind: type) -> Undo:
    before = kind(obj)
    change(obj)

    def undo() -> None:
        obj.clear()
        (obj.update if isinstance(obj, set) else obj.extend)(before)

    return undo


def _dict_changes(obj: dict[Any, Any], where: str) -> Iterator[Change]:
    for key, value in list(obj.items())[:64]:
        for what, other in _others(value):
            yield Change(f"{where}[{key!r}]: {what}", lambda k=key, o=other: _put(obj, k, o))  # type: ignore[misc]
        yield Change(f"{where}[{key!r}]: deleted", lambda k=key: _drop(obj, k))  # type: ignore[misc]
        yield Change(f"{where}[{key!r}]: moved to the end", lambda k=key: _move(obj, k))  # type: ignore[misc]
    yield Change(f"{where}: one more key", lambda: _put(obj, "fxloom", 1))


def _drop(obj: dict[Any, Any], key: Any) -> Undo:
    before = dict(obj)
    del obj[key]
    return lambda: _restore(obj, before)


def _restore(obj: dict[Any, Any], before: dict[Any, Any]) -> None:
    obj.clear()
    obj.update(before)


def _move(obj: dict[Any, Any], key: Any) -> Undo:
    before = dict(obj)
    obj[key] = obj.pop(key)
    return lambda: _restore(obj, before)


def _entry_changes(names: dict[str, Any], name: str, where: str) -> Iterator[Change]:
    """Of a module's global: another value, none, and one where there was none."""
    if name not in names:
        yield Change(f"{where}: defined", lambda: _put(names, name, lambda *args, **kwargs: 7))
        return
    for what, other in _others(names[name]):
        yield Change(f"{where}: {what}", lambda o=other: _put(names, name, o))  # type: ignore[misc]
    yield Change(f"{where}: deleted", lambda: _drop(names, name))


def _other(value: Any) -> Any:
    return next((other for _, other in _others(value)), value)


def _instance_changes(obj: Any, where: str) -> Iterator[Change]:
    names = obj.__dict__
    if type(names) is not dict:
        return
    for name, value in list(names.items())[:64]:
        for what, other in _others(value):
            yield Change(f"{where}.{name}: {what}", lambda n=name, o=other: _put(names, n, o))  # type: ignore[misc]
        yield Change(f"{where}.{name}: deleted", lambda n=name: _drop(names, n))  # type: ignore[misc]
    cls = type(obj)
    for name in ("forward", "__call__", *(n for n, f in vars(cls).items() if isinstance(f, types.FunctionType))):
        method = getattr(obj, name, None)
        if isinstance(method, types.MethodType) and name not in names:
            yield Change(
                f"{where}.{name}: shadowed in the instance",
                lambda n=name, m=method: _put(names, n, _shifted(m)),  # type: ignore[misc]
            )
    if isinstance(obj, torch.nn.Module):
        yield Change(f"{where}: a forward hook", lambda: obj.register_forward_hook(lambda module, args, out: _plus_one(out)).remove)
        yield Change(f"{where}: a pre-hook", lambda: obj.register_forward_pre_hook(lambda module, args: _plus_one(args)).remove)
        yield Change(f"{where}: training flipped", lambda: _set_attribute(obj, "training", not obj.training))
    subclass = _subclass(cls)
    if subclass is not None:
        yield Change(f"{where}: of a subclass", lambda: _set_attribute(obj, "__class__", subclass))


def _plus_one(out: Any) -> Any:
    if isinstance(out, tuple):
        return tuple(_plus_one(item) for item in out)
    return out + 1 if isinstance(out, (torch.Tensor, int, float)) else out


def _subclass(cls: type) -> type | None:
    """A subclass whose methods behave otherwise; None where there can't be one."""
    methods = {name: _shifted(fn) for name, fn in vars(cls).items() if isinstance(fn, types.FunctionType) and not name.startswith("__")}
    try:
        return types.new_class("Shifted", (cls,), {}, lambda names: names.update(methods))
    except TypeError:
        return None


def _set_attribute(obj: Any, name: str, value: Any) -> Undo:
    before = getattr(obj, name)
    setattr(obj, name, value)
    return lambda: setattr(obj, name, before)


def _set_new_attribute(obj: Any, name: str) -> Undo:
    setattr(obj, name, 7)
    return lambda: delattr(obj, name)


def _tensor_changes(obj: torch.Tensor, where: str) -> Iterator[Change]:
    with torch.no_grad():
        for what, other in _other_tensors(obj):
            if what != "requires_grad flipped":
                yield Change(f"{where}.data: {what}", lambda o=other: _set_attribute(obj, "data", o.detach()))  # type: ignore[misc]
    if obj.is_leaf and obj.is_floating_point():
        yield Change(f"{where}.requires_grad: flipped", lambda: _set_attribute(obj, "requires_grad", not obj.requires_grad))
    if obj.grad_fn is None and obj.is_floating_point():
        yield Change(f"{where}.grad: set", lambda: _set_attribute(obj, "grad", torch.ones_like(obj)))


def _function_changes(obj: types.FunctionType, where: str) -> Iterator[Change]:
    for index, value in enumerate(obj.__defaults__ or ()):
        for what, other in _others(value):
            changed = (*obj.__defaults__[:index], other, *obj.__defaults__[index + 1 :])  # type: ignore[index]  # it has some
            yield Change(
                f"{where}, default {index}: {what}", lambda changed=changed: _set_attribute(obj, "__defaults__", changed)  # type: ignore[misc]
            )
    for name, value in (obj.__kwdefaults__ or {}).items():
        for what, other in _others(value):
            changed_names = {**obj.__kwdefaults__, name: other}  # type: ignore[dict-item]  # it has some
            yield Change(
                f"{where}, default of {name}: {what}",
                lambda changed=changed_names: _set_attribute(obj, "__kwdefaults__", changed),  # type: ignore[misc]
            )
    constants = tuple(value + 1 if type(value) in (int, float) else value for value in obj.__code__.co_consts)
    if constants != obj.__code__.co_consts:
        code = obj.__code__.replace(co_consts=constants)
        yield Change(f"{where}: other code", lambda: _set_attribute(obj, "__code__", code))
    for index, cell in enumerate(obj.__closure__ or ()):
        yield from _cell_changes(cell, f"{where}, cell {obj.__code__.co_freevars[index]}")


def _cell_changes(cell: types.CellType, where: str) -> Iterator[Change]:
    try:
        value = cell.cell_contents
    except ValueError:
        return
    for what, other in _others(value):
        yield Change(f"{where}: {what}", lambda o=other: _set_attribute(cell, "cell_contents", o))  # type: ignore[misc]


def _class_changes(cls: type, name: str) -> Iterator[Change]:
    owner = next((base for base in cls.__mro__ if name in base.__dict__), None)
    if owner is None or not is_mutable_type(owner) or _is_library(owner.__module__):
        if is_mutable_type(cls) and not _is_library(cls.__module__) and not name.startswith("__"):
            shadow = property(lambda self: 7)
            yield Change(f"{cls.__qualname__}.{name}: defined", lambda: _set_class_attribute(cls, name, shadow))
        return
    raw = owner.__dict__[name]
    if name in ("__dict__", "__weakref__", "__class__", "__module__", "__doc__"):
        return
    for what, other in _other_descriptors(raw):
        yield Change(f"{owner.__qualname__}.{name}: {what}", lambda o=other: _set_class_attribute(owner, name, o))  # type: ignore[misc]
    yield Change(f"{owner.__qualname__}.{name}: deleted", lambda: _delete_class_attribute(owner, name))
    if owner is not cls and is_mutable_type(cls) and not _is_library(cls.__module__):
        found = next((other for _, other in _other_descriptors(raw)), None)
        yield Change(f"{cls.__qualname__}: another base, with another {name}", lambda: _set_base(cls, {name: found}))


def _other_descriptors(raw: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
        yield "another getter", property(_shifted(raw.fget), raw.fset, raw.fdel)
    elif isinstance(raw, (classmethod, staticmethod)) and isinstance(raw.__func__, types.FunctionType):
        yield "another function", type(raw)(_shifted(raw.__func__))
    elif isinstance(raw, types.FunctionType):
        yield "another function", _shifted(raw)
    elif not isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        yield from _others(raw)


def _set_base(cls: type, names: dict[str, Any]) -> Undo:
    """Put a class in front of the bases. TypeError where Python refuses it, as it does when `object` is the only one."""
    before = cls.__bases__
    cls.__bases__ = (types.new_class("Shifted", (), {}, lambda space: space.update(names)), *before)
    return lambda: setattr(cls, "__bases__", before)


def _set_class_attribute(cls: type, name: str, value: Any) -> Undo:
    before = cls.__dict__.get(name, ABSENT)
    setattr(cls, name, value)
    return lambda: delattr(cls, name) if before is ABSENT else setattr(cls, name, before)


def _delete_class_attribute(cls: type, name: str) -> Undo:
    before = cls.__dict__[name]
    delattr(cls, name)
    return lambda: setattr(cls, name, before)


def _global_state_changes() -> Iterator[Change]:
    modes: dict[str, Callable[[], Any]] = {
        "grad mode: flipped": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
        "inference mode: on": torch.inference_mode,
        "autocast: on": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "default device: meta": lambda: torch.device("meta"),
    }
    for label, mode in modes.items():
        yield Change(label, lambda mode=mode: _enter(mode()))  # type: ignore[misc]
    yield Change("default dtype: float64", lambda: _set_state(torch.get_default_dtype, torch.set_default_dtype, torch.float64))
    yield Change(
        "deterministic algorithms: on",
        lambda: _set_state(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    )
    for label, flags, name in (
        ("cuDNN benchmark: flipped", torch.backends.cudnn, "benchmark"),
        ("mkldnn: flipped", torch.backends.mkldnn, "enabled"),
        ("cuDNN: flipped", torch.backends.cudnn, "enabled"),
    ):
        yield Change(label, lambda f=flags, n=name: _set_attribute(f, n, not getattr(f, n)))  # type: ignore[misc]
    yield Change(
        "precision of float32 products: high",
        lambda: _set_state(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    )
    yield Change(
        "number of threads: changed", lambda: _set_state(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1)
    )


def _enter(manager: Any) -> Undo:
    if not isinstance(manager, torch.set_grad_enabled):  # that one is set when it is made
        manager.__enter__()
        return lambda: manager.__exit__(None, None, None)
    before = manager.prev
    return lambda: torch.set_grad_enabled(before)


def _set_state(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Undo:
    before = read()
    write(value)
    return lambda: write(before)
