"""Raising, catching, and `with`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_dynamo import models
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.marks import ABSENT, Raised
from fxloom_dynamo.operations import python_method
from fxloom_dynamo.registry import opcode

if TYPE_CHECKING:
    from fxloom_dynamo.evaluator import Evaluator
    from fxloom_dynamo.frame import Frame


def _make_exception(ev: Evaluator, value: Any) -> BaseException:
    if isinstance(value, type) and issubclass(value, BaseException):
        cls = value
        value = ev.call(cls, [])
        if not isinstance(value, BaseException):
            raise Raised(
                TypeError(f"calling {cls!r} should have returned an instance of BaseException, not {ev.type_of(value)!r}")
            )
    if not isinstance(value, BaseException):
        raise Raised(TypeError("exceptions must derive from BaseException"))
    return value


@opcode("RAISE_VARARGS", lambda inst: (inst.arg or 0, 0))
def raise_varargs(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    count = inst.arg or 0
    if count == 0:
        if ev.current_exception is None:
            raise Raised(RuntimeError("No active exception to reraise"))
        raise Raised(ev.current_exception, settled=True)
    cause = frame.stack.pop() if count == 2 else ABSENT
    exc = _make_exception(ev, frame.stack.pop())
    if cause is not ABSENT:
        if cause is not None and not isinstance(cause, BaseException):
            if not (isinstance(cause, type) and issubclass(cause, BaseException)):
                raise Raised(TypeError("exception causes must derive from BaseException"))
            cause = _make_exception(ev, cause)
        exc.__cause__ = cause
    raise Raised(exc)


@opcode("PUSH_EXC_INFO", "exception -- previous exception")
def push_exc_info(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    exc = frame.stack.pop()
    frame.stack.append(ev.current_exception)
    frame.stack.append(exc)
    ev.current_exception = exc


@opcode("POP_EXCEPT", "previous --")
def pop_except(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    ev.current_exception = frame.stack.pop()


@opcode("RERAISE", lambda inst: (1, 0))
def reraise(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    raise Raised(frame.stack.pop(), settled=True)


@opcode("CHECK_EXC_MATCH", "type -- bool")
def check_exc_match(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    wanted = frame.stack.pop()
    exc = frame.stack[-1]
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise Raised(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    frame.stack.append(isinstance(exc, kinds))


@opcode("CHECK_EG_MATCH", "exception type -- rest match")
@opcode("PREP_RERAISE_STAR", "original exceptions -- value", last=(3, 11))
def exception_group(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    graph_break("exception_group", inst.opname)


def _special(ev: Evaluator, manager: Any, name: str) -> Any:
    """A method as `with` looks it up: in the class only."""
    found = python_method(ev, manager, name)
    if found is not ABSENT:
        return lambda *args: ev.call(found, [manager, *args])
    if not hasattr(type(manager), name):
        missed = "" if name == "__enter__" else f" (missed {name} method)"
        kind = ev.type_of(manager).__name__
        raise Raised(TypeError(f"'{kind}' object does not support the context manager protocol{missed}"))
    graph_break("native_call", f"with a {type(manager).__module__}.{type(manager).__qualname__}")


@opcode("BEFORE_WITH", "manager -- exit value")
def before_with(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    manager = frame.stack[-1]
    enter = _special(ev, manager, "__enter__")
    _special(ev, manager, "__exit__")
    exit_method = ev.getattr(manager, "__exit__")
    value = enter()
    frame.stack[-1] = exit_method
    frame.stack.append(value)


@opcode("WITH_EXCEPT_START", "-- result")
def with_except_start(ev: Evaluator, frame: Frame, inst: Instruction) -> None:
    exit_method, exc = frame.stack[-4], frame.stack[-1]
    frame.stack.append(ev.call(exit_method, [type(exc), exc, ev.traceback_of(exc)]))


_ = models
