"""What a program prints and logs: delayed until the graph has run, in order, where nobody can see the difference.

In: a call of `print` or of a logger's method. Out: a `DelayedCall` that replacement code makes. Delayed are texts and numbers
only, which don't change until then. What shows a tensor or an object is a break, or is evaluated down to a logger that ignores
it. So is what goes to a stream or handler written by the program, which may look at what the region has done so far, add to it,
or raise.
"""

from __future__ import annotations

import builtins
import dis
import functools
import logging
import sys
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.entries import without_capture
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.state import DelayedCall
from fxloom_dynamo.libraries import files
from fxloom_dynamo.objects.value_types import LITERALS

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


def delay(ev: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any] | None = None) -> None:
    """Have replacement code make this call at its end."""
    ev.delayed.after_graph.append(DelayedCall(caller_at(ev.frames[-1]), function, tuple(args), kwargs or {}))


def caller_at(frame: Frame) -> Any:
    """`lambda function, args, kwargs: function(*args, **kwargs)`, at the place of the call that is delayed.

    Who looks up the stack for it, as loggers do, finds the program's file, function and line there.
    """
    code = _CALL.__code__.replace(
        co_filename=frame.code.co_filename,
        co_name=frame.code.co_name,
        co_qualname=frame.code.co_qualname,
        co_firstlineno=frame.site().line,
    )
    # handlers and streams are the program's, but not what it wants compiled
    return without_capture(types.FunctionType(code, frame.globals))


_CALL = lambda function, args, kwargs: function(*args, **kwargs)  # noqa: E731  # all in one line


def print_(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> None:
    """The model of `print`."""
    marks = [kwargs.get("sep"), kwargs.get("end")]
    sound = kwargs.keys() <= {"sep", "end", "flush"} and all(mark is None or type(mark) is str for mark in marks)
    if not sound or not _are_literals(args, kwargs):
        graph_break("native_call", "print() of more than texts and numbers, or into a file")
    if "stdout" in ev.heap.namespace(vars(sys)).written:
        graph_break("native_call", "print() while sys.stdout is redirected")
    check_stream(ev, "stdout", "print()")
    delay(ev, builtins.print, args, kwargs)


def check_stream(ev: Interpreter, name: str, what: str) -> None:
    """Break if `sys.stdout` or `sys.stderr` is an object of a class that the program has written."""
    stream = getattr(sys, name)
    if files.is_program_code(getattr(type(stream), "write", None)):
        graph_break("native_call", f"{what} to a {type(stream).__qualname__}, whose write() is the program's")
    ev.heap.guard(ev.heap.key_source(ev.heap.namespace(vars(sys)).source, name), GuardKind.TYPE, type(stream))


def _check_handlers(ev: Interpreter, logger: logging.Logger) -> None:
    """Break if a record may come to code of the program's. Which handlers there are is not guarded: programs set them up once."""
    record = ev.heap.record(logger)
    at: logging.Logger | None = logger if record is None else record.original
    while at is not None:
        for target in (at, *at.handlers):
            kind = type(target)
            filters = [getattr(each, "filter", each) for each in target.filters]
            seen_by = [getattr(kind, "handle", None), getattr(kind, "emit", None), *filters]
            if any(files.is_program_code(getattr(method, "__func__", method)) for method in seen_by):
                graph_break("native_call", f"a log record for a {kind.__qualname__}, which is the program's")
        at = at.parent if at.propagate else None


def log(method: Any, ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of a logger's methods."""
    if not args or not isinstance(args[0], logging.Logger) or kwargs or not _are_literals(args[1:], {}):
        return ev.inline(method, args, kwargs)
    _check_handlers(ev, args[0])
    delay(ev, method, args)
    return None


def log_once(ev: Interpreter, cached: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Put off a cached function that only logs (`warning_once`); False for any other."""
    if not args or not isinstance(args[0], logging.Logger) or kwargs or not _are_literals(args[1:], {}):
        return False
    wrapped = cached.__wrapped__
    if not isinstance(wrapped, types.FunctionType) or not returns_nothing(wrapped.__code__):
        return False
    _check_handlers(ev, args[0])
    delay(ev, cached, args)
    return True


def get_logger(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `logging.getLogger`."""
    if not _are_literals(args, kwargs):
        return ev.inline(logging.getLogger, args, kwargs)  # type: ignore[arg-type]  # a Python function
    return ev.heap.adopt(ev.native(logging.getLogger, *args, **kwargs))


def _are_literals(args: list[Any], kwargs: dict[str, Any]) -> bool:
    return all(type(value) in LITERALS for value in (*args, *kwargs.values()))


@functools.lru_cache(maxsize=256)
def returns_nothing(code: types.CodeType) -> bool:
    """Whether every `return` of a function returns None."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return False
        if instruction.opname == "RETURN_VALUE" and (before is None or before.opname != "LOAD_CONST" or before.argval is not None):
            return False
        before = instruction
    return True


LOGGER_METHODS = tuple(getattr(logging.Logger, name) for name in ("debug", "info", "warning", "error", "critical", "log"))
