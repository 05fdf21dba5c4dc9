"""Variables: locals, cells, globals, class namespaces, imports.

In: operands on the frame's stack and names in the instruction. Out: the stack and the frame's variables as CPython leaves them.
Invariant: a handler moves values; what an operation means is decided in `semantics` and in the shadow heap, which also leave the guards.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.bytecode.snippets import NULL_FIRST
from fxloom_dynamo.interpreter.frame import UnreadParameter
from fxloom_dynamo.interpreter.frame_locals import unbound_error
from fxloom_dynamo.models import interpreter
from fxloom_dynamo.objects.sentinels import ABSENT, DELETED, NULL, Raised
from fxloom_dynamo.semantics import subscripts
from fxloom_interfaces.sources import ClosureCellSource, ClosureSource

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("LOAD_FAST", "-- value")
@opcode("LOAD_FAST_CHECK", "-- value", first=(3, 12))
@opcode("LOAD_CLOSURE", "-- cell", last=(3, 12))
def load_fast(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = frame.locals.get(inst.argval, ABSENT)
    if type(value) is UnreadParameter:
        value = ev.load_local(frame, inst.argval)
    elif value is ABSENT:
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{inst.argval}' where it is not associated with a value")
        )
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR", "-- value", first=(3, 12))
def load_fast_and_clear(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = ev.load_local(frame, inst.argval)
    frame.locals.pop(inst.argval, None)
    frame.stack.append(NULL if value is ABSENT else value)


@opcode("STORE_FAST", "value --")
def store_fast(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if inst.argval in ev.finalizable_locals and frame is ev.frames[0]:
        ev.drop_reference(inst.argval)
    value = frame.stack.pop()
    if value is NULL:
        frame.locals.pop(inst.argval, None)
    else:
        frame.locals[inst.argval] = value


@opcode("DELETE_FAST", "--")
def delete_fast(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if inst.argval not in frame.locals:
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{inst.argval}' where it is not associated with a value")
        )
    if inst.argval in ev.finalizable_locals and frame is ev.frames[0]:
        ev.drop_reference(inst.argval)
    del frame.locals[inst.argval]


@opcode("MAKE_CELL", "--")
def make_cell(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = ev.load_local(frame, inst.argval)
    cell = types.CellType() if value is ABSENT else types.CellType(value)
    frame.locals[inst.argval] = ev.heap.add_fresh(cell)


@opcode("COPY_FREE_VARS", "--")
def copy_free_vars(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    top = frame is ev.frames[0]
    for name, cell in zip(frame.code.co_freevars, frame.closure, strict=True):
        if top:
            cell = ev.heap.translate_cell(cell, ClosureCellSource(name), ClosureSource(name))
        frame.locals[name] = cell


def _unbound(name: str, frame: Frame) -> Raised:
    return Raised(unbound_error(name, frame.code))


@opcode("LOAD_DEREF", "-- value")
def load_deref(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = ev.heap.cell_get(frame.locals[inst.argval])
    if value is ABSENT:
        raise _unbound(inst.argval, frame)
    frame.stack.append(value)


@opcode("STORE_DEREF", "value --")
def store_deref(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.locals[inst.argval].cell_contents = frame.stack.pop()


@opcode("DELETE_DEREF", "--")
def delete_deref(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    cell = frame.locals[inst.argval]
    if ev.heap.cell_get(cell) is ABSENT:
        raise _unbound(inst.argval, frame)
    del cell.cell_contents


@opcode("LOAD_GLOBAL", lambda inst: (0, 2 if inst.push_null else 1))
def load_global(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    namespace = frame.namespace
    value = namespace.values.get(inst.argval, ABSENT) if namespace is not None else ABSENT
    if value is ABSENT or value is DELETED:
        value = ev.load_global(frame, inst.argval)
    if inst.push_null:
        if NULL_FIRST:
            frame.stack.append(NULL)
            frame.stack.append(value)
        else:
            frame.stack.append(value)
            frame.stack.append(NULL)
    else:
        frame.stack.append(value)


@opcode("STORE_GLOBAL", "value --")
def store_global(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    ev.global_namespace(frame).set(inst.argval, frame.stack.pop())


@opcode("DELETE_GLOBAL", "--")
def delete_global(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    namespace = ev.global_namespace(frame)
    if ev.heap.name_get(namespace, inst.argval) is ABSENT:
        raise Raised(NameError(f"name '{inst.argval}' is not defined"))
    namespace.set(inst.argval, DELETED)


@opcode("IMPORT_NAME", "level fromlist -- module")
def import_name(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    level, fromlist = frame.pop_many(2)
    frame.stack.append(interpreter.import_module(ev, inst.argval, frame.globals, None, fromlist, level))


@opcode("IMPORT_FROM", "-- value")
def import_from(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    module = frame.stack[-1]
    value = ev.getattr_or(module, inst.argval, ABSENT)
    if value is ABSENT:
        import sys

        value = sys.modules.get(f"{module.__name__}.{inst.argval}", ABSENT)
        if value is ABSENT:
            raise Raised(ImportError(f"cannot import name {inst.argval!r} from {module.__name__!r}"))
        value = ev.heap.adopt(value)
    frame.stack.append(value)


def _name_in(ev: Interpreter, names: Any, name: str) -> Any:
    """What a class body's or module's namespace has under `name`, ABSENT if nothing."""
    if type(names) is dict:
        return ev.heap.dict_get(names, name)
    try:
        return subscripts.subscript(ev, names, name)
    except Raised as raised:
        if isinstance(raised.exc, KeyError):
            return ABSENT
        raise


@opcode("LOAD_NAME", "-- value")
def load_name(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = _name_in(ev, frame.names, inst.argval)
    frame.stack.append(ev.load_global(frame, inst.argval) if value is ABSENT else value)


@opcode("STORE_NAME", "value --")
def store_name(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    subscripts.store_subscript(ev, frame.names, inst.argval, frame.stack.pop())


@opcode("DELETE_NAME", "--")
def delete_name(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    try:
        subscripts.delete_subscript(ev, frame.names, inst.argval)
    except Raised as raised:
        if isinstance(raised.exc, KeyError):
            raise Raised(NameError(f"name {inst.argval!r} is not defined")) from None
        raise


@opcode("LOAD_BUILD_CLASS", "-- function")
def load_build_class(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(ev.load_global(frame, "__build_class__"))


def _from_names_or_cell(ev: Interpreter, frame: Frame, names: Any, name: str) -> Any:
    value = _name_in(ev, names, name)
    if value is ABSENT:
        value = ev.heap.cell_get(frame.locals[name])
    if value is ABSENT:
        raise _unbound(name, frame)
    return value


@opcode("LOAD_CLASSDEREF", "-- value", last=(3, 11))
def load_classderef(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(_from_names_or_cell(ev, frame, frame.names, inst.argval))


@opcode("LOAD_FROM_DICT_OR_DEREF", "dict -- value", first=(3, 12))
def load_from_dict_or_deref(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(_from_names_or_cell(ev, frame, frame.stack.pop(), inst.argval))


@opcode("LOAD_LOCALS", "-- dict", first=(3, 12))
def load_locals(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.names)


@opcode("LOAD_FROM_DICT_OR_GLOBALS", "dict -- value", first=(3, 12))
def load_from_dict_or_globals(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    value = _name_in(ev, frame.stack.pop(), inst.argval)
    frame.stack.append(ev.load_global(frame, inst.argval) if value is ABSENT else value)


@opcode("SETUP_ANNOTATIONS", "--")
def setup_annotations(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    if _name_in(ev, frame.names, "__annotations__") is ABSENT:
        subscripts.store_subscript(ev, frame.names, "__annotations__", {})


def _module_body(ev: Interpreter, frame: Frame, inst: Instruction) -> Any:
    graph_break("unsupported_opcode", inst.opname)


for _name, _effect, _first, _last in (
    ("IMPORT_STAR", "module --", (3, 11), (3, 11)),
    ("PRINT_EXPR", "value --", (3, 11), (3, 11)),
):
    opcode(_name, _effect, first=_first, last=_last)(_module_body)
