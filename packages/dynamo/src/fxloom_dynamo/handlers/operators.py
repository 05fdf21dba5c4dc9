"""Opcodes of operators, comparisons, subscripts and text formatting.

In: the operands, on the frame's stack. Out: the result there, as the declared effect says. Invariant: a handler moves values and no more;
what an operation means, whether it records an operator, adds a guard or breaks the graph, is decided in `semantics` (`operators`,
`subscripts`, `texts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.objects.unguarded import Unguarded
from fxloom_dynamo.semantics import operators, subscripts, texts
from fxloom_dynamo.semantics.predictions import branch

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("BINARY_OP", "left right -- value")
def binary_op(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    left, right = frame.pop_many(2)
    frame.stack.append(operators.binary(ev, inst.argval, left, right))


@opcode("COMPARE_OP", "left right -- value")
def compare_op(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    left, right = frame.pop_many(2)
    # 3.13 may ask for a bool here; the instruction that needs it follows, and asks itself
    frame.stack.append(operators.compare(ev, inst.argval, left, right))


@opcode("IS_OP", "left right -- bool")
def is_op(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    left, right = frame.pop_many(2)
    if left is not right and Unguarded in (type(left), type(right)) and ev.type_of(left) is ev.type_of(right):
        ev.heap.reveal()  # two texts may be one object
    frame.stack.append((left is right) != bool(inst.arg))


@opcode("CONTAINS_OP", "item container -- bool")
def contains_op(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    item, container = frame.pop_many(2)
    frame.stack.append(operators.contains(ev, item, container) != bool(inst.arg))


@opcode("UNARY_NEGATIVE", "value -- value")
def unary_negative(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(operators.unary(ev, "__neg__", frame.stack.pop()))


@opcode("UNARY_POSITIVE", "value -- value", last=(3, 11))
def unary_positive(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(operators.unary(ev, "__pos__", frame.stack.pop()))


@opcode("UNARY_INVERT", "value -- value")
def unary_invert(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(operators.unary(ev, "__invert__", frame.stack.pop()))


@opcode("UNARY_NOT", "value -- bool")
def unary_not(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = ev.truth(frame.stack[-1])
    frame.stack[-1] = not value


@opcode("TO_BOOL", "value -- bool", first=(3, 13))
def to_bool(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = branch(ev, frame, frame.stack[-1])
    frame.stack[-1] = value


@opcode("BINARY_SUBSCR", "container index -- item")
def binary_subscr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    container, index = frame.pop_many(2)
    frame.stack.append(subscripts.subscript(ev, container, index))


@opcode("STORE_SUBSCR", "value container index --")
def store_subscr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value, container, index = frame.pop_many(3)
    subscripts.store_subscript(ev, container, index, value)


@opcode("DELETE_SUBSCR", "container index --")
def delete_subscr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    container, index = frame.pop_many(2)
    subscripts.delete_subscript(ev, container, index)


@opcode("BINARY_SLICE", "container start stop -- item", first=(3, 12))
def binary_slice(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    container, start, stop = frame.pop_many(3)
    frame.stack.append(subscripts.subscript(ev, container, slice(start, stop)))


@opcode("STORE_SLICE", "value container start stop --", first=(3, 12))
def store_slice(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value, container, start, stop = frame.pop_many(4)
    subscripts.store_subscript(ev, container, slice(start, stop), value)


@opcode("BUILD_SLICE", lambda inst: (inst.arg or 2, 1))
def build_slice(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(slice(*frame.pop_many(inst.arg or 2)))


_CONVERSIONS = {1: "__str__", 2: "__repr__", 3: "ascii"}


def _convert(ev: Interpreter, value: object, how: int) -> object:
    if how == 3:
        return ascii(texts.to_text(ev, value, "__repr__"))[1:-1]
    return texts.to_text(ev, value, _CONVERSIONS[how]) if how else value


@opcode("FORMAT_VALUE", lambda inst: (2 if (inst.arg or 0) & 4 else 1, 1), last=(3, 12))
def format_value(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    flags = inst.arg or 0
    spec = frame.stack.pop() if flags & 4 else ""
    value = _convert(ev, frame.stack.pop(), flags & 3)
    frame.stack.append(texts.format_value(ev, value, spec))


@opcode("CONVERT_VALUE", "value -- text", first=(3, 13))
def convert_value(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(_convert(ev, frame.stack.pop(), inst.arg or 0))


@opcode("FORMAT_SIMPLE", "value -- text", first=(3, 13))
def format_simple(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(texts.format_value(ev, frame.stack.pop(), ""))


@opcode("FORMAT_WITH_SPEC", "value spec -- text", first=(3, 13))
def format_with_spec(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value, spec = frame.pop_many(2)
    frame.stack.append(texts.format_value(ev, value, spec))


@opcode("BUILD_STRING", "part* -- text")
def build_string(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append("".join(frame.pop_many(inst.arg or 0)))
