"""Raising, catching, and `with`.

In: operands on the frame's stack and names in the instruction. Out: the stack and the frame's variables as CPython leaves them.
Invariant: a handler moves values; what an operation means is decided in `semantics` and in the shadow heap, which also leave the guards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.interpreter.special_methods import is_own_instance, python_method
from fxloom_dynamo.objects.sentinels import ABSENT, Raised

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


def _make_exception(ev: Interpreter, value: Any) -> BaseException:
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
def raise_varargs(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    count = inst.arg or 0
    if count == 0:
        handled = ev.handled()
        if handled is None:
            raise Raised(RuntimeError("No active exception to reraise"))
        raise Raised(handled, settled=True)
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
def push_exc_info(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    exc = frame.stack.pop()
    frame.stack.append(ev.exceptions.current)
    frame.stack.append(exc)
    ev.exceptions.current = exc


@opcode("POP_EXCEPT", "previous --")
def pop_except(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    ev.exceptions.current = frame.stack.pop()


@opcode("RERAISE", lambda inst: (1, 0))
def reraise(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    raise Raised(frame.stack.pop(), settled=True)


@opcode("CHECK_EXC_MATCH", "type -- bool")
def check_exc_match(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    wanted = frame.stack.pop()
    exc = frame.stack[-1]
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise Raised(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    frame.stack.append(isinstance(exc, kinds))


def _check_catchable(kind: Any) -> None:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for item in kinds:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise Raised(TypeError("catching classes that do not inherit from BaseException is not allowed"))
        if issubclass(item, BaseExceptionGroup):
            raise Raised(TypeError("catching ExceptionGroup with except* is not allowed. Use except instead."))


@opcode("CHECK_EG_MATCH", "exception type -- rest match")
def check_eg_match(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    exc, kind = frame.pop_many(2)
    _check_catchable(kind)
    if exc is None:
        frame.stack.extend((None, None))
    elif isinstance(exc, kind):
        match = exc if isinstance(exc, BaseExceptionGroup) else ev.native(ExceptionGroup, "", [exc])
        if match is not exc:
            ev.exceptions.tracebacks[id(match)] = (match, ev.traceback_of(exc))
        frame.stack.extend((None, match))
        ev.exceptions.current = match
    elif isinstance(exc, BaseExceptionGroup):
        match, rest = ev.call(ev.getattr(exc, "split"), [kind])
        frame.stack.extend((rest, match) if match is not None else (exc, None))
        if match is not None:
            ev.exceptions.current = match
    else:
        frame.stack.extend((exc, None))


@opcode("PREP_RERAISE_STAR", "original exceptions -- value", last=(3, 11))
def prep_reraise_star(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    original, raised = frame.pop_many(2)
    frame.stack.append(reraise_star(ev, original, raised))


def reraise_star(ev: Interpreter, original: Any, raised: Any) -> Any:
    """What leaves a `try` with `except*`: the unhandled part of the group and what the handlers raised."""
    if any(exc is not None and exc is not original and _metadata(ev, exc) == _metadata(ev, original) for exc in raised):
        graph_break("exception_group", "part of an exception group goes on beyond its handlers")
    left = [exc for exc in raised if exc is not None]
    if not left:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return left[0]
    if len(left) == 1 and left[0] is original:
        return original
    if any(exc is original for exc in left):
        graph_break("exception_group", "an exception group goes on together with what a handler raised")
    return ev.native(ExceptionGroup, "", left)


def _metadata(ev: Interpreter, exc: BaseException) -> tuple[Any, ...]:
    return (getattr(exc, "__notes__", None), ev.traceback_of(exc), exc.__cause__, exc.__context__)


def _special(ev: Interpreter, manager: Any, name: str) -> Any:
    """A method as `with` looks it up: in the class only."""
    found = python_method(ev, manager, name)
    if found is not ABSENT:
        return lambda *args: ev.call(found, [manager, *args])
    if not hasattr(type(manager), name):
        missed = "" if name == "__enter__" else f" (missed {name} method)"
        kind = ev.type_of(manager).__name__
        raise Raised(TypeError(f"'{kind}' object does not support the context manager protocol{missed}"))
    if is_own_instance(ev, manager):
        return lambda *args: ev.call(ev.getattr(manager, name), list(args))
    if hasattr(type(manager), "acquire"):
        kind = type(manager).__qualname__
        graph_break("opaque_object", f"enters a lock ({kind}) that was there before; a graph's changes are made after it has run")
    graph_break("native_call", f"with a {type(manager).__module__}.{type(manager).__qualname__}")


@opcode("BEFORE_WITH", "manager -- exit value")
def before_with(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    manager = frame.stack[-1]
    enter = _special(ev, manager, "__enter__")
    _special(ev, manager, "__exit__")
    exit_method = ev.getattr(manager, "__exit__")
    value = enter()
    frame.stack[-1] = exit_method
    frame.stack.append(value)


@opcode("WITH_EXCEPT_START", "-- result")
def with_except_start(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    exit_method, exc = frame.stack[-4], frame.stack[-1]
    frame.stack.append(ev.call(exit_method, [type(exc), exc, ev.traceback_of(exc)]))
