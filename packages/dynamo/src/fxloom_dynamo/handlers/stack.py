"""Opcode handlers that only move values: constants, copies, swaps, and instructions that do nothing.

In: an instruction and the frame. Out: the frame's value stack, changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.objects.sentinels import NULL

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("NOP", "--")
@opcode("RESUME", "--")
def nothing(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    pass


@opcode("PRECALL", lambda inst: (0, 0), last=(3, 11))
def precall(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    """Only CALL, which follows, does something. (dis counts PRECALL's share of the effect; see the test.)"""


@opcode("LOAD_CONST", "-- value")
def load_const(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(inst.argval)


@opcode("PUSH_NULL", "-- null")
def push_null(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(NULL)


@opcode("POP_TOP", "value --")
def pop_top(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.pop()


@opcode("COPY", "-- value")
def copy(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.stack[-inst.arg])  # type: ignore[operator]  # COPY has an argument


@opcode("SWAP", "--")
def swap(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    stack, at = frame.stack, inst.arg or 1
    stack[-1], stack[-at] = stack[-at], stack[-1]


@opcode("LOAD_ASSERTION_ERROR", "-- class")
def load_assertion_error(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(AssertionError)
