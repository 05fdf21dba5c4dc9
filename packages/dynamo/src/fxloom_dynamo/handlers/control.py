"""Opcode handlers for jumps, loops and returns.

In: an instruction and the frame. Out: `frame.ip` at the next instruction and the stack as after the jump; RETURN with
`frame.result` set ends the frame. A branch on a tensor asks `semantics.predictions` first. Instructions that no compiler emits
are breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.control_flow import exhausted_index
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.bytecode.opcode_facts import POPS_AFTER_END_FOR
from fxloom_dynamo.objects.sentinels import ABSENT, RETURN, Sentinel
from fxloom_dynamo.semantics.predictions import branch

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("JUMP_FORWARD", "--")
@opcode("JUMP_BACKWARD", "--")
@opcode("JUMP_BACKWARD_NO_INTERRUPT", "--")
def jump(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.ip = frame.info.targets[frame.ip - 1]


@opcode("POP_JUMP_IF_TRUE", "value --")
def pop_jump_if_true(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    taken = branch(ev, frame, frame.stack[-1])
    frame.stack.pop()
    if taken:
        frame.ip = frame.info.targets[frame.ip - 1]


@opcode("POP_JUMP_IF_FALSE", "value --")
def pop_jump_if_false(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    taken = not branch(ev, frame, frame.stack[-1])
    frame.stack.pop()
    if taken:
        frame.ip = frame.info.targets[frame.ip - 1]


@opcode("POP_JUMP_IF_NONE", "value --")
def pop_jump_if_none(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if frame.stack.pop() is None:
        frame.ip = frame.info.targets[frame.ip - 1]


@opcode("POP_JUMP_IF_NOT_NONE", "value --")
def pop_jump_if_not_none(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if frame.stack.pop() is not None:
        frame.ip = frame.info.targets[frame.ip - 1]


@opcode("JUMP_IF_TRUE_OR_POP", "value --", last=(3, 11))
def jump_if_true_or_pop(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if ev.truth(frame.stack[-1]):
        frame.ip = frame.info.targets[frame.ip - 1]
    else:
        frame.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP", "value --", last=(3, 11))
def jump_if_false_or_pop(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if not ev.truth(frame.stack[-1]):
        frame.ip = frame.info.targets[frame.ip - 1]
    else:
        frame.stack.pop()


@opcode("GET_YIELD_FROM_ITER", "value -- iterator")  # coroutines, on which the two differ, are not evaluated
@opcode("GET_ITER", "value -- iterator")
def get_iter(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = ev.iter(frame.stack[-1])
    frame.stack[-1] = value


@opcode("FOR_ITER", "-- item")
def for_iter(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    index = frame.ip - 1
    item = ev.next(frame.stack[-1])
    if item is not ABSENT:
        frame.stack.append(item)
        return
    frame.stack.pop()
    frame.ip = exhausted_index(frame.info.body.instructions, frame.info.targets[index])


@opcode("END_FOR", lambda inst: (1, 0) if POPS_AFTER_END_FOR else (2, 0), first=(3, 12))
def end_for(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    """Only reached by code that jumps here with the loop's values on the stack."""
    frame.stack.pop()
    if not POPS_AFTER_END_FOR:
        frame.stack.pop()


@opcode("RETURN_VALUE", "value --")
def return_value(ev: Interpreter, frame: Frame, inst: Instruction) -> Sentinel:
    frame.result = frame.stack.pop()
    return RETURN


@opcode("RETURN_CONST", "--", first=(3, 12))
def return_const(ev: Interpreter, frame: Frame, inst: Instruction) -> Sentinel:
    frame.result = inst.argval
    return RETURN


@opcode("INTERPRETER_EXIT", "value --", first=(3, 12))
@opcode("ENTER_EXECUTOR", "--", first=(3, 13))
@opcode("EXIT_INIT_CHECK", "value --", first=(3, 13))
def never_compiled(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    graph_break("unsupported_opcode", inst.opname)
