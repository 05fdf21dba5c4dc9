"""Opcode handlers for attributes: load, store, delete, method loads and `super()` loads.

In: an instruction and the frame, with the object on its stack. Out: the stack with the value, and for methods the NULL of the
calling convention. What reading and writing mean is in `semantics.attributes` and `semantics.attribute_writes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.bytecode.snippets import NULL_FIRST
from fxloom_dynamo.objects.sentinels import NULL
from fxloom_dynamo.semantics import attribute_writes, attributes

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


def _push_method(frame: Frame, method: Any) -> None:
    """A method stands as a plain callable with NULL in the place of its receiver."""
    if NULL_FIRST:
        frame.stack.append(NULL)
        frame.stack.append(method)
    else:
        frame.stack.append(method)
        frame.stack.append(NULL)


@opcode("LOAD_ATTR", lambda inst: (1, 2 if inst.push_null else 1))
def load_attr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = attributes.load(ev, frame.stack.pop(), inst.argval)
    if inst.push_null:
        _push_method(frame, value)
    else:
        frame.stack.append(value)


@opcode("LOAD_METHOD", "object -- method receiver", last=(3, 11))
def load_method(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    _push_method(frame, attributes.load(ev, frame.stack.pop(), inst.argval))


@opcode("LOAD_SUPER_ATTR", lambda inst: (3, 2 if (inst.arg or 0) & 1 else 1), first=(3, 12))
def load_super_attr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    kind, cls, receiver = frame.pop_many(3)
    explicit = (inst.arg or 0) & 2
    bound = ev.call(kind, [cls, receiver] if explicit or kind is super else [])
    value = attributes.load(ev, bound, inst.argval)
    if (inst.arg or 0) & 1:
        _push_method(frame, value)
    else:
        frame.stack.append(value)


@opcode("STORE_ATTR", "value object --")
def store_attr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value, obj = frame.pop_many(2)
    attribute_writes.store(ev, obj, inst.argval, value)


@opcode("DELETE_ATTR", "object --")
def delete_attr(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    attribute_writes.delete(ev, frame.stack.pop(), inst.argval)
