"""What functions that run outside of the evaluator can read: from their code's names, closures and what these lead to.

In: functions that a graph calls as they are (custom autograd functions). They see the real objects, without what the region has
written so far, and when they run rather than when they were captured. Out: what they may read of the region's writes, or of state
that changes, in words; empty if nothing. Invariant: where there is doubt, the answer is that they may.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.objects.program_changes import changed_records, changed_slots
from fxloom_dynamo.objects.sentinels import own_dict
from fxloom_dynamo.objects.value_types import LITERALS

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: objects looked at before the answer is "may"
_LIMIT = 20_000


def may_read_written(ev: Interpreter, functions: Iterable[Any]) -> str:
    """What of the region's writes `functions` may read, in words; empty when nothing."""
    heap = ev.heap
    changed = {id(record.original) for record, _ in changed_records(ev.heap)}
    changed |= {id(record.original) for record in heap.by_proxy.values() if record.kind == "instance" and changed_slots(record)}
    names = {id(space.real): space.written for space in heap.namespaces.values() if space.written}
    if not changed and not names and not heap.class_writes:
        return ""
    attributes = {name for written in names.values() for name in written} | {name for _, name in heap.class_writes}
    for count, (value, code_names, where) in enumerate(_reach(functions)):
        if id(value) in changed:
            return f"a {type(value).__qualname__}"
        if isinstance(value, types.FunctionType):
            written = names.get(id(value.__globals__), {})
            found = next((name for name in code_names if name in written or name in attributes), None)
            if found is not None:
                return f"`{found}`"
        if count > _LIMIT:
            return f"something that is reached from {where}"
    return ""


def mutable_state(functions: Iterable[Any]) -> str:
    """A name under which `functions` read a container or an instance, which can change without being assigned; or empty."""
    for value, _, where in _reach(functions, into_objects=False):
        if isinstance(value, (list, dict, set, bytearray)) or _is_instance_of_python_class(value):
            return f"`{where}`"
    return ""


def _reach(functions: Iterable[Any], into_objects: bool = True) -> Iterator[tuple[Any, tuple[str, ...], str]]:
    """(object, names in its code if it is a function, the name it has somewhere) for what can be reached."""
    todo: list[tuple[Any, str]] = [(function, getattr(function, "__name__", "")) for function in functions]
    seen: set[int] = set()
    while todo:
        value, where = todo.pop()
        kind = type(value)
        if kind in LITERALS or id(value) in seen or isinstance(value, (type, types.ModuleType)):
            continue
        seen.add(id(value))
        if kind is types.FunctionType:
            names = tuple(_names(value.__code__)) if not _is_torchs(value) else ()
            yield value, names, where
            todo += [(value.__globals__[name], name) for name in names if name in value.__globals__]
            todo += [(cell, name) for cell, name in zip(value.__closure__ or (), value.__code__.co_freevars, strict=True)]
            continue
        yield value, (), where
        if kind is types.CellType:
            try:
                todo.append((value.cell_contents, where))
            except ValueError:  # empty
                continue
        elif kind is types.MethodType:
            todo += [(value.__func__, where), (value.__self__, where)]
        elif isinstance(value, (tuple, frozenset)):
            todo += [(item, where) for item in value]
        elif into_objects:
            items = list(dict.items(value)) if isinstance(value, dict) else []
            todo += [(part, where) for item in items for part in item]
            todo += [(item, where) for item in value] if isinstance(value, (list, set)) else []
            todo += [(item, where) for item in own_dict(value).values()] if kind.__dictoffset__ else []


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


def _is_instance_of_python_class(value: Any) -> bool:
    kind = type(value)
    return (
        bool(kind.__flags__ & _HEAP_TYPE)
        and bool(kind.__dictoffset__)
        and (kind.__module__ or "").partition(".")[0] not in ("torch", "builtins")
    )


_HEAP_TYPE = 1 << 9
