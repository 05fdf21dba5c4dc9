"""Guards and sources of one capture attempt: what was read of the world outside, and where.

In: a source and what has to hold there. Out: the list of guards, each once, in the order of the reads. Sources are made once, too,
so that they compare by identity.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from fxloom_dynamo.guard.guards import Guard, GuardKind, identity_guard
from fxloom_dynamo.objects.records import Record
from fxloom_dynamo.objects.value_types import FUNCTION_TYPES
from fxloom_interfaces.errors import Site
from fxloom_interfaces.sources import AttrSource, DictItemSource, ObjectSource, SequenceItemSource, Source


class SourceTable:
    """Makes sources and notes guards."""

    def __init__(self) -> None:
        self.site: Callable[[], Site | None] = lambda: None
        self.guards: list[Guard] = []
        self._guarded: set[tuple[Source, GuardKind, Any]] = set()
        self._sources: dict[Any, Source] = {}
        self._object_sources: dict[int, ObjectSource] = {}
        self._keep: list[Any] = []
        self.by_original: dict[int, Record] = {}
        self.by_proxy: dict[int, Record] = {}

    def guard(self, source: Source, kind: GuardKind, expected: Any, key: Any = None) -> None:
        """Add a guard once. key tells apart guards of one kind on one source."""
        entry = (source, kind, key)
        if entry in self._guarded:
            return
        self._guarded.add(entry)
        if kind is GuardKind.IDENTITY:
            self.guards.append(identity_guard(source, expected, self.site()))
        else:
            self.guards.append(Guard(source, kind, expected, self.site()))

    def object_source(self, obj: Any, label: str = "") -> ObjectSource:
        """A source for an object that the compiled code keeps alive."""
        known = self._object_sources.get(id(obj))
        if known is None:
            known = ObjectSource(label or object_label(obj), obj, id(obj))
            self._object_sources[id(obj)] = known
        return known

    def source_of(self, obj: Any) -> Source:
        """Where a proxy or self-standing object came from; an object source when it was never seen."""
        record = self.by_proxy.get(id(obj))
        return record.source if record is not None else self.object_source(obj)

    def derive(self, make: Callable[..., Source], base: Source, *key: Any) -> Source:
        memo = (make, id(base), *(id(part) if not issubclass(type(part), (str, int)) else part for part in key))
        found = self._sources.get(memo)
        if found is None:
            found = self._sources[memo] = make(base, *key)
            self._keep.append(base)
        return found

    def attr_source(self, base: Source, attr: str) -> Source:
        return self.derive(AttrSource, base, attr)

    def item_source(self, base: Source, index: int) -> Source:
        return self.derive(SequenceItemSource, base, index)

    def key_source(self, base: Source, key: Any) -> Source:
        return self.derive(DictItemSource, base, key)


def object_label(obj: Any) -> str:
    if issubclass(type(obj), types.ModuleType):
        return f"module({obj.__name__!r})"
    name = getattr(obj, "__qualname__", None) if issubclass(type(obj), (type, *FUNCTION_TYPES)) else None
    return f"{obj.__module__}.{name}" if isinstance(name, str) else f"object({type(obj).__qualname__})"


def namespace_label(real: dict[str, Any]) -> str:
    return f"globals({real.get('__name__', '?')!r})"
