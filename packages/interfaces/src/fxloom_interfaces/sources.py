"""Where a value comes from, seen from the entry of a captured frame.

Capture makes sources as it reads values. A source can be printed (`L['self'].layers[0].weight`), guarded (dynamo turns it into an
accessor of its C++ guard tree) and read again. Sources are immutable and compare by structure; each caches its hash since chains
are deep and hashed often. What a source is *not*: a promise that the value still is the same; that is a guard's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """Root class. `base` is None for roots."""

    @property
    def name(self) -> str:
        """Python-like text, unique within a frame."""
        raise TypeError(f"{type(self).__name__} has no name")

    @property
    def parent(self) -> Source | None:
        return None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class LocalSource(Source):
    """A parameter of the frame: `L['x']`."""

    local: str

    @property
    def name(self) -> str:
        return f"L[{self.local!r}]"


@dataclass(frozen=True, slots=True)
class ClosureSource(Source):
    """What free variable `var` of the frame's function holds: `C['x']` (the cell's content, not the cell)."""

    var: str

    @property
    def name(self) -> str:
        return f"C[{self.var!r}]"


@dataclass(frozen=True, slots=True)
class ClosureCellSource(Source):
    """The cell object of free variable `var` itself."""

    var: str

    @property
    def name(self) -> str:
        return f"cell({self.var!r})"


@dataclass(frozen=True, slots=True)
class GlobalsSource(Source):
    """The globals dict of the frame's function: `G`."""

    @property
    def name(self) -> str:
        return "G"


@dataclass(frozen=True, slots=True)
class BuiltinsSource(Source):
    """The builtins dict of the frame's function: `B`."""

    @property
    def name(self) -> str:
        return "B"


@dataclass(frozen=True, slots=True)
class FunctionSource(Source):
    """The function object that the frame runs: `F`."""

    @property
    def name(self) -> str:
        return "F"


@dataclass(frozen=True, slots=True)
class ObjectSource(Source):
    """An object kept alive by the compiled code itself (a module of `sys.modules`, a class), by a readable name.

    Equality is identity of the object.
    """

    label: str
    value: Any = field(compare=False, repr=False)
    ident: int

    @property
    def name(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class DerivedSource(Source):
    """A source reached from `base`. Sub-classes say how."""

    base: Source
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def parent(self) -> Source | None:
        return self.base


def _cached_hash(self: Any) -> int:
    if self._hash is None:
        object.__setattr__(self, "_hash", hash((type(self).__name__, self.base, *self._key())))
    return self._hash  # type: ignore[no-any-return]  # filled in above


@dataclass(frozen=True, slots=True)
class AttrSource(DerivedSource):
    """`base.attr` by ordinary attribute access (may run descriptors; use InstanceDictSource for plain storage)."""

    attr: str = ""

    def _key(self) -> tuple[Any, ...]:
        return (self.attr,)

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"{self.base.name}.{self.attr}"


@dataclass(frozen=True, slots=True)
class InstanceDictSource(DerivedSource):
    """`base.__dict__`, read without running code of the object's class."""

    def _key(self) -> tuple[Any, ...]:
        return ()

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"{self.base.name}.__dict__"


@dataclass(frozen=True, slots=True)
class DictItemSource(DerivedSource):
    """`base[key]` of a dict (or subclass, read as a plain dict) for a constant, hashable key."""

    key: Any = None

    def _key(self) -> tuple[Any, ...]:
        return (self.key,)

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"{self.base.name}[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class DictKeySource(DerivedSource):
    """The `index`-th key of a dict in iteration order, for keys that are no constants."""

    index: int = 0

    def _key(self) -> tuple[Any, ...]:
        return (self.index,)

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"list({self.base.name})[{self.index}]"


@dataclass(frozen=True, slots=True)
class SequenceItemSource(DerivedSource):
    """`base[index]` of a list, tuple or deque (or subclass, read as the plain type); index >= 0."""

    index: int = 0

    def _key(self) -> tuple[Any, ...]:
        return (self.index,)

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"{self.base.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class TypeSource(DerivedSource):
    """`type(base)`."""

    def _key(self) -> tuple[Any, ...]:
        return ()

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"type({self.base.name})"


@dataclass(frozen=True, slots=True)
class CallSource(DerivedSource):
    """`getter(base)` for a C-level, side-effect free `getter` (`operator.itemgetter`, a slot's `__get__`, `len`).

    For what no other source reaches (iterators, deques, weak references). `label` formats the name, with `{}` for base.
    """

    getter: Any = None
    label: str = "{}"

    def _key(self) -> tuple[Any, ...]:
        return (self.label,)

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return self.label.format(self.base.name)


@dataclass(frozen=True, slots=True)
class SizeSource(DerivedSource):
    """`base.size(dim)`, `base.stride(dim)` or `base.storage_offset()` of a tensor."""

    what: str = "size"
    dim: int = 0

    def _key(self) -> tuple[Any, ...]:
        return (self.what, self.dim)

    __hash__ = _cached_hash

    @property
    def name(self) -> str:
        return f"{self.base.name}.storage_offset()" if self.what == "storage_offset" else f"{self.base.name}.{self.what}({self.dim})"
