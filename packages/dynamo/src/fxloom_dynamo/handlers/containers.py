"""Building, filling and unpacking containers; structural pattern matching.

In: operands on the frame's stack and names in the instruction. Out: the stack and the frame's variables as CPython leaves them.
Invariant: a handler moves values; what an operation means is decided in `semantics` and in the shadow heap, which also leave the guards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.handler_registry import opcode
from fxloom_dynamo.models import objects
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.semantics import container_updates, operators, subscripts

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


@opcode("BUILD_TUPLE", "item* -- tuple")
def build_tuple(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(tuple(frame.pop_many(inst.arg or 0)))


@opcode("BUILD_LIST", "item* -- list")
def build_list(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.pop_many(inst.arg or 0))


@opcode("BUILD_SET", "item* -- set")
def build_set(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    items = frame.pop_many(inst.arg or 0)
    frame.stack.append(ev.native(set, [subscripts.hashable(ev, item) for item in items]))


@opcode("BUILD_MAP", lambda inst: (2 * (inst.arg or 0), 1))
def build_map(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    items = frame.pop_many(2 * (inst.arg or 0))
    result: dict[Any, Any] = {}
    for key, value in zip(items[::2], items[1::2], strict=True):
        subscripts.store_subscript(ev, result, key, value)
    frame.stack.append(result)


@opcode("BUILD_CONST_KEY_MAP", lambda inst: ((inst.arg or 0) + 1, 1))
def build_const_key_map(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, frame.pop_many(inst.arg or 0), strict=True)))


@opcode("LIST_TO_TUPLE", "list -- tuple", last=(3, 11))
def list_to_tuple(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    items = frame.stack.pop()
    ev.heap.fill(items)  # of a continuation, the list is one that was there before
    frame.stack.append(tuple(items))


@opcode("LIST_APPEND", "item --")
def list_append(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    item = frame.stack.pop()
    list.append(frame.stack[-(inst.arg or 1)], item)


@opcode("SET_ADD", "item --")
def set_add(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    item = frame.stack.pop()
    ev.native(set.add, frame.stack[-(inst.arg or 1)], subscripts.hashable(ev, item))


@opcode("MAP_ADD", "key value --")
def map_add(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    key, value = frame.pop_many(2)
    subscripts.store_subscript(ev, frame.stack[-(inst.arg or 1)], key, value)


@opcode("LIST_EXTEND", "items --")
def list_extend(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    items = frame.stack.pop()
    container_updates.extend_list(ev, frame.stack[-(inst.arg or 1)], items)


@opcode("SET_UPDATE", "items --")
def set_update(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    items = [subscripts.hashable(ev, item) for item in ev.list_of(frame.stack.pop())]
    ev.native(set.update, frame.stack[-(inst.arg or 1)], items)


@opcode("DICT_UPDATE", "dict --")
def dict_update(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    other = frame.stack.pop()
    if not hasattr(ev.type_of(other), "keys"):
        raise Raised(TypeError(f"'{ev.type_of(other).__name__}' object is not a mapping"))
    container_updates.dict_update(ev, frame.stack[-(inst.arg or 1)], [other], {})


@opcode("DICT_MERGE", "dict --")
def dict_merge(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    other = frame.stack.pop()
    target = frame.stack[-(inst.arg or 1)]
    merged: dict[Any, Any] = {}
    if not hasattr(ev.type_of(other), "keys"):
        raise Raised(TypeError(f"argument after ** must be a mapping, not {ev.type_of(other).__name__}"))
    container_updates.dict_update(ev, merged, [other], {})
    for key, value in merged.items():
        if key in target:
            raise Raised(TypeError(f"got multiple values for keyword argument '{key}'"))
        target[key] = value


def _iterator_to_unpack(ev: Interpreter, value: Any) -> Any:
    try:
        return ev.iter(value)
    except Raised as raised:
        kind = ev.type_of(value)
        if type(raised.exc) is TypeError and not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
            raise Raised(TypeError(f"cannot unpack non-iterable {kind.__name__} object")) from None
        raise


@opcode("UNPACK_SEQUENCE", lambda inst: (1, inst.arg or 0))
def unpack_sequence(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    count = inst.arg or 0
    value = frame.stack[-1]
    if type(value) is tuple:
        items = list(value)
    elif type(value) is list:
        ev.heap.fill(value)
        items = list(value)
    else:
        iterator = _iterator_to_unpack(ev, value)
        items = []
        while len(items) <= count and (item := ev.next(iterator)) is not ABSENT:
            items.append(item)
    frame.stack.pop()
    if len(items) > count:
        raise Raised(ValueError(f"too many values to unpack (expected {count})"))
    if len(items) < count:
        raise Raised(ValueError(f"not enough values to unpack (expected {count}, got {len(items)})"))
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX", lambda inst: (1, ((inst.arg or 0) & 255) + ((inst.arg or 0) >> 8) + 1))
def unpack_ex(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    before, after = (inst.arg or 0) & 255, (inst.arg or 0) >> 8
    items = ev.list_of(_iterator_to_unpack(ev, frame.stack.pop()))
    if len(items) < before + after:
        raise Raised(
            ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
        )
    end = len(items) - after
    frame.stack.extend(reversed([*items[:before], items[before:end], *items[end:]]))


@opcode("GET_LEN", "-- length")
def get_len(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(operators.length(ev, frame.stack[-1]))


#: Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING (Include/object.h): what a class is to patterns, at most one of them
_IS_SEQUENCE, _IS_MAPPING = 1 << 5, 1 << 6


@opcode("MATCH_MAPPING", "-- bool")
def match_mapping(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(bool(ev.type_of(frame.stack[-1]).__flags__ & _IS_MAPPING))


@opcode("MATCH_SEQUENCE", "-- bool")
def match_sequence(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    frame.stack.append(bool(ev.type_of(frame.stack[-1]).__flags__ & _IS_SEQUENCE))


@opcode("MATCH_KEYS", "-- values")
def match_keys(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    subject, keys = frame.stack[-2], frame.stack[-1]
    values = []
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            raise Raised(ValueError(f"mapping pattern checks duplicate key ({key!r})"))
        seen.add(key)
        if not operators.contains(ev, key, subject):
            frame.stack.append(None)
            return
        values.append(subscripts.subscript(ev, subject, key))
    frame.stack.append(tuple(values))


_SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@opcode("MATCH_CLASS", "subject class names -- values")
def match_class(ev: Interpreter, frame: Frame, inst: Instruction) -> None:
    subject, cls, names = frame.pop_many(3)
    if not isinstance(cls, type):
        raise Raised(TypeError("called match pattern must be a class"))
    if not objects.is_instance(ev, subject, cls):
        frame.stack.append(None)
        return
    positional = inst.arg or 0
    values: list[Any] = []
    if positional:
        wanted = ev.getattr_or(cls, "__match_args__", ABSENT)
        if wanted is ABSENT:
            if positional != 1 or not issubclass(cls, _SELF_MATCHING):
                raise Raised(TypeError(f"{cls.__name__}() accepts 0 positional sub-patterns ({positional} given)"))
            values.append(subject)
        else:
            if type(wanted) is not tuple:
                kind = ev.type_of(wanted).__name__
                raise Raised(TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {kind})"))
            if len(wanted) < positional:
                plural = "" if len(wanted) == 1 else "s"
                raise Raised(
                    TypeError(f"{cls.__name__}() accepts {len(wanted)} positional sub-pattern{plural} ({positional} given)")
                )
            for name in wanted[:positional]:
                if not isinstance(name, str):
                    kind = ev.type_of(name).__name__
                    raise Raised(TypeError(f"__match_args__ elements must be strings (got {kind})"))
            names = (*wanted[:positional], *names)
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Raised(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"))
        value = ev.getattr_or(subject, name, ABSENT)
        if value is ABSENT:
            frame.stack.append(None)
            return
        values.append(value)
    frame.stack.append(tuple(values))
