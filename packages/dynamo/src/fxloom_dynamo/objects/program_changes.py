"""What the program has changed by now: proxies that differ from what was read of their originals.

In: the shadow heap. Out: records with the kind of write that each needs ("dict", "list", "added", "cell", ...), and written
slots. Writes are not noted as they happen (but for append-only lists): contents are compared when somebody asks. An iterator over
what has changed since is a break.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.objects import iterators
from fxloom_dynamo.objects.records import Record
from fxloom_dynamo.objects.sentinels import ABSENT, UNREAD
from fxloom_dynamo.objects.unguarded import AppendOnly
from fxloom_dynamo.objects.value_types import ordered_keys, same_keys
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.objects.shadow_heap import ShadowHeap


def slots_of(cls: type) -> list[Any]:
    """Slot descriptors of a Python class, `__dict__` and `__weakref__` aside."""
    if not cls.__flags__ & (1 << 9) or issubclass(cls, (FakeTensor,)):
        return []
    found = []
    for base in cls.__mro__:
        if "__slots__" in base.__dict__ and base.__flags__ & (1 << 9):
            found += [slot for slot in base.__dict__.values() if inspect.ismemberdescriptor(slot)]
    return found


def slot_value(slot: Any, obj: Any) -> Any:
    try:
        return slot.__get__(obj)
    except AttributeError:
        return ABSENT


def changed_records(heap: ShadowHeap) -> list[tuple[Record, str]]:
    """Records whose proxy differs from what was read, with the kind of write that they need."""
    found = []
    for record in list(heap.by_proxy.values()):
        kind = change_of(record)
        if kind is not None:
            found.append((record, kind))
    return found


def change_of(record: Record) -> str | None:
    proxy = record.proxy
    if record.kind in ("unguarded", "append-only"):
        return "added" if record.kind == "append-only" and proxy.added else None
    if proxy is record.original and record.kind != "cell":
        return None
    if record.kind == "cell":
        try:
            value = proxy.cell_contents
        except ValueError:
            value = ABSENT
        return None if value is record.read["value"] else "cell"
    if record.kind == "iterator":
        now = iterators.state(proxy)
        if now == -1:
            graph_break("cannot_rebuild", f"a {type(proxy).__qualname__} over what has changed since")
        return None if now == record.read["state"] else "iterator"
    if issubclass(type(proxy), dict):
        if same_keys(ordered_keys(proxy), record.keys) and all(
            value is record.read.get(key, UNREAD) for key, value in dict.items(proxy)
        ):
            return None
        return "dict"
    if issubclass(type(proxy), list):
        items = list(list.__iter__(proxy))
        return _change_of_items(record, items, list.__len__(record.original), "list")
    if issubclass(type(proxy), set):
        return None if set(proxy) == set(record.read) else "set"
    if issubclass(type(proxy), deque):
        return _change_of_items(record, list(proxy), len(record.original), "deque")
    return None


def _change_of_items(record: Record, items: list[Any], count: int, kind: str) -> str | None:
    """How a list or deque, which had `count` items, has changed: not at all, by items added at its end, or in some other way."""
    if len(items) < count or any(item is not record.read.get(at, UNREAD) for at, item in enumerate(items[:count])):
        return kind
    if len(items) == count:
        return None
    return kind if kind == "deque" and record.original.maxlen is not None else "added"


def added_items(record: Record) -> list[Any]:
    """What the program has added at the end of a list or deque."""
    proxy = record.proxy
    if type(proxy) is AppendOnly:
        return proxy.added
    items = list(proxy) if isinstance(proxy, deque) else list(list.__iter__(proxy))
    return items[len(record.original) :]


def changed_slots(record: Record) -> list[tuple[Any, Any]]:
    """Slots of a proxy that the program wrote: (descriptor, value)."""
    found = []
    for name, value in record.slots.items():
        slot = next(base.__dict__[name] for base in type(record.proxy).__mro__ if name in base.__dict__)
        now = slot_value(slot, record.proxy)
        if now is not value and now is not ABSENT:
            found.append((slot, now))
    return found
