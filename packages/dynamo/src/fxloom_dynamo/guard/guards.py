"""Guards: what a trace depended on, as data; the C++ tree that checks it and the words that explain it.

In: `Guard`s and the sources of a graph's inputs. Out: a `_native.GuardTree` (`build_tree`) that checks them on a frame
that has not started and collects the inputs; and, for a guard that failed, a sentence (`explain`).
Both derive from the same data. Nothing here decides *what* has to be guarded; the evaluator does.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo._torch_private import dispatch_keys, native_device
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS
from fxloom_interfaces.dtypes import dtype_name
from fxloom_interfaces.errors import InternalError, Site
from fxloom_interfaces.sources import (
    AttrSource,
    BuiltinsSource,
    CallSource,
    ClosureCellSource,
    ClosureSource,
    DictItemSource,
    DictKeySource,
    FunctionSource,
    GlobalsSource,
    InstanceDictSource,
    LocalSource,
    ObjectSource,
    SequenceItemSource,
    SizeSource,
    Source,
    TypeSource,
)
from fxloom_shapes.fake.symbolize import AnyStride, OfDimension, StrideRule


class GuardKind(Enum):
    """What is demanded of the value at a source. The comment says what `expected` holds."""

    IDENTITY = "is"  # the object; kept alive unless it can be weakly referenced and is no type, function or module
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
    SIZES = "sizes"  # size_guards.SizeCheck: a statement about integers
    GLOBAL_STATE = "global state"  # _native.GlobalState; the source is ignored


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
            return f"is a {_type_name(type(tensor))}, was a {_type_name(self.type)}"
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
            parts.append(_type_name(self.type))
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
        if self.kind in _RELATION:
            return f"{self.kind.value}: {', '.join(source.name for source in (self.source, *self.expected))}{asked}"
        expected = str(self.expected) if self.kind is GuardKind.TENSOR else _short(self.expected)
        return f"{self.source.name} {self.kind.value} {expected}{asked}"


_ROOT = GlobalsSource()


def global_state_guard() -> Guard:
    """A guard on torch's global state as it is now (grad mode, autocast, default dtype, threads, active modes)."""
    return Guard(_ROOT, GuardKind.GLOBAL_STATE, _native.GlobalState())


# ---- data to tree ---------------------------------------------------------------------------------------------------

# The order of these two lists is that of the enums in native/guard_tree.h.
_ACCESS = {
    name: number
    for number, name in enumerate(
        [
            "local", "closure", "cell", "globals", "builtins", "function", "constant", "attribute", "instance_dict",
            "dict_item", "dict_key", "sequence_item", "type", "call", "tensor_size", "tensor_stride", "tensor_offset",
        ]
    )
}  # fmt: skip
_CHECK = {
    name: number
    for number, name in enumerate(
        ["identity", "weak_identity", "type", "equality", "length", "dict_keys", "contains", "has_attribute", "truth", "function_code"]
    )
}
_RELATION = {GuardKind.SAME_OBJECT: 0, GuardKind.DISTINCT_OBJECTS: 1, GuardKind.DISTINCT_STORAGES: 2, GuardKind.SAME_STORAGE: 3}

_STRONG_TYPES = (types.BuiltinFunctionType, types.ModuleType, types.MethodType, types.CodeType)

#: Cheap and often failing first; within one value only.
_ORDER = {
    GuardKind.TENSOR: 0,
    GuardKind.TYPE: 0,
    GuardKind.IDENTITY: 1,
    GuardKind.FUNCTION_CODE: 1,
    GuardKind.EQUALITY: 2,
    GuardKind.LENGTH: 2,
    GuardKind.TRUTH: 3,
    GuardKind.DICT_KEYS: 4,
    GuardKind.CONTAINS: 4,
    GuardKind.HAS_ATTRIBUTE: 5,
}


@dataclass(frozen=True, slots=True)
class FrameNames:
    """Where the frame keeps its variables: index of each parameter and of each free variable."""

    parameters: Mapping[str, int]
    free: Mapping[str, int]

    @staticmethod
    def of(code: types.CodeType) -> FrameNames:
        return FrameNames(
            {name: index for index, name in enumerate(code.co_varnames)},
            {name: index for index, name in enumerate(code.co_freevars)},
        )


def build_tree(guards: Sequence[Guard], inputs: Sequence[Source], names: FrameNames) -> _native.GuardTree:
    """The tree that checks `guards` on frames of a code object and collects `inputs`, in order, as a tuple."""
    builder = _TreeBuilder(names)
    order = sorted(range(len(guards)), key=lambda number: _ORDER.get(guards[number].kind, 9))
    relations = []
    for number in order:
        guard = guards[number]
        if guard.kind is GuardKind.GLOBAL_STATE:
            builder.tree.add_state_check(guard.expected, number)
        elif guard.kind in _RELATION or guard.kind is GuardKind.SIZES:
            relations.append((number, guard))
        else:
            _add_check(builder.tree, builder.node(guard.source, number), guard, number)
    for slot, source in enumerate(inputs):
        builder.tree.export_value(builder.node(source, -1), slot)
    slots = len(inputs)
    for number, guard in relations:
        members = guard.expected.sources if guard.kind is GuardKind.SIZES else (guard.source, *guard.expected)
        for offset, source in enumerate(members):
            builder.tree.export_value(builder.node(source, number), slots + offset)
        own = list(range(slots, slots + len(members)))
        if guard.kind is GuardKind.SIZES:
            builder.tree.add_size_program(own, list(guard.expected.code), number)
        else:
            builder.tree.add_relation(_RELATION[guard.kind], own, number)
        slots += len(members)
    builder.tree.freeze(len(inputs), slots)
    return builder.tree


class _TreeBuilder:
    """Makes one node per source, shared prefixes once."""

    def __init__(self, names: FrameNames) -> None:
        self.tree = _native.GuardTree()
        self._names = names
        self._nodes: dict[Source, int] = {}

    def node(self, source: Source, guard: int) -> int:
        known = self._nodes.get(source)
        if known is not None:
            return known
        # Roots first; without recursion, since chains are as deep as models are.
        chain = [source]
        while (parent := chain[-1].parent) is not None and parent not in self._nodes:
            chain.append(parent)
        number = self._nodes[parent] if parent is not None else -1
        for link in reversed(chain):
            access, index, key = self._access(link)
            number = self.tree.add_node(number, _ACCESS[access], index, key, max(guard, 0))
            self._nodes[link] = number
        return number

    def _access(self, source: Source) -> tuple[str, int, Any]:
        match source:
            case LocalSource(local=name):
                return "local", self._index(self._names.parameters, name, source), None
            case ClosureSource(var=name):
                return "closure", self._index(self._names.free, name, source), None
            case ClosureCellSource(var=name):
                return "cell", self._index(self._names.free, name, source), None
            case GlobalsSource():
                return "globals", 0, None
            case BuiltinsSource():
                return "builtins", 0, None
            case FunctionSource():
                return "function", 0, None
            case ObjectSource(value=value):
                return "constant", 0, value
            case AttrSource(attr=name):
                return "attribute", 0, name
            case InstanceDictSource():
                return "instance_dict", 0, None
            case DictItemSource(key=key):
                return "dict_item", 0, key
            case DictKeySource(index=index):
                return "dict_key", index, None
            case SequenceItemSource(index=index):
                return "sequence_item", index, None
            case TypeSource():
                return "type", 0, None
            case CallSource(getter=getter):
                return "call", 0, getter
            case SizeSource(what=what, dim=dim):
                return {"size": "tensor_size", "stride": "tensor_stride", "storage_offset": "tensor_offset"}[what], dim, None
        raise InternalError("guards", f"no accessor for source {source!r}")

    @staticmethod
    def _index(table: Mapping[str, int], name: str, source: Source) -> int:
        if name not in table:
            raise InternalError("guards", f"{source.name}: the frame has no such variable (it has {sorted(table)})")
        return table[name]


def _add_check(tree: _native.GuardTree, node: int, guard: Guard, number: int) -> None:
    kind, expected = guard.kind, guard.expected
    if kind is GuardKind.TENSOR:
        tree.add_tensor_check(node, expected, number)
    elif kind is GuardKind.IDENTITY:
        if not isinstance(expected, weakref.ref):
            tree.add_check(node, _CHECK["identity"], 0, expected, number)
        else:
            tree.add_check(node, _CHECK["weak_identity"], 0, expected, number)
    elif kind in (GuardKind.LENGTH, GuardKind.TRUTH):
        tree.add_check(node, _CHECK["length" if kind is GuardKind.LENGTH else "truth"], int(expected), None, number)
    else:
        name = {
            GuardKind.TYPE: "type",
            GuardKind.EQUALITY: "equality",
            GuardKind.DICT_KEYS: "dict_keys",
            GuardKind.CONTAINS: "contains",
            GuardKind.HAS_ATTRIBUTE: "has_attribute",
            GuardKind.FUNCTION_CODE: "function_code",
        }[kind]
        tree.add_check(node, _CHECK[name], 0, expected, number)


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


_REMEDIES = {
    GuardKind.TENSOR: "Mark the dimension that changes dynamic, or keep dtype, device and layout of the tensor",
    GuardKind.SIZES: "Mark the dimension that changes dynamic with a wider range",
    GuardKind.EQUALITY: "Make the value that changes a tensor, or mark it dynamic",
    GuardKind.LENGTH: "Keep the number of items between calls",
    GuardKind.DICT_KEYS: "Keep the keys of the dict between calls",
    GuardKind.CONTAINS: "Set what is added or removed before the first call",
    GuardKind.HAS_ATTRIBUTE: "Set the attribute before the first call",
    GuardKind.GLOBAL_STATE: "Call it under the same modes (grad, autocast, default dtype, number of threads)",
}


_OTHER_REMEDY = "Call it with the same object, or compile it once for each"
_KINDS_REMEDY = "Pass the same kind of value at every call, or compile it once for each"


def remedy(guard: Guard, view: Any) -> str:
    """What the user can do so that this guard, which fails on the frame, holds at every call."""
    if guard.kind is GuardKind.EQUALITY:
        return _remedy_of_value(type(guard.expected))
    if guard.kind is GuardKind.TYPE or guard.kind is GuardKind.TENSOR and not isinstance(_value_of(guard, view), torch.Tensor):
        return _KINDS_REMEDY
    return _REMEDIES.get(guard.kind, _OTHER_REMEDY)


def _remedy_of_value(kind: type) -> str:
    if kind in (*NUMPY_SCALARS, range):
        instead = "its ends" if kind is range else "int(...) or float(...) of it"
        return f"Pass {instead}, which may change: code is made for the very value of a {kind.__qualname__}"
    return _REMEDIES[GuardKind.EQUALITY] if kind in (int, float) else _OTHER_REMEDY.replace("object", "value")


def _value_of(guard: Guard, view: Any) -> Any:
    try:
        return read_source(guard.source, view)
    except Exception:  # what is not there any more is of no kind
        return None


# ---- words ----------------------------------------------------------------------------------------------------------


def read_source(source: Source, view: Any) -> Any:
    """The value at `source` in a FrameView. Raises what reading raises."""
    match source:
        case LocalSource(local=name):
            return view.locals[name]
        case ClosureSource(var=name):
            return view.closure[view.code.co_freevars.index(name)].cell_contents
        case ClosureCellSource(var=name):
            return view.closure[view.code.co_freevars.index(name)]
        case GlobalsSource():
            return view.globals
        case BuiltinsSource():
            return view.builtins
        case FunctionSource():
            return view.function
        case ObjectSource(value=value):
            return value
    parent = source.parent
    if parent is None:
        raise InternalError("guards", f"no reader for source {source!r}")
    base = read_source(parent, view)
    match source:
        case AttrSource(attr=name):
            return getattr(base, name)
        case InstanceDictSource():
            return base.__dict__
        case DictItemSource(key=key):
            # a class shows its names through a proxy, which has no overrides to go below
            return base[key] if isinstance(base, types.MappingProxyType) else dict.__getitem__(base, key)
        case DictKeySource(index=index):
            return list(base if isinstance(base, types.MappingProxyType) else dict.keys(base))[index]
        case SequenceItemSource(index=index):
            kind = next(kind for kind in (tuple, list, deque) if isinstance(base, kind))
            return kind.__getitem__(base, index)
        case TypeSource():
            return type(base)
        case CallSource(getter=getter):
            return getter(base)
        case SizeSource(what=what, dim=dim):
            return base.storage_offset() if what == "storage_offset" else operator.methodcaller(what, dim)(base)
    raise InternalError("guards", f"no reader for source {source!r}")


def explain(guard: Guard, view: Any) -> str:
    """Why `guard` fails on the frame, in the user's terms: old value and new value."""
    if guard.kind is GuardKind.GLOBAL_STATE:
        return f"torch's global state changed: {', '.join(guard.expected.changed()) or 'back to what it was'}"
    name = guard.source.name
    try:
        if guard.kind is GuardKind.SIZES:
            values = {source.name: read_source(source, view) for source in guard.expected.sources}
            now = ", ".join(f"{place} = {_short(value)}" for place, value in values.items())
            asked = f" (asked at {guard.site})" if guard.site is not None else ""
            return f"{guard.expected} does not hold for {now}{asked}"
        value = read_source(guard.source, view)
    except Exception as error:  # what is not there any more is the explanation
        return f"{name} can't be read any more ({type(error).__name__}: {error})"
    expected = guard.expected
    match guard.kind:
        case GuardKind.TENSOR:
            if not isinstance(value, torch.Tensor):
                return f"{name} is a {_type_name(type(value))}, was a {_type_name(expected.type)}"
            return f"tensor {name}: {expected.differences(value)}"
        case GuardKind.TYPE:
            return f"{name} is a {_type_name(type(value))}, was a {_type_name(expected)}"
        case GuardKind.LENGTH:
            return f"len({name}) is {len(value)}, was {expected}"
        case GuardKind.DICT_KEYS:
            return f"keys of {name} are {_short(tuple(value))}, were {_short(expected)}"
        case GuardKind.CONTAINS:
            return f"{expected[0]!r} {'is no longer' if expected[1] else 'is now'} in {name}"
        case GuardKind.HAS_ATTRIBUTE:
            return f"{name} {'no longer has' if expected[1] else 'now has'} attribute {expected[0]!r}"
        case GuardKind.TRUTH:
            return f"bool({name}) is {bool(value)}, was {expected}"
        case GuardKind.SAME_OBJECT:
            return f"{name} and {', '.join(source.name for source in expected)} are no longer one object"
        case GuardKind.DISTINCT_OBJECTS:
            return f"two of {name}, {', '.join(source.name for source in expected)} are now one object"
        case GuardKind.SAME_STORAGE:
            return f"{name} and {', '.join(source.name for source in expected)} no longer share storage"
        case GuardKind.DISTINCT_STORAGES:
            return f"two of {name}, {', '.join(source.name for source in expected)} now share storage"
        case GuardKind.IDENTITY:
            old = expected() if isinstance(expected, weakref.ref) else expected
            was = "an object that is gone" if old is None and isinstance(expected, weakref.ref) else _short(old)
            return f"{name} is another object: {_short(value)}, was {was}"
    return f"{name} is {_short(value)}, was {_short(expected)}"


def _short(value: Any, limit: int = 120) -> str:
    if isinstance(value, types.FunctionType):
        return f"function {value.__qualname__}"
    try:
        text = repr(value)
    except Exception as error:  # a broken __repr__ must not hide the guard
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


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
