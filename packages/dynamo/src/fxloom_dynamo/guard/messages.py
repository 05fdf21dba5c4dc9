"""Guard messages: why a guard fails on a frame, in the user's terms, and what to do about it.

In: a guard, which is data, and the frame. Out: a sentence. The source is read once more, in Python: the tree only says
which guard failed.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections import deque
from typing import Any

import torch

from fxloom_dynamo.guard.guards import Guard, GuardKind, short_text, type_name
from fxloom_dynamo.libraries.numpy_numbers import NUMPY_SCALARS
from fxloom_interfaces.errors import InternalError
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
            now = ", ".join(f"{place} = {short_text(value)}" for place, value in values.items())
            asked = f" (asked at {guard.site})" if guard.site is not None else ""
            return f"{guard.expected} does not hold for {now}{asked}"
        value = read_source(guard.source, view)
    except Exception as error:  # what is not there any more is the explanation
        return f"{name} can't be read any more ({type(error).__name__}: {error})"
    expected = guard.expected
    match guard.kind:
        case GuardKind.TENSOR:
            if not isinstance(value, torch.Tensor):
                return f"{name} is a {type_name(type(value))}, was a {type_name(expected.type)}"
            return f"tensor {name}: {expected.differences(value)}"
        case GuardKind.TYPE:
            return f"{name} is a {type_name(type(value))}, was a {type_name(expected)}"
        case GuardKind.LENGTH:
            return f"len({name}) is {len(value)}, was {expected}"
        case GuardKind.DICT_KEYS:
            return f"keys of {name} are {short_text(tuple(value))}, were {short_text(expected)}"
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
            was = "an object that is gone" if old is None and isinstance(expected, weakref.ref) else short_text(old)
            return f"{name} is another object: {short_text(value)}, was {was}"
    return f"{name} is {short_text(value)}, was {short_text(expected)}"
