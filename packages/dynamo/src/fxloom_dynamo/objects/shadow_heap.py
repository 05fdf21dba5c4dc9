"""The shadow heap: proxies for what existed before the frame, so that running the program changes nothing real.

The evaluator works on ordinary Python objects. What the program makes itself is simply made. What existed before is
replaced, when the program first reaches it, by a *proxy*:

- literals stand for themselves, under a guard on their value;
- functions, classes, modules, other C objects and enum members stand for themselves, under a guard on their identity;
  writes to them go to an overlay;
- a tensor's proxy is its fake;
- a list, dict, set, deque, tuple or instance of a Python class gets an object of the same type whose contents are read
  from the original on demand, each read with its guard. Python and C code change the proxy as they would change the
  original; what differs from what was read is the side effect (`program_changes`), written to the original when the graph has
  run.

`proxies` makes them; this module knows them, their sources and their guards, and reads their contents.

In: an original with its source, or a proxy and what is asked of it. Out: the proxy, or the contents, with guards on what was read
in the table of `sources`.

So a rollback is dropping the heap, two names of one object stay two names of one proxy, and no effect can be
forgotten by a handler. Invariant: every read of an original leaves a guard on what was read.
"""

from __future__ import annotations

import gc
import operator
import types
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch

from fxloom_dynamo.breaks import break_error
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.guard.history import Policy
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_REALS
from fxloom_dynamo.objects import proxies
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.class_reads import ClassReads
from fxloom_dynamo.objects.records import Namespace, Record
from fxloom_dynamo.objects.sentinels import ABSENT, DELETED, UNREAD, Address, RestartCapture, own_dict
from fxloom_dynamo.objects.sources import namespace_label
from fxloom_dynamo.objects.unguarded import UNRELATED_BREAKS, AppendOnly, Unguarded, UnguardedNumber, may_be_append_only
from fxloom_dynamo.objects.value_types import (
    FROZEN,
    HEAPTYPE,
    IS_EMPTY_CELL,
    LITERALS,
    SINGLETONS,
    WINDOWS,
    container_base,
    dict_values,
    is_mutable_type,
    is_proxy_key,
)
from fxloom_interfaces.errors import GraphBreak
from fxloom_interfaces.sources import (
    CallSource,
    ObjectSource,
    Source,
)
from fxloom_shapes import FakeMode, FakeTensor

#: the Python number of one of NumPy's
_ITEM = operator.methodcaller("item")

#: kinds of records that have no contents to be read
_WITHOUT_CONTENTS = frozenset({"opaque", "function", "closure", "tensor", "method", "unguarded", "append-only"})
#: looked up by C code that searches, sorts or hashes what it finds in containers
_COMPARISONS = ("__eq__", "__hash__", "__lt__")


class ShadowHeap(ClassReads):
    """See the module's docstring. One per capture attempt."""

    def __init__(
        self, fake_mode: FakeMode, on_tensor: Callable[[FakeTensor, torch.Tensor, Source], None], policy: Policy
    ) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.policy = policy
        self.on_tensor = on_tensor
        self.on_fresh: Callable[[Any], None] = lambda obj: None
        self.namespaces: dict[int, Namespace] = {}
        self.fresh_namespaces: dict[int, Namespace] = {}
        self.untraceable: dict[int, GraphBreak] = {}
        self.arrays_from_outside = False
        self.unguarded: dict[str, Unguarded] = {}
        #: told of an error that C code might drop
        self.on_lost: Callable[[GraphBreak], None] = lambda error: None
        self.absent: list[tuple[Any, str]] = []  # attributes that the program asked for in vain, for `testing`
        #: name and bases of the class that C code is making
        self.making: tuple[str, tuple[Any, ...]] | None = None

    def close(self) -> None:
        """Drop the program's objects, and take apart the cycles that proxies and the program's own objects form."""
        for record in self.by_proxy.values():
            if record.proxy is not record.original:
                _empty(record.proxy)
        for made in self.fresh.values():
            _empty(made)
        for held in vars(self).values():
            if issubclass(type(held), (dict, list, set)) and held is not self.guards:
                held.clear()

    # ------------------------------------------------------------------ what existed before

    def record(self, obj: Any) -> Record | None:
        """The record of a proxy; None for what the program made."""
        return self.by_proxy.get(id(obj))

    def is_fresh(self, obj: Any) -> bool:
        return id(obj) in self.fresh

    def add_fresh(self, obj: Any) -> Any:
        """Note that the program made this instance."""
        if id(obj) not in self.fresh:
            self.fresh[id(obj)] = obj
            self.on_fresh(obj)
        return obj

    def translate(self, original: Any, source: Source) -> Any:
        """The proxy of an object found at `source`, with a guard on what was found."""
        cls = type(original)
        if cls in LITERALS:
            if cls is torch.Size:
                return proxies.size(self, original, source)
            policy = self.policy.number(original, source) if cls is int or cls is float else None
            if policy is not None:
                number = proxies.number(self, original, source, policy)
                if type(number) is not cls:
                    return number
            if (cls is str or cls is bytes) and self.policy.leaves_unguarded(original, source):
                return self.leave_unguarded(original, source)
            if cls in NUMPY_REALS and (unguarded := self._unguarded_number(original, source)) is not None:
                return unguarded
            kind = GuardKind.IDENTITY if cls in SINGLETONS else GuardKind.EQUALITY
            self.guard(source, kind, original)
            return original
        known = self.by_original.get(id(original))
        if known is not None:
            return self.alias(known, source)
        if id(original) in self.fresh and issubclass(type(original), type):
            return original
        if id(original) in self.by_proxy:
            raise AssertionError(f"proxy of {cls.__name__} found at {source}: something wrote it to the real heap")
        try:
            return proxies.proxy_of(self, original, source, cls)
        except GraphBreak as error:
            return self._untraceable(original, source, error)

    def _untraceable(self, original: Any, source: Source, error: GraphBreak) -> Any:
        """Something that capture can't follow: it may be moved about, but its use is a break."""
        record = self.by_original.get(id(original))
        if record is not None:
            self.by_proxy.pop(id(record.proxy), None)
        self.add(original, original, source, "untraceable")
        self.untraceable[id(original)] = error
        if not isinstance(source, ObjectSource):
            self.guard(source, GuardKind.TYPE, type(original))
        return original

    def _unguarded_number(self, original: Any, source: Source) -> Unguarded | None:
        """A number of NumPy's that changes and that only operators of torch look at; None where it is to be compiled for."""
        if not self.policy.may_carry(source):
            return None
        value = original.item()
        policy = self.policy.number(value, source)
        if policy is None:
            return None
        number = proxies.number(self, value, self.derive(CallSource, source, _ITEM, "{}.item()"), policy)
        return None if type(number) is type(value) else self.leave_unguarded(original, source, number)

    def leave_unguarded(self, original: Any, source: Source, number: Any = None) -> Unguarded:
        """A text that is not looked at, a list that only grows, or NumPy's form of a symbolic number."""
        known = self.unguarded.get(source.name)
        if known is not None:
            return known

        def reveal() -> NoReturn:
            self.reveal(source.name)

        cls = type(original)
        made: Unguarded
        if number is not None:
            made = UnguardedNumber(cls, reveal, number)
        else:
            made = (AppendOnly if may_be_append_only(original) else Unguarded)(cls, reveal)
        self.guard(source, GuardKind.TYPE, cls)
        record = Record(original, made, source, "append-only" if type(made) is AppendOnly else "unguarded")
        self.by_proxy[id(made)] = record
        if type(made) is AppendOnly:
            self.by_original[id(original)] = record  # a text is its value: there may be many of one
        self.keep_untraceable(made, break_error("capture_fault", f"looks at what {source.name} holds"))
        self.unguarded[source.name] = made
        return made

    def reveal(self, name: str | None = None) -> NoReturn:
        """The program may look at the unguarded value at `name` (None: at any such place): capture again for what it holds."""
        names = tuple(self.unguarded) if name is None else (name,)
        self.policy.reveal(names)
        error = RestartCapture(f"what {', '.join(sorted(names))} holds")
        self.on_lost(error)
        raise error

    def reveal_for(self, key: str) -> None:
        """After a break that may be there because of unguarded values: capture again without."""
        if self.unguarded and key not in UNRELATED_BREAKS:
            self.reveal()

    def expose(self, namespace: Namespace) -> dict[str, Any]:
        """A module's dict as an object. It stays the real one, so only what looks a name up in the overlay may use it."""
        real = namespace.real
        if real is not namespace.values and id(real) not in self.untraceable:
            error = break_error("opaque_object", f"the namespace of module {real.get('__name__', '?')}")
            self.untraceable[id(real)] = error
        return real

    def exposed(self, obj: Any) -> Namespace | None:
        """The overlay of a module's dict that the program holds as an object."""
        return self.namespaces.get(id(obj)) if self.untraceable and issubclass(type(obj), dict) else None

    def make_address(self, obj: Any) -> Address:
        """id() of an object that the program made. It may be compared and be a key; any other use is a break."""
        found = Address(id(obj))
        self._keep.extend((obj, found))
        self.untraceable[id(found)] = break_error("identity", f"id() of a {type(obj).__qualname__}")
        return found

    def keep_untraceable(self, obj: Any, error: GraphBreak) -> None:
        """Something made while capturing that only the code that made it understands; any other use is a break."""
        self.untraceable[id(obj)] = error
        self._keep.append(obj)

    def refuse(self, obj: Any) -> None:
        """Break if `obj` is something that capture can't follow."""
        error = self.untraceable.get(id(obj))
        if error is not None:
            if isinstance(obj, Unguarded):
                obj.reveal()
            raise GraphBreak(error.key, error.details)

    def adopt(self, obj: Any) -> Any:
        """The proxy of an object that native code handed out and that capture did not make."""
        if id(obj) in self.by_proxy or id(obj) in self.fresh or type(obj) in FROZEN:
            return obj
        known = self.by_original.get(id(obj))
        if known is not None:
            return known.proxy
        return self.translate(obj, self.object_source(obj))

    def alias(self, known: Record, source: Source) -> Any:
        """An object that is known is found at another source, too: a guard that it is the same."""
        if source is known.source or source == known.source:
            return known.proxy
        if isinstance(source, ObjectSource):
            return known.proxy
        if known.kind in ("opaque", "function"):
            self.guard(source, GuardKind.IDENTITY, known.original)
        else:
            self.guard(source, GuardKind.SAME_OBJECT, (known.source,), known.source)
        known.sources.append(source)
        return known.proxy

    # ------------------------------------------------------------------ contents of containers

    def dict_get(self, container: dict[Any, Any], key: Any) -> Any:
        """The value under a hashable key, ABSENT if there is none. `container` is a dict made or stood in for."""
        return self.dict_value(container, key, dict.get(container, key, ABSENT))

    def dict_value(self, container: dict[Any, Any], key: Any, value: Any) -> Any:
        """The same, where the lookup has given `value`."""
        if value is not ABSENT and value is not UNREAD:
            return value
        record = self.by_proxy.get(id(container))
        if record is None:
            return value
        if value is UNREAD:
            return self._read_key(record, key)
        if not record.filled and key not in record.read and not _has_key(record, key):
            self._guard_key(record, key, False)
        return ABSENT

    def _guard_key(self, record: Record, key: Any, present: bool) -> None:
        """Whether a dict that is not read whole has a key."""
        if record.listed is not None:
            return  # all keys are known
        if is_proxy_key(key):
            self.guard(record.source, GuardKind.DICT_KEYS, record.keys)
        else:
            self.guard(record.source, GuardKind.CONTAINS, (key, present), key)

    def _read_key(self, record: Record, key: Any) -> Any:
        if record.listed is not None:
            index = next(at for at, known in enumerate(record.keys) if known is key or not is_proxy_key(known) and known == key)
            found = self.translate(dict_values(record.original)[index], self.item_source(record.listed, index))
        else:
            found = self.translate(dict.__getitem__(record.original, key), self.key_source(record.source, key))
        record.read[key] = found
        dict.__setitem__(record.proxy, key, found)
        return found

    def dict_presence(self, container: dict[Any, Any], key: Any, present: bool) -> bool:
        """Whether a dict has a key, where the lookup has said `present`."""
        record = self.by_proxy.get(id(container))
        if record is None or record.filled or record.listed is not None or key in record.read:
            return present
        if present == _has_key(record, key):  # as it was before the frame
            self._guard_key(record, key, present)
        return present

    def note_deletion(self, container: dict[Any, Any], key: Any) -> None:
        """The program deletes a key, which it may have set without looking whether it was there.

        Set again, the key has another place, which depends on all others.
        """
        record = self.by_proxy.get(id(container))
        if record is not None and _has_key(record, key):
            self.know_keys(container)
        elif record is not None and not record.filled:
            self._guard_key(record, key, False)

    def list_get(self, container: list[Any], index: int) -> Any:
        """container[index] of a list; IndexError as Python raises it."""
        value = list.__getitem__(container, index)
        if value is not UNREAD:
            return value
        record = self.by_proxy[id(container)]
        if index < 0:
            index += len(container)
        found = self.translate(list.__getitem__(record.original, index), self.item_source(record.source, index))
        record.read[index] = found
        list.__setitem__(container, index, found)
        return found

    def fill(self, container: Any) -> None:
        """Read what is still unread of one container, so that C code can work on it."""
        record = self.by_proxy.get(id(container))
        if self.untraceable:
            self.refuse(container)
        if record is None or record.filled or record.kind in _WITHOUT_CONTENTS:
            return
        record.filled = True
        if record.kind == "iterator":
            for part in record.read["over"]:
                self.fill(part)
        elif issubclass(type(container), dict):
            if record.listed is None:
                self.guard(record.source, GuardKind.DICT_KEYS, record.keys)
            for key, value in list(dict.items(container)):
                if value is UNREAD:
                    self._read_key(record, key)
        elif issubclass(type(container), list):
            for index in range(list.__len__(container)):
                if list.__getitem__(container, index) is UNREAD:
                    self.list_get(container, index)

    def know_keys(self, container: dict[Any, Any]) -> None:
        """The program looks at the keys (or their number) of a dict."""
        record = self.by_proxy.get(id(container))
        if record is not None and not record.filled and record.listed is None:
            self.guard(record.source, GuardKind.DICT_KEYS, record.keys)

    def fill_deep(self, value: Any, seen: set[int] | None = None) -> None:
        """Fill every container reachable through containers, for C code that looks into them."""
        if type(value) in LITERALS:
            return
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        seen.add(id(value))
        if type(value) is Address or type(value) is Array:
            self.refuse(value)
        if issubclass(type(value), (list, tuple, set, frozenset, deque)):
            self.fill(value)
            for item in tuple.__iter__(value) if issubclass(type(value), tuple) else list(value):
                self.fill_deep(item, seen)
        elif issubclass(type(value), dict):
            self.fill(value)
            for key, item in dict.items(value):
                self.fill_deep(key, seen)
                self.fill_deep(item, seen)
        elif hasattr(type(value), "__next__"):
            self.fill(value)
            record = self.by_proxy.get(id(value))
            for part in record.read["over"] if record is not None and record.kind == "iterator" else ():
                self.fill_deep(part, seen)
        elif type(value) in WINDOWS:
            for viewed in gc.get_referents(value):
                self.fill_deep(viewed, seen)
        elif type(value) is not FakeTensor and is_mutable_type(type(value)) and not issubclass(type(value), type):
            for name in _COMPARISONS:
                self.class_lookup(type(value), name)

    # ------------------------------------------------------------------ namespaces that can't be replaced

    def namespace(self, real: dict[str, Any], source: Source | None = None) -> Namespace:
        """The overlay of a module's dict (or of another dict that stays what it is)."""
        if id(real) in self.fresh_namespaces:
            return self.fresh_namespaces[id(real)]
        known = self.namespaces.get(id(real))
        if known is None:
            known = self.namespaces[id(real)] = Namespace(real, source or self.object_source(real, namespace_label(real)))
        return known

    def own_namespace(self, names: dict[str, Any]) -> None:
        """Let code run in a dict that the program made: names are read and written there directly."""
        if id(names) not in self.fresh_namespaces:
            self.fresh_namespaces[id(names)] = Namespace(names, self.object_source(names), names)

    def name_get(self, namespace: Namespace, name: str) -> Any:
        """The value under `name`, ABSENT if there is none."""
        value = namespace.values.get(name, UNREAD)
        if value is UNREAD:
            real = namespace.real
            if real is namespace.values:
                value = ABSENT
            elif name in real:
                value = self.translate(namespace.behind.get(name, real[name]), self.key_source(namespace.source, name))
            else:
                self.guard(namespace.source, GuardKind.CONTAINS, (name, False), name)
                value = ABSENT
            if real is not namespace.values:
                namespace.values[name] = value
        return ABSENT if value is DELETED else value

    # ------------------------------------------------------------------ cells

    def cell_get(self, cell: types.CellType) -> Any:
        """A cell's content; ABSENT when it is empty."""
        record = self.by_proxy.get(id(cell))
        try:
            value = cell.cell_contents
        except ValueError:
            value = ABSENT
        if record is None or value is not UNREAD:
            return value
        value = self.translate(record.original.cell_contents, record.read["source"])
        record.read["value"] = value
        cell.cell_contents = value
        return value

    def translate_cell(self, cell: types.CellType, cell_source: Source, content_source: Source) -> types.CellType:
        """The proxy of a cell that existed before."""
        known = self.by_original.get(id(cell))
        if known is not None:
            proxy: types.CellType = self.alias(known, cell_source)
            return proxy
        if id(cell) in self.by_proxy or id(cell) in self.fresh:
            return cell
        try:
            _ = cell.cell_contents
            proxy = types.CellType(UNREAD)
            empty = False
        except ValueError:
            proxy = types.CellType()
            empty = True
        record = self.add(cell, proxy, cell_source, "cell")
        record.read["source"] = content_source
        record.read["value"] = ABSENT if empty else UNREAD
        if empty:
            self.guard(CallSource(cell_source, getter=IS_EMPTY_CELL, label="is_empty({})"), GuardKind.TRUTH, True)
        return proxy


def _has_key(record: Record, key: Any) -> bool:
    """Whether a dict had a key before the frame."""
    return not is_proxy_key(key) and key in record.keys


def _empty(obj: Any) -> None:
    """Take everything out of a proxy, or an object that the program made while capturing."""
    kind = type(obj)
    if kind is types.CellType:
        with suppress(ValueError):  # is empty
            del obj.cell_contents
        return
    base = container_base(kind)
    if base is not None:
        base.clear(obj)  # type: ignore[attr-defined]  # a container
    if kind.__flags__ & HEAPTYPE and kind.__dictoffset__ and not issubclass(type(obj), type):
        own_dict(obj).clear()
