"""Finalizers: objects at whose end code runs, and whether the program may have brought such an end about.

In: values of the captured frame, or the evaluator at some instruction. Out: yes or no; by that a store or a call of a
weak reference breaks the graph or not. A yes need not come true: when an object dies is known only when the program runs.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.interpreter.frame import UnreadParameter
from fxloom_dynamo.objects.program_changes import changed_records
from fxloom_dynamo.objects.value_types import LITERALS, has_finalizer

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def may_have_dropped_references(ev: Interpreter) -> bool:
    """True when the program may have dropped the last reference to an object that existed before."""
    if any(kind not in ("set", "added") for _, kind in changed_records(ev.heap)) or ev.heap.class_writes:
        return True
    if any(namespace.written for namespace in ev.heap.namespaces.values()):
        return True
    frame = ev.frames[0]
    held = {id(value) for value in (*frame.locals.values(), *frame.stack)}
    for name, value in ev.parameters.items():
        if type(value) in LITERALS or isinstance(value, torch.Tensor) or type(frame.locals.get(name)) is UnreadParameter:
            continue
        record = ev.heap.by_original.get(id(value))
        if record is None or id(record.proxy) not in held:
            return True
    return False


def runs_code_at_end(value: Any) -> bool:
    """Whether something is called when `value` dies."""
    if type(value) in LITERALS or isinstance(value, (torch.Tensor, type)):
        return False
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
        return False  # `len` lives as long as its module; torch's own compiler, once loaded, has finalizers on some
    if has_finalizer(type(value)) or isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        return True  # a suspended generator is closed: its `finally` runs
    return any(reference.__callback__ is not None for reference in weakref.getweakrefs(value))
