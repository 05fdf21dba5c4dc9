"""Opcode handlers for calls, for making functions, and for CPython's intrinsic functions.

In: an instruction and the frame, with callable, NULL and arguments on its stack in the order of the running version. Out: the
result on the stack; what a call means is `Interpreter.call`'s to say. A made function is a real one, known to the shadow heap as
new.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.bytecode.snippets import NULL_FIRST
from fxloom_dynamo.objects.sentinels import NULL, Raised
from fxloom_dynamo.semantics import operators

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("KW_NAMES", "--", last=(3, 12))
def kw_names(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.kw_names = inst.argval


def _call(ev: Interpreter, frame: Frame, count: int, names: tuple[str, ...]) -> None:
    args = frame.pop_many(count)
    first, second = frame.pop_many(2)
    if NULL_FIRST:
        # NULL callable, or method receiver
        fn = second if first is NULL else first
        if first is not NULL:
            args.insert(0, second)
    else:
        fn = first
        if second is not NULL:
            args.insert(0, second)
    kwargs: dict[str, Any] = {}
    if names:
        at = len(args) - len(names)
        kwargs = dict(zip(names, args[at:], strict=True))
        del args[at:]
    ev.callee = fn
    frame.stack.append(ev.call(fn, args, kwargs))


@opcode("CALL", lambda inst: ((inst.arg or 0) + 2, 1))
def call(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    names, frame.kw_names = frame.kw_names, ()
    _call(ev, frame, inst.arg or 0, names)


@opcode("CALL_KW", lambda inst: ((inst.arg or 0) + 3, 1), first=(3, 13))
def call_kw(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    names = frame.stack.pop()
    _call(ev, frame, inst.arg or 0, names)


@opcode("CALL_FUNCTION_EX", lambda inst: (4 if (inst.arg or 0) & 1 else 3, 1))
def call_function_ex(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    kwargs = frame.stack.pop() if (inst.arg or 0) & 1 else {}
    args = frame.stack.pop()
    first, second = frame.pop_many(2)
    fn = second if first is NULL else first
    if isinstance(kwargs, dict):
        ev.heap.fill(kwargs)
    else:
        merged: dict[Any, Any] = {}
        ev.call(ev.getattr(merged, "update"), [kwargs])
        kwargs = merged
    for name in kwargs:
        if not isinstance(name, str):
            raise Raised(TypeError("keywords must be strings"))
    frame.stack.append(ev.call(fn, ev.list_of(args), dict(kwargs)))


def _function_effect(inst: Instruction) -> tuple[int, int]:
    return 1 + (inst.arg or 0).bit_count(), 1


@opcode("MAKE_FUNCTION", _function_effect)
def make_function(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    flags = inst.arg or 0
    code = frame.stack.pop()
    closure = frame.stack.pop() if flags & 8 else None
    annotations = frame.stack.pop() if flags & 4 else None
    keyword_defaults = frame.stack.pop() if flags & 2 else None
    defaults = frame.stack.pop() if flags & 1 else None
    if closure is None and code.co_freevars:  # 3.13 sets the closure in the next instruction
        closure = tuple(types.CellType() for _ in code.co_freevars)
    fn = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    fn.__qualname__ = code.co_qualname
    if keyword_defaults is not None:
        fn.__kwdefaults__ = keyword_defaults
    if annotations is not None:
        _annotate(fn, annotations)
    frame.stack.append(ev.heap.add_fresh(fn))


@opcode("SET_FUNCTION_ATTRIBUTE", "value function -- function", first=(3, 13))
def set_function_attribute(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value, fn = frame.pop_many(2)
    flags = inst.arg or 0
    if flags == 8:
        made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, value)
        made.__qualname__ = fn.__qualname__
        made.__kwdefaults__ = fn.__kwdefaults__
        fn = ev.heap.add_fresh(made)
    elif flags == 4:
        _annotate(fn, value)
    elif flags == 2:
        fn.__kwdefaults__ = value
    else:
        fn.__defaults__ = value
    frame.stack.append(fn)


def _annotate(fn: types.FunctionType, annotations: Any) -> None:
    if isinstance(annotations, tuple):
        annotations = dict(zip(annotations[::2], annotations[1::2], strict=True))
    fn.__annotations__ = annotations


@opcode("CALL_INTRINSIC_1", "value -- value", first=(3, 12))
def call_intrinsic_1(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    number = inst.arg or 0
    if number == 3:  # StopIteration leaving a generator
        if isinstance(value, StopIteration):
            error = RuntimeError("generator raised StopIteration")
            error.__cause__ = error.__context__ = value
            value = error
        frame.stack.append(value)
    elif number == 5:
        frame.stack.append(operations_unary_plus(ev, value))
    elif number == 6:
        ev.heap.fill(value)  # of a continuation, the list is one that was there before
        frame.stack.append(tuple(value))
    else:
        graph_break("unsupported_opcode", f"CALL_INTRINSIC_1 {number}")


def operations_unary_plus(ev: Interpreter, value: Any) -> Any:
    return operators.unary(ev, "__pos__", value)


@opcode("CALL_INTRINSIC_2", "left right -- value", first=(3, 12))
def call_intrinsic_2(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    graph_break("exception_group" if inst.arg == 1 else "unsupported_opcode", f"CALL_INTRINSIC_2 {inst.arg}")
