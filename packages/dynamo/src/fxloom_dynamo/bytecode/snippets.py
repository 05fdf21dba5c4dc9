"""Short sequences of new instructions that replacement code is put together from, the same for all versions of CPython.

In: names, constants, counts. Out: a list of new instructions in the running version's spelling; a function's docstring says what
they take from and leave on the stack as `before -- after`.
Invariant: a callable that `call` calls was pushed by `push_callable`, since versions differ in where the NULL of the calling
convention stands: below the callable up to 3.12, above it in 3.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fxloom_dynamo.bytecode.instruction import Instruction
from fxloom_dynamo.bytecode.opcode_facts import VERSION

NULL_FIRST = VERSION < (3, 13)


def load_const(value: Any) -> list[Instruction]:
    """-- value"""
    return [Instruction("LOAD_CONST", argval=value)]


def load_fast(name: str) -> list[Instruction]:
    """-- value"""
    return [Instruction("LOAD_FAST", argval=name)]


def store_fast(name: str) -> list[Instruction]:
    """value --"""
    return [Instruction("STORE_FAST", argval=name)]


def delete_fast(name: str) -> list[Instruction]:
    """--, and the variable is unbound"""
    return [Instruction("DELETE_FAST", argval=name)]


def load_deref(name: str) -> list[Instruction]:
    """-- value"""
    return [Instruction("LOAD_DEREF", argval=name)]


def store_deref(name: str) -> list[Instruction]:
    """value --"""
    return [Instruction("STORE_DEREF", argval=name)]


def load_cell(name: str) -> list[Instruction]:
    """-- cell (the cell object of a cell or free variable)"""
    return [Instruction("LOAD_CLOSURE" if VERSION < (3, 13) else "LOAD_FAST", argval=name)]


def load_global(name: str) -> list[Instruction]:
    """-- value"""
    return [Instruction("LOAD_GLOBAL", argval=name)]


def store_global(name: str) -> list[Instruction]:
    """value --"""
    return [Instruction("STORE_GLOBAL", argval=name)]


def load_attr(name: str) -> list[Instruction]:
    """object -- value"""
    return [Instruction("LOAD_ATTR", argval=name)]


def store_attr(name: str) -> list[Instruction]:
    """value object --"""
    return [Instruction("STORE_ATTR", argval=name)]


def push_callable(load: Sequence[Instruction]) -> list[Instruction]:
    """-- callable NULL (in the version's order); `load` pushes the callable"""
    null = Instruction("PUSH_NULL")
    return [null, *load] if NULL_FIRST else [*load, null]


def push_null_below() -> list[Instruction]:
    """callable -- callable NULL (in the version's order)"""
    null = Instruction("PUSH_NULL")
    return [null, *swap(2)] if NULL_FIRST else [null]


def call(positional: int, keywords: Sequence[str] = ()) -> list[Instruction]:
    """callable NULL arguments... -- result; `positional` counts those without a name, named ones come last"""
    count = positional + len(keywords)
    if VERSION >= (3, 13):
        if not keywords:
            return [Instruction("CALL", count)]
        return [*load_const(tuple(keywords)), Instruction("CALL_KW", count)]
    out = [Instruction("KW_NAMES", argval=tuple(keywords))] if keywords else []
    if VERSION == (3, 11):
        out.append(Instruction("PRECALL", count))
    return [*out, Instruction("CALL", count)]


def call_star(has_keywords: bool = False) -> list[Instruction]:
    """callable NULL tuple [dict] -- result

    On 3.11 and 3.12 CALL_FUNCTION_EX wants the NULL below the callable, on 3.13 above it, like `call`.
    """
    return [Instruction("CALL_FUNCTION_EX", int(has_keywords))]


def build_tuple(count: int) -> list[Instruction]:
    """values... -- tuple"""
    return [Instruction("BUILD_TUPLE", count)]


def build_list(count: int) -> list[Instruction]:
    """values... -- list"""
    return [Instruction("BUILD_LIST", count)]


def build_set(count: int) -> list[Instruction]:
    """values... -- set"""
    return [Instruction("BUILD_SET", count)]


def build_map(count: int) -> list[Instruction]:
    """key value key value ... -- dict; count: of pairs"""
    return [Instruction("BUILD_MAP", count)]


def unpack_sequence(count: int) -> list[Instruction]:
    """sequence -- values..., the first on top"""
    return [Instruction("UNPACK_SEQUENCE", count)]


def subscript() -> list[Instruction]:
    """container key -- value"""
    return [Instruction("BINARY_SUBSCR")]


def store_subscript() -> list[Instruction]:
    """value container key --"""
    return [Instruction("STORE_SUBSCR")]


def delete_subscript() -> list[Instruction]:
    """container key --"""
    return [Instruction("DELETE_SUBSCR")]


def copy(depth: int) -> list[Instruction]:
    """Push a copy of the value `depth` from the top (1: the top itself)."""
    return [Instruction("COPY", depth)]


def swap(depth: int) -> list[Instruction]:
    """Exchange the top with the value `depth` from the top (2: the one below)."""
    return [Instruction("SWAP", depth)]


def pop() -> list[Instruction]:
    """value --"""
    return [Instruction("POP_TOP")]


def return_value() -> list[Instruction]:
    """value --, and the frame ends"""
    return [Instruction("RETURN_VALUE")]


def jump(target: Instruction) -> list[Instruction]:
    """Go to `target`, which may lie before or behind."""
    return [Instruction("JUMP", target=target)]


def to_bool() -> list[Instruction]:
    """value -- bool; needed before `jump_if` unless the value is a bool already"""
    if VERSION >= (3, 13):
        return [Instruction("TO_BOOL")]
    return [Instruction("UNARY_NOT"), Instruction("UNARY_NOT")]


def jump_if(condition: bool, target: Instruction) -> list[Instruction]:
    """bool --, go to `target` when it is `condition`"""
    return [Instruction("POP_JUMP_IF_TRUE" if condition else "POP_JUMP_IF_FALSE", target=target)]


CLOSURE_FLAG = 8


def make_function(code: Any, *, closure: Sequence[str] = ()) -> list[Instruction]:
    """-- function; with the running frame's globals and, by name, its cells as closure

    `code.co_freevars` has to be `closure`, in order. No defaults.
    """
    out: list[Instruction] = []
    for name in closure:
        out += load_cell(name)
    if closure:
        out += build_tuple(len(closure))
    out += load_const(code)
    if VERSION >= (3, 13):
        out.append(Instruction("MAKE_FUNCTION"))
        if closure:
            out += [Instruction("SET_FUNCTION_ATTRIBUTE", CLOSURE_FLAG)]
        return out
    return [*out, Instruction("MAKE_FUNCTION", CLOSURE_FLAG if closure else 0)]


def prologue(*, freevars: int = 0, cells: Sequence[str] = ()) -> list[Instruction]:
    """What a new function's code starts with: COPY_FREE_VARS, MAKE_CELL for each cell, RESUME."""
    out = [Instruction("COPY_FREE_VARS", freevars)] if freevars else []
    out += [Instruction("MAKE_CELL", argval=name) for name in cells]
    return [*out, Instruction("RESUME", 0)]
