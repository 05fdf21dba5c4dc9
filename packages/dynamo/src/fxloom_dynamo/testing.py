"""Is capture sound? Change, one at a time, everything that a program read, and demand that its answer stays eager's.

    from fxloom_dynamo.testing import perturb

    def make():                      # builds the program anew, so that one run can't disturb the next
        model = Model()
        return model, (torch.ones(3),)

    report = perturb(make)
    assert not report.wrong, report

In: a function that makes a program and its arguments. Out: a `PerturbationReport`. What is changed does not come from the
guards, whose gaps are what we look for, but from the heap: everything that capture looked at, whether it guarded it or
not. For each change the program is captured and called once; then the change is made; then the captured program is called
again and so is, in a second world made the same way, the plain one. The two have to agree in results, in exceptions and in
what they did to their arguments. A guard that fires shows as a new capture; none has to, where the answer stays the same.
"""

from __future__ import annotations

import collections
import copy
import enum
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_dynamo.code_cache.misses import compile_callable
from fxloom_dynamo.config import Backend, CaptureConfig
from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_dynamo.objects.shadow_heap import ShadowHeap
from fxloom_dynamo.objects.value_types import is_mutable_type
from fxloom_interfaces.errors import FallbackWarning

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Undo = Callable[[], Any]

#: Their globals and classes are not changed: pulling the rug from under Python or torch breaks what judges the outcome too.
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "fxloom_dynamo", "fxloom_interfaces", "fxloom_shapes"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What happened after one change. captures: frames captured anew in the call after it."""

    change: str
    captures: int
    expected: Any
    got: Any
    agrees: bool

    def __str__(self) -> str:
        if self.agrees:
            return f"{self.change}: {'a guard fired' if self.captures else 'the answer stayed the same'}"
        fired = "although a guard fired" if self.captures else "and no guard fired"
        return f"{self.change}: eager {_show(self.expected)}, captured {_show(self.got)}, {fired}"


@dataclass(frozen=True, slots=True)
class PerturbationReport:
    """All findings of one program. skipped: changes that could not be made."""

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """Changes after which the captured program did not do what eager does."""
        return tuple(finding for finding in self.findings if not finding.agrees)

    @property
    def fired(self) -> int:
        """After how many changes a guard fired."""
        return sum(finding.captures > 0 for finding in self.findings)

    def __str__(self) -> str:
        head = (
            f"{len(self.findings)} changes: {self.fired} made a guard fire, {len(self.wrong)} gave a wrong answer; "
            f"{len(self.skipped)} could not be made"
        )
        return "\n".join([head, *(f"  {finding}" for finding in self.wrong)])


def perturb(
    make: Callable[[], Program],
    *,
    limit: int | None = None,
    seed: int = 0,
    backend: Backend | None = None,
    grad: bool | None = None,
    calls: int = 1,
    tolerance: float = 0.0,
) -> PerturbationReport:
    """Change what the program read, one thing at a time, and compare captured with plain calls.

    make: returns `(fn, args)`, equal and independent at every call but for what is global; it runs with one random seed.
    limit: look at that many changes only, drawn with `seed`. grad: run under this grad mode, the current one if None.
    calls: how often the captured program has run before the change (guards that held a few times are checked in a shorter
    way). tolerance: how far, absolutely and relatively, elements may be apart; for backends that round in another way, and
    for recurrent layers. Changes to globals, classes and torch's state are undone.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad):
        world = _World(make, backend, calls)
        labels = [change.label for change in world.changes()]
        if limit is not None and len(labels) > limit:
            labels = sorted(random.Random(seed).sample(labels, limit), key=labels.index)
        findings, skipped = [], []
        for label in labels:
            finding = _try(make, backend, calls, label, tolerance)
            if finding is None:
                skipped.append(label)
            else:
                findings.append(finding)
    return PerturbationReport(tuple(findings), tuple(skipped))


def _try(make: Callable[[], Program], backend: Backend | None, calls: int, label: str, tolerance: float) -> Finding | None:
    outcomes = []
    captures = 0
    for captured in (True, False):
        world = _World(make, backend, calls)
        change = next((change for change in world.changes() if change.label == label), None)
        if change is None:
            return None
        try:
            undo = change.apply()
        except Exception:  # read-only, or refused by the object's own code
            return None
        before = world.captures
        try:
            outcomes.append(world.call(captured))
        finally:
            undo()
        if captured:
            captures = world.captures - before
    got, expected = outcomes
    return Finding(label, captures, expected, got, same(expected, got, tolerance))


class _World:
    """One program, captured and called `calls` times."""

    def __init__(self, make: Callable[[], Program], backend: Backend | None, calls: int) -> None:
        torch.manual_seed(0)
        self.fn, args = make()
        self.args = list(args)
        self.captures = 0
        self.heaps: list[ShadowHeap] = []
        config = CaptureConfig(backend=backend, on_capture=self._count, on_heap=self.heaps.append)
        self.compiled = compile_callable(self.fn, config)
        with warnings.catch_warnings():  # a program that runs in eager anyway would pass every test
            warnings.filterwarnings("error", category=FallbackWarning)
            outcome = self.call(True)[0]
            for _ in range(calls - 1):
                self.call(True)
        if outcome[0] == "raised" and outcome[1] is FallbackWarning:
            raise AssertionError(outcome[2])

    def _count(self, _: Any) -> None:
        self.captures += 1

    def call(self, captured: bool) -> Any:
        torch.manual_seed(0)
        result: tuple[Any, ...]
        try:
            result = ("returned", (self.compiled if captured else self.fn)(*self.args))
        except Exception as error:
            result = ("raised", type(error), str(error))
        return result, self.args

    def changes(self) -> list[_Change]:
        seen: dict[str, int] = {}
        out = []
        for change in _all_changes(self.fn, self.args, self.heaps):
            number = seen[change.label] = seen.get(change.label, -1) + 1
            out.append(_Change(f"{change.label} #{number}", change.apply) if number else change)
        return out


@dataclass(frozen=True, slots=True)
class _Change:
    """apply: makes the change and returns what undoes it; raises where the object doesn't allow it."""

    label: str
    apply: Callable[[], Undo]


def _all_changes(fn: Callable[..., Any], args: list[Any], heaps: Sequence[ShadowHeap]) -> Iterator[_Change]:
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
                yield _Change(f"{known.source.name}.{name}: set", lambda o=known.original, n=name: _set_new_attribute(o, n))  # type: ignore[misc]
        for cls, name in heap.class_reads:
            if (cls, name) not in done:
                done.add((cls, name))
                yield from _class_changes(cls, name)
    yield from _global_state_changes()


def _is_library(module: Any) -> bool:
    return not isinstance(module, str) or module.partition(".")[0] in _LIBRARIES


# ---- other values ---------------------------------------------------------------------------------------------------


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


def _argument_changes(args: list[Any]) -> Iterator[_Change]:
    for index, value in enumerate(args):
        for what, other in _others(value):
            yield _Change(f"argument {index}: {what}", lambda i=index, other=other: _put(args, i, other))  # type: ignore[misc]
    for left, first in enumerate(args):
        for right in range(left + 1, len(args)):
            if type(args[right]) is type(first) and not isinstance(first, (int, float, str, type(None))):
                yield _Change(
                    f"arguments {left} and {right}: one object", lambda r=right, first=first: _put(args, r, first)  # type: ignore[misc]
                )


def _put(container: Any, key: Any, value: Any) -> Undo:
    """container[key] = value"""
    absent = isinstance(container, dict) and key not in container
    before = None if absent else container[key]
    container[key] = value
    return (lambda: container.pop(key, None)) if absent else (lambda: container.__setitem__(key, before))


# ---- objects --------------------------------------------------------------------------------------------------------


def _object_changes(obj: Any, where: str) -> Iterator[_Change]:
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
            yield _Change(f"{where}: {what}", lambda change=change: _in_place(obj, change, list))  # type: ignore[misc]
        for index, value in enumerate(obj[:4]):
            for what, other in _others(value):
                yield _Change(f"{where}[{index}]: {what}", lambda i=index, o=other: _put(obj, i, o))  # type: ignore[misc]
    elif isinstance(obj, collections.deque):
        for what, change in _DEQUE_CHANGES.items():
            yield _Change(f"{where}: {what}", lambda change=change: _in_place(obj, change, list))  # type: ignore[misc]
    elif isinstance(obj, set):
        for what, change in _SET_CHANGES.items():
            yield _Change(f"{where}: {what}", lambda change=change: _in_place(obj, change, set))  # type: ignore[misc]
    elif isinstance(obj, dict):
        yield from _dict_changes(obj, where)
    elif isinstance(obj, BaseException):
        yield _Change(f"{where}.args: one more", lambda: _set_attribute(obj, "args", (*obj.args, "fxloom")))
        yield _Change(f"{where}.args: others", lambda: _set_attribute(obj, "args", tuple(_other(arg) for arg in obj.args)))
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


def _dict_changes(obj: dict[Any, Any], where: str) -> Iterator[_Change]:
    for key, value in list(obj.items())[:64]:
        for what, other in _others(value):
            yield _Change(f"{where}[{key!r}]: {what}", lambda k=key, o=other: _put(obj, k, o))  # type: ignore[misc]
        yield _Change(f"{where}[{key!r}]: deleted", lambda k=key: _drop(obj, k))  # type: ignore[misc]
        yield _Change(f"{where}[{key!r}]: moved to the end", lambda k=key: _move(obj, k))  # type: ignore[misc]
    yield _Change(f"{where}: one more key", lambda: _put(obj, "fxloom", 1))


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


def _entry_changes(names: dict[str, Any], name: str, where: str) -> Iterator[_Change]:
    """Of a module's global: another value, none, and one where there was none."""
    if name not in names:
        yield _Change(f"{where}: defined", lambda: _put(names, name, lambda *args, **kwargs: 7))
        return
    for what, other in _others(names[name]):
        yield _Change(f"{where}: {what}", lambda o=other: _put(names, name, o))  # type: ignore[misc]
    yield _Change(f"{where}: deleted", lambda: _drop(names, name))


def _other(value: Any) -> Any:
    return next((other for _, other in _others(value)), value)


def _instance_changes(obj: Any, where: str) -> Iterator[_Change]:
    names = obj.__dict__
    if type(names) is not dict:
        return
    for name, value in list(names.items())[:64]:
        for what, other in _others(value):
            yield _Change(f"{where}.{name}: {what}", lambda n=name, o=other: _put(names, n, o))  # type: ignore[misc]
        yield _Change(f"{where}.{name}: deleted", lambda n=name: _drop(names, n))  # type: ignore[misc]
    cls = type(obj)
    for name in ("forward", "__call__", *(n for n, f in vars(cls).items() if isinstance(f, types.FunctionType))):
        method = getattr(obj, name, None)
        if isinstance(method, types.MethodType) and name not in names:
            yield _Change(
                f"{where}.{name}: shadowed in the instance",
                lambda n=name, m=method: _put(names, n, _shifted(m)),  # type: ignore[misc]
            )
    if isinstance(obj, torch.nn.Module):
        yield _Change(f"{where}: a forward hook", lambda: obj.register_forward_hook(lambda module, args, out: _plus_one(out)).remove)
        yield _Change(f"{where}: a pre-hook", lambda: obj.register_forward_pre_hook(lambda module, args: _plus_one(args)).remove)
        yield _Change(f"{where}: training flipped", lambda: _set_attribute(obj, "training", not obj.training))
    subclass = _subclass(cls)
    if subclass is not None:
        yield _Change(f"{where}: of a subclass", lambda: _set_attribute(obj, "__class__", subclass))


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


def _tensor_changes(obj: torch.Tensor, where: str) -> Iterator[_Change]:
    with torch.no_grad():
        for what, other in _other_tensors(obj):
            if what != "requires_grad flipped":
                yield _Change(f"{where}.data: {what}", lambda o=other: _set_attribute(obj, "data", o.detach()))  # type: ignore[misc]
    if obj.is_leaf and obj.is_floating_point():
        yield _Change(f"{where}.requires_grad: flipped", lambda: _set_attribute(obj, "requires_grad", not obj.requires_grad))
    if obj.grad_fn is None and obj.is_floating_point():
        yield _Change(f"{where}.grad: set", lambda: _set_attribute(obj, "grad", torch.ones_like(obj)))


def _function_changes(obj: types.FunctionType, where: str) -> Iterator[_Change]:
    for index, value in enumerate(obj.__defaults__ or ()):
        for what, other in _others(value):
            changed = (*obj.__defaults__[:index], other, *obj.__defaults__[index + 1 :])  # type: ignore[index]  # it has some
            yield _Change(
                f"{where}, default {index}: {what}", lambda changed=changed: _set_attribute(obj, "__defaults__", changed)  # type: ignore[misc]
            )
    for name, value in (obj.__kwdefaults__ or {}).items():
        for what, other in _others(value):
            changed_names = {**obj.__kwdefaults__, name: other}  # type: ignore[dict-item]  # it has some
            yield _Change(
                f"{where}, default of {name}: {what}",
                lambda changed=changed_names: _set_attribute(obj, "__kwdefaults__", changed),  # type: ignore[misc]
            )
    constants = tuple(value + 1 if type(value) in (int, float) else value for value in obj.__code__.co_consts)
    if constants != obj.__code__.co_consts:
        code = obj.__code__.replace(co_consts=constants)
        yield _Change(f"{where}: other code", lambda: _set_attribute(obj, "__code__", code))
    for index, cell in enumerate(obj.__closure__ or ()):
        yield from _cell_changes(cell, f"{where}, cell {obj.__code__.co_freevars[index]}")


def _cell_changes(cell: types.CellType, where: str) -> Iterator[_Change]:
    try:
        value = cell.cell_contents
    except ValueError:
        return
    for what, other in _others(value):
        yield _Change(f"{where}: {what}", lambda o=other: _set_attribute(cell, "cell_contents", o))  # type: ignore[misc]


def _class_changes(cls: type, name: str) -> Iterator[_Change]:
    owner = next((base for base in cls.__mro__ if name in base.__dict__), None)
    if owner is None or not is_mutable_type(owner) or _is_library(owner.__module__):
        if is_mutable_type(cls) and not _is_library(cls.__module__) and not name.startswith("__"):
            shadow = property(lambda self: 7)
            yield _Change(f"{cls.__qualname__}.{name}: defined", lambda: _set_class_attribute(cls, name, shadow))
        return
    raw = owner.__dict__[name]
    if name in ("__dict__", "__weakref__", "__class__", "__module__", "__doc__"):
        return
    for what, other in _other_descriptors(raw):
        yield _Change(f"{owner.__qualname__}.{name}: {what}", lambda o=other: _set_class_attribute(owner, name, o))  # type: ignore[misc]
    yield _Change(f"{owner.__qualname__}.{name}: deleted", lambda: _delete_class_attribute(owner, name))
    if owner is not cls and is_mutable_type(cls) and not _is_library(cls.__module__):
        found = next((other for _, other in _other_descriptors(raw)), None)
        yield _Change(f"{cls.__qualname__}: another base, with another {name}", lambda: _set_base(cls, {name: found}))


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


# ---- torch's global state -------------------------------------------------------------------------------------------


def _global_state_changes() -> Iterator[_Change]:
    modes: dict[str, Callable[[], Any]] = {
        "grad mode: flipped": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
        "inference mode: on": torch.inference_mode,
        "autocast: on": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "default device: meta": lambda: torch.device("meta"),
    }
    for label, mode in modes.items():
        yield _Change(label, lambda mode=mode: _enter(mode()))  # type: ignore[misc]
    yield _Change("default dtype: float64", lambda: _set_state(torch.get_default_dtype, torch.set_default_dtype, torch.float64))
    yield _Change(
        "deterministic algorithms: on",
        lambda: _set_state(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    )
    for label, flags, name in (
        ("cuDNN benchmark: flipped", torch.backends.cudnn, "benchmark"),
        ("mkldnn: flipped", torch.backends.mkldnn, "enabled"),
        ("cuDNN: flipped", torch.backends.cudnn, "enabled"),
    ):
        yield _Change(label, lambda f=flags, n=name: _set_attribute(f, n, not getattr(f, n)))  # type: ignore[misc]
    yield _Change(
        "precision of float32 products: high",
        lambda: _set_state(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    )
    yield _Change(
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


# ---- comparison -----------------------------------------------------------------------------------------------------


def same(left: Any, right: Any, tolerance: float = 0.0, _seen: set[tuple[int, int]] | None = None) -> bool:
    """Equal in value and kind all the way down; tensors in dtype, shape, strides, requires_grad and every element.

    tolerance: how far elements of tensors may be apart, absolutely and relatively.

    Functions and classes are compared by their names, other objects by what they hold.
    """
    seen = set() if _seen is None else _seen
    if left is right or (id(left), id(right)) in seen:
        return True
    seen.add((id(left), id(right)))
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and _same_tensor(left, right, tolerance)
    if type(left) is not type(right):
        return getattr(type(left), "__qualname__", None) == "Shifted" == getattr(type(right), "__qualname__", None)
    if isinstance(left, float):
        return left == right or (left != left and right != right)
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(same(a, b, tolerance, seen) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return list(map(_key, left)) == list(map(_key, right)) and all(
            same(a, b, tolerance, seen) for a, b in zip(left.values(), right.values(), strict=True)
        )
    if isinstance(left, (types.FunctionType, type, types.BuiltinFunctionType, types.MethodType)):
        return getattr(left, "__qualname__", None) == getattr(right, "__qualname__", None)
    if _by_identity(type(left)) and hasattr(left, "__dict__"):
        return same(left.__dict__, right.__dict__, tolerance, seen)
    try:
        return bool(left == right) or _by_identity(type(left))
    except Exception:  # an __eq__ that raises says nothing about what was captured
        return True


def _by_identity(cls: type) -> bool:
    method: Any = cls.__eq__
    return method is object.__eq__


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bytes, tuple, type(None))) else type(key).__qualname__


def _same_tensor(left: torch.Tensor, right: torch.Tensor, tolerance: float) -> bool:
    if (left.dtype, left.shape, left.device, left.requires_grad, left.layout) != (
        right.dtype, right.shape, right.device, right.requires_grad, right.layout,
    ):  # fmt: skip
        return False
    if left.layout is torch.strided and left.stride() != right.stride():
        return False
    if left.device.type == "meta":
        return True
    with torch.no_grad():
        equal = torch.equal(left, right)
        if not equal and (left.is_floating_point() or left.is_complex()):
            equal = torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return equal


def _show(outcome: Any) -> str:
    text = " ".join(repr(outcome).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


__all__ = ["Finding", "PerturbationReport", "perturb", "same"]
