"""Opcode handlers for generators and `yield from`; those of coroutines are breaks.

In: an instruction and the frame of a generator's function. Out: RETURN with a `TracedGenerator` where the frame is made, YIELD
with `frame.result` where it is suspended, else the stack as CPython leaves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.interpreter import special_methods
from fxloom_dynamo.interpreter.generators import TracedGenerator
from fxloom_dynamo.objects.sentinels import ABSENT, RETURN, YIELD, Raised, Sentinel

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("RETURN_GENERATOR", "-- value")
def return_generator(ev: Interpreter, frame: Frame, inst: Instruction) -> Sentinel:
    frame.result = TracedGenerator(ev, frame)
    return RETURN


@opcode("YIELD_VALUE", "value -- sent")
def yield_value(ev: Interpreter, frame: Frame, inst: Instruction) -> Sentinel:
    frame.result = frame.stack.pop()
    return YIELD


@opcode("SEND", "value -- value")
def send(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    index = frame.ip - 1
    value = frame.stack.pop()
    receiver = frame.stack[-1]
    try:
        if type(receiver) is TracedGenerator:
            item = receiver.advance(value)
        elif value is None:
            own = special_methods.python_method(ev, receiver, "__next__")
            item = ev.next(receiver) if own is ABSENT else ev.call(own, [receiver])  # its StopIteration may have a value
            if item is ABSENT:
                raise Raised(StopIteration())
        else:
            item = ev.call(ev.getattr(receiver, "send"), [value])
    except Raised as raised:
        if not isinstance(raised.exc, StopIteration):
            raise
        target = frame.info.targets[index]
        if frame.info.body.instructions[target].opname == "END_SEND":
            frame.stack.append(raised.exc.value)
        else:
            frame.stack[-1] = raised.exc.value
        frame.ip = target
        return
    frame.stack.append(item)


@opcode("END_SEND", "receiver value -- value", first=(3, 12))
def end_send(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


@opcode("CLEANUP_THROW", "receiver sent exception -- none value", first=(3, 12))
def cleanup_throw(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    exc = frame.stack[-1]
    if not isinstance(exc, StopIteration):
        raise Raised(exc)
    frame.pop_many(3)
    frame.stack.extend((None, exc.value))


def _asynchronous(ev: Interpreter, frame: Frame, inst: Instruction) -> Any:
    graph_break("async", inst.opname)


for _name, _effect, _first, _last in (
    ("GET_AWAITABLE", "value -- iterator", (3, 11), (3, 13)),
    ("GET_AITER", "value -- iterator", (3, 11), (3, 13)),
    ("GET_ANEXT", "-- awaitable", (3, 11), (3, 13)),
    ("BEFORE_ASYNC_WITH", "manager -- exit awaitable", (3, 11), (3, 13)),
    ("END_ASYNC_FOR", "iterator exception --", (3, 11), (3, 13)),
    ("ASYNC_GEN_WRAP", "value -- value", (3, 11), (3, 11)),
):
    opcode(_name, _effect, first=_first, last=_last)(_asynchronous)
