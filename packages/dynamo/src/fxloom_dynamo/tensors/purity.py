"""Whether a stretch of the program changed anything but by making new objects.

In: the evaluator, and what the stretch can reach (a function, its arguments). A `Watch` notes how things are; `changes` says
what is other than it was, in words, or "". Watched are: what existed before the frame (its records, cells, namespaces,
classes, tensors, gradients), modes, output that was delayed, and the objects of the program's own that the stretch can
reach: lists, dicts, sets, cells, instances, iterators.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.libraries import pure_functions
from fxloom_dynamo.objects import iterators
from fxloom_dynamo.objects.iterators import REBUILT
from fxloom_dynamo.objects.program_changes import changed_records, changed_slots, slot_value, slots_of
from fxloom_dynamo.objects.records import Record
from fxloom_dynamo.objects.sentinels import ABSENT, UNREAD, own_dict
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.tensors import gradients
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: what holds nothing that can be exchanged for something else
_PLAIN = frozenset(LITERALS) | SYMBOLIC


class Watch:
    """See the module's docstring. roots: what the stretch can reach."""

    def __init__(self, ev: Interpreter, roots: Iterable[Any]) -> None:
        self._ev = ev
        self.opaque = ""
        self._own = self._reachable(roots)
        self._before = self._state()

    def changes(self) -> str:
        """What differs from when the watch was made; empty when nothing does."""
        if self.opaque:
            return self.opaque
        now = self._state()
        return next((what for what, state in self._before.items() if not _same(now[what], state)), "")

    def only_constants_changed(self) -> bool:
        """Whether all that is new in objects and names are numbers, texts and containers of such."""
        if self.opaque:
            return False
        now = self._state()
        for what, state in self._before.items():
            if what in _OBJECTS:
                before = set(map(id, state))
                new = [part for part in now[what] if id(part) not in before]
                if not all(_is_constant(part, self._ev) for part in new):
                    return False
            elif not _same(now[what], state):
                return False
        return True

    def _reachable(self, roots: Iterable[Any]) -> list[Any]:
        """Objects of the program's own with a state."""
        todo = [*roots]
        for record, _ in changed_records(self._ev.heap):
            todo += _contents(record.proxy, self._ev)
        for space in self._ev.heap.namespaces.values():
            todo += [space.values[name] for name in space.written]
        todo += self._ev.heap.class_writes.values()
        found: list[Any] = []
        seen: set[int] = set()
        while todo:
            value = todo.pop()
            kind = type(value)
            if kind in _PLAIN or kind is FakeTensor or id(value) in seen or isinstance(value, (type, types.ModuleType)):
                continue
            seen.add(id(value))
            if self._ev.heap.record(value) is not None:
                continue
            if kind in pure_functions.STATEFUL_TYPES and kind is not functools.partial:
                self.opaque = self.opaque or f"may change a {kind.__qualname__}"
                continue
            found.append(value)
            todo += parts_of(value, self._ev)
        return found

    def _state(self) -> dict[str, tuple[Any, ...]]:
        ev = self._ev
        heap = ev.heap
        inputs = ev.recorder.input_info
        records: list[Any] = []
        for record, kind in changed_records(ev.heap):
            records += (record, kind, *_written(record, ev))
        for record in heap.by_proxy.values():
            if record.slots:
                for slot, value in changed_slots(record):
                    records += (record, slot, value)
        names: list[Any] = []
        for space in heap.namespaces.values():
            for name in space.written:
                names += (space, name, space.values[name])
        for (cls, name), value in heap.class_writes.items():
            names += (cls, name, value)
        state = {
            "changes an object": tuple(records),
            "writes a global name or a class": tuple(names),
            "changes an object made in the region": tuple([part for value in self._own for part in (value, *_contents(value, ev))])
            + tuple([part for fake, own in ev.tensors.dicts.values() if id(fake) not in inputs for part in (fake, *own, *own.values())]),
            "prints, logs or warns": (len(ev.delayed.after_graph), len(ev.delayed.after_effects)),
            "changes a mode": (torch.is_grad_enabled(), ev.modes.nesting, ev.modes.cache),
            "sets a context variable": tuple([part for pair in ev.context_variables.values() for part in pair]),
            "writes .grad": tuple([part for entry in gradients.written(ev) for part in (entry.tensor, entry.now)]),
        }
        with DisableTorchFunction():
            state["writes into a tensor"] = tuple(
                [
                    part
                    for key, (fake, _, _) in ev.recorder.input_info.items()
                    if ev.recorder.is_written(fake)
                    for part in (key, fake._version, fake.storage_token.writes)
                ]
            )
        return state


#: parts of the state that objects and names hold
_OBJECTS = ("changes an object", "writes a global name or a class", "changes an object made in the region")


def _is_constant(part: Any, ev: Interpreter) -> bool:
    """True for a number or text, a nest of such, and what only names the place of a change."""
    if type(part) in LITERALS or isinstance(part, (Record, str)) or part is UNREAD or part is ABSENT or ev.heap.record(part) is not None:
        return True
    return type(part) in (tuple, list, dict) and all(_is_constant(inner, ev) for inner in parts_of(part, ev))


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Equal by identity, numbers and texts by value."""
    return len(left) == len(right) and all(
        a is b or type(a) is type(b) and type(a) in LITERALS and a == b for a, b in zip(left, right, strict=True)
    )


def _written(record: Record, ev: Interpreter) -> list[Any]:
    """The contents of a proxy; what is there because it was read counts as unread."""
    if record.kind == "cell":
        return [ev.heap.cell_get(record.proxy)]
    proxy = record.proxy
    if record.kind == "iterator":
        return [iterators.state(proxy)]
    if isinstance(proxy, dict):
        items: Iterable[tuple[Any, Any]] = dict.items(proxy)
    else:
        items = enumerate(list.__iter__(proxy) if isinstance(proxy, list) else proxy)
    held: list[Any] = []
    for key, item in items:
        held += (key, UNREAD if item is record.read.get(key, UNREAD) else item)
    return held


def _contents(value: Any, ev: Interpreter) -> list[Any]:
    """What `value` holds that can be exchanged for something else."""
    kind = type(value)
    if kind is types.CellType:
        return [ev.heap.cell_get(value)]
    if kind.__name__ in REBUILT and hasattr(value, "__length_hint__"):
        return [value.__length_hint__()]
    if kind.__name__ == "TracedGenerator":
        return [value.started, value.frame.ip]
    if kind is types.FunctionType:
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *value.__dict__.values()]
    held: list[Any] = []
    if isinstance(value, dict):
        for key, item in dict.items(value):
            held += (key, item)
    elif isinstance(value, list):
        held += list.__iter__(value)
    elif isinstance(value, (set, deque)):
        held += value
    if kind.__dictoffset__:
        for name, item in own_dict(value).items():
            held += (name, item)
    for slot in slots_of(kind):
        held.append(slot_value(slot, value))
    return held


def parts_of(value: Any, ev: Interpreter) -> list[Any]:
    """What can be reached from `value` in one step."""
    kind = type(value)
    if kind is types.FunctionType:
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *value.__dict__.values()]
    if kind is types.CellType:
        content = ev.heap.cell_get(value)
        return [] if content is ABSENT else [content]
    if kind is types.MethodType:
        return [value.__func__, value.__self__]
    if kind is types.BuiltinFunctionType:
        return [value.__self__]
    if kind is functools.partial:
        return [value.func, *value.args, *value.keywords.values()]
    if kind is slice:
        return [value.start, value.stop, value.step]
    if kind.__name__ in REBUILT:
        return list(value.__reduce__()[1:])
    if kind.__name__ == "TracedGenerator":
        return list(value.frame.locals.values())
    if isinstance(value, (tuple, frozenset)):
        return list(value)
    return _contents(value, ev)


def tensors_in(value: Any, ev: Interpreter) -> list[FakeTensor]:
    """Fakes that can be reached from `value` by way of objects of the program's own, in order."""
    found: dict[int, FakeTensor] = {}
    seen: set[int] = set()
    todo = [value]
    while todo:
        item = todo.pop()
        if type(item) is FakeTensor:
            found.setdefault(id(item), item)
        elif type(item) not in _PLAIN and id(item) not in seen and not isinstance(item, (type, types.ModuleType)):
            seen.add(id(item))
            if ev.heap.record(item) is None:
                todo += reversed(parts_of(item, ev))
    return list(found.values())
