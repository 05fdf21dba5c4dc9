"""Models of exceptions: the one being handled, tracebacks, parts of groups.

In: a call of `sys.exc_info`, `with_traceback`, `split` and their like. Out: the program's exceptions, with a `Traceback` in the
place of tracebacks that only the real run would make. Splitting a group that holds a group which was raised is a break.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.model_tables import Args, Kwargs, function, method
from fxloom_dynamo.objects.sentinels import Traceback
from fxloom_dynamo.semantics import attribute_writes, calls

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@function(sys.exc_info)
def _exc_info(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    exc = ev.handled()
    if exc is None:
        return (None, None, None)
    return (type(exc), exc, ev.traceback_of(exc))


if hasattr(sys, "exception"):

    @function(sys.exception, arity=(0, 0))
    def _current_exception(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        return ev.handled()


@method(BaseException, "with_traceback", arity=(2, 2))
def _with_traceback(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    attribute_writes.generic_store(ev, args[0], "__traceback__", args[1])
    return args[0]


def _adopt_leaves(ev: Interpreter, group: Any) -> None:
    """The parts of a group that existed before existed before."""
    for part in group.exceptions:
        ev.heap.adopt(part)
        if isinstance(part, BaseExceptionGroup):
            _adopt_leaves(ev, part)


@method(BaseExceptionGroup, "subgroup", arity=(2, 2))
def _subgroup(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _split_group(ev, args, kwargs)[0]


@method(BaseExceptionGroup, "split", arity=(2, 2))
def _split_group(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """The parts of a group have the group's traceback."""
    group, condition = args
    if ev.heap.record(group) is not None:
        _adopt_leaves(ev, group)
    if any(isinstance(part, BaseExceptionGroup) and ev.traceback_of(part) is not None for part in group.exceptions):
        graph_break("exception_group", "splits a group that holds a group which was raised")
    parts = ev.native(BaseExceptionGroup.split, group, condition)
    for part in parts:
        if part is not None and part is not group and ev.traceback_of(group) is not None:
            ev.exceptions.tracebacks[id(part)] = (part, ev.traceback_of(group))
    return parts


@function(traceback.clear_frames)
def _clear_frames(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Only drops the variables of frames that have ended."""
    if args and args[0] is not None and type(args[0]) is not Traceback:
        calls.inline_function(ev, traceback.clear_frames, args, kwargs)  # type: ignore[arg-type]  # a Python function
