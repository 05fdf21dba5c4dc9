"""Models of weak references without callbacks: to what existed before, and to what the program made and still holds.

In: `weakref.ref(x)`, or a call of such a reference. Out: the reference, or its referent under a guard. Breaks: references with a
callback, and calls where the referent may have died by now: no variable holds it, or the program has dropped an object that it
had.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.model_tables import OBJECT_CALLS, Args, Kwargs, constructor
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.objects.value_types import referent
from fxloom_interfaces.sources import CallSource

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@constructor(weakref.ReferenceType)
def _make(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """`weakref.ref(x)`: all references to one object are one object."""
    if kwargs or len(args) != 1 and (len(args) != 2 or args[1] is not None):
        graph_break("finalizer", "makes a weak reference with a callback")
    target = args[0]
    record = ev.heap.record(target)
    if record is None and not ev.heap.is_fresh(target):
        graph_break("native_call", f"makes a weak reference to a {ev.type_of(target).__qualname__}")
    try:
        made = weakref.ref(target if record is None else record.original)
    except TypeError as error:
        raise Raised(ev.clean(error)) from None
    if record is None:
        return ev.heap.add_fresh(made)
    known = ev.heap.by_original.get(id(made))
    if known is None:
        known = ev.heap.add(made, made, CallSource(record.source, getter=weakref.ref, label="weakref.ref({})"), "opaque")
    return known.proxy


def _dereference(ev: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """What a weak reference refers to; guarded like anything else that is read."""
    if args or kwargs:
        graph_break("native_call", "call of a weak reference with arguments")
    record = ev.heap.record(fn)
    if record is None:
        target = fn()
        if not _is_held(ev, target):
            graph_break("native_call", "call of a weak reference to an object that no variable holds")
        return target
    if ev.may_have_dropped_references():
        graph_break("native_call", "call of a weak reference, after the program has dropped an object that it had")
    return ev.heap.translate(fn(), referent(record.source))


def _is_held(ev: Interpreter, target: Any) -> bool:
    """Whether a variable that is bound now holds the object, so that it is alive."""
    for frame in ev.frames:
        for value in (*frame.locals.values(), *frame.stack):
            if value is target or type(value) is types.CellType and ev.heap.cell_get(value) is target is not ABSENT:
                return True
    return False


OBJECT_CALLS[weakref.ReferenceType] = _dereference
