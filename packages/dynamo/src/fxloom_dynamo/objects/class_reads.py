"""Lookups in classes, which can't be replaced: reads are noted for guards, writes are kept aside.

In: a class and a name. Out: what its MRO has under it, as the program left it; at the end a guard for every lookup (`guard_classes`).
"""

from __future__ import annotations

import types
from typing import Any

from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.objects.records import Record
from fxloom_dynamo.objects.sentinels import ABSENT, DELETED, UNREAD
from fxloom_dynamo.objects.sources import SourceTable
from fxloom_dynamo.objects.value_types import LITERALS, is_mutable_type
from fxloom_interfaces.sources import InstanceDictSource, Source


class ClassReads(SourceTable):
    """What was read of classes, and what the program wrote to them."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: dict[int, Any] = {}
        self.class_reads: dict[tuple[type, str], Any] = {}
        self.class_writes: dict[tuple[type, str], Any] = {}
        self.class_values: dict[tuple[type, str], Any] = {}
        #: (class, name) -> what the class itself holds: read for a class of the program's that derives from it
        self.own_reads: dict[tuple[type, str], Any] = {}
        self.class_namespaces: dict[type, types.MappingProxyType[str, Any]] = {}

    def translate(self, original: Any, source: Source) -> Any:
        """The proxy of an object found at `source`, with a guard on what was found."""
        raise NotImplementedError

    def add(self, original: Any, proxy: Any, source: Source, kind: str) -> Record:
        """Know an original under its proxy."""
        record = Record(original, proxy, source, kind)
        self.by_original[id(original)] = record
        self.by_proxy[id(proxy)] = record
        return record

    def class_namespace(self, cls: type) -> types.MappingProxyType[str, Any]:
        """A class's `__dict__`, read whole."""
        known = self.class_namespaces.get(cls)
        if known is not None:
            return known
        own: dict[str, Any] = {}
        if is_mutable_type(cls):
            source = self.derive(InstanceDictSource, self.object_source(cls))
            self.guard(source, GuardKind.DICT_KEYS, tuple(cls.__dict__))
        for name, raw in cls.__dict__.items():
            value = self.class_writes.get((cls, name), UNREAD)
            if value is UNREAD:
                value = raw if not is_mutable_type(cls) else self.class_value(cls, name, self.class_lookup(cls, name))
            if value is not DELETED:
                own[name] = value
        found = self.class_namespaces[cls] = types.MappingProxyType(own)
        return found

    def class_lookup(self, cls: type, name: str) -> Any:
        """What the MRO of `cls` has under `name`, raw and not translated; ABSENT if nothing."""
        if id(cls) in self.fresh:
            return self._fresh_class_lookup(cls, name)
        key = (cls, name)
        found = self.class_reads.get(key, UNREAD)
        if found is not UNREAD and not self.class_writes:
            return found
        if self.class_writes:
            return self._rewritten_lookup(cls, name)
        found = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), ABSENT)
        self.class_reads[key] = found
        return found

    def _rewritten_lookup(self, cls: type, name: str) -> Any:
        """The same where the program has written to classes; what is guarded is what was there before."""
        for base in cls.__mro__:
            written = self.class_writes.get((base, name), UNREAD)
            if written is DELETED:
                continue
            if written is not UNREAD:
                return written
            if name in base.__dict__:
                found = base.__dict__[name]
                break
        else:
            found = ABSENT
        before = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), ABSENT)
        self.class_reads.setdefault((cls, name), before)
        return found

    def _fresh_class_lookup(self, cls: type, name: str) -> Any:
        for base in cls.__mro__:
            written = self.class_writes.get((base, name), UNREAD) if self.class_writes else UNREAD
            if written is DELETED:
                continue
            found = base.__dict__.get(name, ABSENT) if written is UNREAD else written
            if id(base) not in self.fresh:
                self.own_reads[base, name] = found
            if found is not ABSENT:
                return found
        return ABSENT

    def class_value(self, cls: type, name: str, raw: Any) -> Any:
        """The proxy for what `class_lookup` found."""
        if id(cls) in self.fresh:
            owner = next((base for base in cls.__mro__ if name in base.__dict__), cls)
            return raw if id(owner) in self.fresh else self.class_value(owner, name, raw)
        if self.class_writes and any((base, name) in self.class_writes for base in cls.__mro__):
            return raw
        key = (cls, name)
        found = self.class_values.get(key, UNREAD)
        if found is UNREAD:
            if type(raw) in LITERALS:
                found = raw  # guarded by the class's lookups
            else:
                source = self.class_item_source(cls, name)
                known = self.by_original.get(id(raw))
                if known is not None:
                    found = known.proxy
                elif issubclass(type(raw), (types.FunctionType, staticmethod, classmethod, property)):
                    self.add(raw, raw, source, "function")  # identity is guarded by the class's lookups
                    found = raw
                else:
                    found = self.translate(raw, source)
            self.class_values[key] = found
        return found

    def class_item_source(self, cls: type, name: str) -> Source:
        """Where the MRO of `cls` has `name`: an item of the dict of the class that defines it."""
        owner = next(base for base in cls.__mro__ if name in base.__dict__)
        return self.key_source(self.derive(InstanceDictSource, self.object_source(owner)), name)

    def guard_classes(self) -> None:
        """What was looked up in classes still is what their MROs hold."""
        for (cls, name), found in self.own_reads.items():
            if is_mutable_type(cls):
                source = self.derive(InstanceDictSource, self.object_source(cls))
                if found is ABSENT:
                    self.guard(source, GuardKind.CONTAINS, (name, False), name)
                else:
                    kind = GuardKind.EQUALITY if type(found) in LITERALS else GuardKind.IDENTITY
                    self.guard(self.key_source(source, name), kind, found)
        for cls in dict.fromkeys(cls for cls, _ in self.class_reads):
            if is_mutable_type(cls):
                self.guard(self.attr_source(self.object_source(cls), "__mro__"), GuardKind.IDENTITY, cls.__mro__)
        for (cls, name), found in self.class_reads.items():
            for base in cls.__mro__:
                if not is_mutable_type(base):
                    if name in base.__dict__:
                        break
                    continue
                source = self.derive(InstanceDictSource, self.object_source(base))
                if name not in base.__dict__:
                    self.guard(source, GuardKind.CONTAINS, (name, False), name)
                    continue
                kind = GuardKind.EQUALITY if type(found) in LITERALS else GuardKind.IDENTITY
                self.guard(self.key_source(source, name), kind, found)
                break
