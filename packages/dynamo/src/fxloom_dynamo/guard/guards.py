"""Guards: what a trace depended on, as data.

In: what the evaluator, the heap and the solver of sizes found out. Out: `Guard`s, from which the C++ tree that checks them (`tree`)
and the sentences that explain them (`messages`) derive. Nothing here decides *what* has to be guarded.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo._torch_private import dispatch_keys, native_device
from fxloom_interfaces.dtypes import dtype_name
from fxloom_interfaces.errors import Site
from fxloom_interfaces.graph_text import function_name
from fxloom_interfaces.sources import GlobalsSource, Source
from fxloom_shapes.fake.symbolize import AnyStride, OfDimension, StrideRule


class GuardKind(Enum):
    """What is demanded of the value at a source. The comment says what `expected` holds."""

    IDENTITY = "is"  # the object, by a weak reference where it takes one and is not of _STRONG_TYPES
    TYPE = "type"  # the exact type
    EQUALITY = "equals"  # a constant; types have to agree too, into tuples; NaN equals NaN, 0.0 differs from -0.0
    LENGTH = "length"  # len() as an int
    DICT_KEYS = "keys"  # tuple of all keys in order
    CONTAINS = "contains"  # (key, bool): whether a dict, set or sequence contains key
    HAS_ATTRIBUTE = "has attribute"  # (name, bool)
    TRUTH = "truth"  # bool
    FUNCTION_CODE = "code"  # the code object of a Python function
    TENSOR = "tensor"  # TensorProperties
    SAME_OBJECT = "same object"  # tuple of further sources: all are one object
    DISTINCT_OBJECTS = "distinct objects"  # tuple of further sources: no two are one object
    DISTINCT_STORAGES = "distinct storages"  # tuple of further sources: no two tensors share storage
    SAME_STORAGE = "same storage"  # tuple of further sources: all tensors share one storage
    SIZES = "sizes"  # sizes.SizeCheck: a statement about integers
    GLOBAL_STATE = "global state"  # _native.GlobalState; the source is ignored


#: kinds that compare several values, by the number of the relation in native/guard_tree.h
RELATIONS = {GuardKind.SAME_OBJECT: 0, GuardKind.DISTINCT_OBJECTS: 1, GuardKind.DISTINCT_STORAGES: 2, GuardKind.SAME_STORAGE: 3}


def stride_code(rule: StrideRule) -> int | None:
    """The rule of a stride as C++ reads it: the number; -2 - k for size times stride of dimension k; None where any will do."""
    match rule:
        case OfDimension(dim):
            return -2 - dim
        case AnyStride():
            return None
    return rule


def _followed_dim(code: int | None) -> int | None:
    """The dimension that a stride follows from; None for a number or any stride."""
    return None if code is None or code >= 0 else -2 - code


@dataclass(frozen=True, slots=True)
class TensorProperties:
    """What a graph specialized on of one tensor.

    keys: raw bits of its dispatch key set. sizes, strides: None for a dimension that may change; strides is None for
    layouts without strides; as C++ reads them (`stride_code`).
    """

    type: type
    keys: int
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None

    @staticmethod
    def of(tensor: torch.Tensor, dynamic_dims: frozenset[int] = frozenset()) -> TensorProperties:
        """The properties of a real tensor; sizes in `dynamic_dims` may change, and then no stride is checked."""
        strided = tensor.layout is torch.strided
        sizes = tuple(None if dim in dynamic_dims else int(size) for dim, size in enumerate(tensor.shape))
        strides: tuple[int | None, ...] | None = None
        if strided:
            strides = tuple(None if dynamic_dims else int(stride) for stride in tensor.stride())
        return TensorProperties(
            type(tensor), dispatch_keys(tensor), tensor.dtype, native_device(tensor), tensor.layout, tensor.requires_grad, sizes, strides
        )

    def differences(self, tensor: Any) -> str:
        """How `tensor` differs, in words; empty when it does not."""
        if type(tensor) is not self.type or not isinstance(tensor, torch.Tensor):
            return f"is a {type_name(type(tensor))}, was a {type_name(self.type)}"
        now = TensorProperties.of(tensor)
        parts = [
            f"{name} is {getattr(now, name)}, was {getattr(self, name)}"
            for name in ("dtype", "device", "layout", "requires_grad")
            if getattr(now, name) != getattr(self, name)
        ]
        if not _agree(self.sizes, now.sizes):
            parts.append(f"shape is {list(now.sizes)}, was {[('*' if size is None else size) for size in self.sizes]}")
        elif self.strides is not None and now.strides is not None and not _agree(self._wanted_strides(now), now.strides):
            wanted = [("*" if step is None else step) for step in self._wanted_strides(now)]
            parts.append(f"strides are {list(now.strides)}, should be {wanted}")
        if not parts and now.keys != self.keys:
            parts.append("dispatch keys changed")
        return "; ".join(parts)

    def __str__(self) -> str:
        """As in guards' messages; `*`: may change."""
        size, stride = (["*" if n is None or n < 0 else n for n in numbers or ()] for numbers in (self.sizes, self.strides))
        parts = [f"{dtype_name(self.dtype)}[{', '.join(map(str, size))}]", str(self.device)]
        if self.strides is not None:
            parts.insert(1, f"strides ({', '.join(map(str, stride))})")
        if self.layout is not torch.strided:
            parts.append(str(self.layout))
        if self.requires_grad:
            parts.append("requires_grad")
        if self.type is not torch.Tensor:
            parts.append(type_name(self.type))
        return " ".join(parts)

    def _wanted_strides(self, now: TensorProperties) -> tuple[int | None, ...]:
        """The strides that a tensor with properties `now` would have to have."""
        if self.strides is None or now.strides is None:
            return ()
        wanted: list[int | None] = []
        for code in self.strides:
            dim = _followed_dim(code)
            size, stride = (0, 0) if dim is None else (now.sizes[dim] or 0, now.strides[dim] or 0)
            wanted.append(code if dim is None else stride * max(size, 1))
        return tuple(wanted)


def _agree(wanted: Sequence[int | None], have: Sequence[int | None]) -> bool:
    return len(wanted) == len(have) and all(w is None or w == h for w, h in zip(wanted, have, strict=True))


@dataclass(frozen=True, slots=True)
class Guard:
    """`kind` has to hold with `expected` for the value at `source`. site: the user's line that relied on it."""

    source: Source
    kind: GuardKind
    expected: Any
    site: Site | None = None

    def __str__(self) -> str:
        asked = f" (asked at {self.site})" if self.site is not None else ""
        if self.kind is GuardKind.SIZES:
            return f"{self.expected}{asked}"
        if self.kind is GuardKind.GLOBAL_STATE:
            return f"{self.kind.value}: {self.expected!r}{asked}"
        if self.kind in RELATIONS:
            return f"{self.kind.value}: {', '.join(source.name for source in (self.source, *self.expected))}{asked}"
        expected = str(self.expected) if self.kind is GuardKind.TENSOR else short_text(self.expected)
        return f"{self.source.name} {self.kind.value} {expected}{asked}"


_ROOT = GlobalsSource()


def global_state_guard() -> Guard:
    """A guard on torch's global state as it is now (grad mode, autocast, default dtype, threads, active modes)."""
    return Guard(_ROOT, GuardKind.GLOBAL_STATE, _native.GlobalState())


#: held by the guard itself: a module and its functions live on anyway, and nobody else need hold a bound method
_STRONG_TYPES = (types.BuiltinFunctionType, types.ModuleType, types.MethodType, types.CodeType)


def identity_guard(source: Source, value: Any, site: Site | None = None) -> Guard:
    """The value at `source` has to be this very object.

    Objects of the user's that can be weakly referenced are not kept alive: a dead model frees what was compiled for it.
    """
    if not isinstance(value, _STRONG_TYPES):
        try:
            return Guard(source, GuardKind.IDENTITY, weakref.ref(value), site)
        except TypeError:
            pass  # no weak references to it: None, ints, slotted objects
    return Guard(source, GuardKind.IDENTITY, value, site)


def deduplicate(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """The guards in order, each (source, kind, expected) once; `expected` compared by identity or simple equality."""
    seen: set[Any] = set()
    out = []
    for guard in guards:
        expected = guard.expected
        if guard.kind in (GuardKind.EQUALITY, GuardKind.LENGTH, GuardKind.TRUTH) and isinstance(
            expected, (int, str, bool, bytes, type(None))
        ):
            key: Any = (guard.source, guard.kind, type(expected), expected)
        elif isinstance(expected, weakref.ref):
            key = (guard.source, guard.kind, id(expected()))
        else:
            key = (guard.source, guard.kind, id(expected))
        if key not in seen:
            seen.add(key)
            out.append(guard)
    return tuple(out)


def short_text(value: Any, limit: int = 120) -> str:
    """A value in a message, in `limit` characters at most. A C function is named as users call it (`torch.softmax`)."""
    if isinstance(value, types.FunctionType):
        return f"function {value.__qualname__}"
    if isinstance(value, types.BuiltinFunctionType) and (value.__self__ is None or isinstance(value.__self__, types.ModuleType)):
        return function_name(value)
    try:
        text = repr(value)
    except Exception as error:  # a broken __repr__ must not hide the guard
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
