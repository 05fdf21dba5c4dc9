"""The handler table against the running interpreter: every opcode has a handler, with the stack effect that dis tells."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator

import pytest
import torch

import fxloom_dynamo.handlers  # noqa: F401  # fills the registry
from fxloom_dynamo import _native, optimize
from fxloom_dynamo.bytecode import NORMALIZED_OPNAMES, Instruction, disassemble
from fxloom_dynamo.bytecode.handler_registry import HANDLERS, opcode, parse_effect
from fxloom_dynamo.bytecode.opcode_facts import IS_JUMP, NO_FALL_THROUGH, OPMAP, PSEUDO
from fxloom_interfaces.errors import Unsupported

VERSION = sys.version_info[:2]


def test_every_opcode_of_this_version_has_a_handler() -> None:
    missing = sorted(name for name in NORMALIZED_OPNAMES if name not in HANDLERS)
    assert missing == []


def test_version_ranges_are_those_of_the_interpreter() -> None:
    here = {name for name, entry in HANDLERS.items() if entry.first <= VERSION <= entry.last}
    assert here == set(NORMALIZED_OPNAMES)


@pytest.mark.parametrize("name", sorted(name for name in OPMAP if not name.startswith("INSTRUMENTED_")))
def test_native_code_has_the_same_facts(name: str) -> None:
    """The walk over call sites has its own table of jumps and ends (native/call_sites.cpp)."""
    if name in PSEUDO:
        pytest.skip("no code object has it")
    jumps, falls_through = _native.opcode_facts(OPMAP[name])
    assert jumps == (name in IS_JUMP)
    assert falls_through == (name not in NO_FALL_THROUGH)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _all_codes() -> Iterator[types.CodeType]:
    for module in (ast, asyncio.tasks, contextlib, dataclasses, functools, inspect, dis):
        yield from _codes(compile(inspect.getsource(module), module.__name__, "exec"))


#: their effect is counted in another place by dis: PRECALL shares CALL's, RETURN_GENERATOR's value is that of the caller
_COUNTED_ELSEWHERE = {"PRECALL", "CALL", "RETURN_GENERATOR", "YIELD_VALUE", "SEND", "MATCH_CLASS"}


def test_declared_effects_are_those_of_dis() -> None:
    checked: set[str] = set()
    for code in _all_codes():
        for inst in disassemble(code, split_pairs=True).instructions:
            if inst.opname in _COUNTED_ELSEWHERE or inst.offset is None:
                continue
            expected = _dis_effect(code, inst)
            if expected is None:
                continue
            taken, left = HANDLERS[inst.opname].effect(inst)
            assert left - taken == expected, f"{inst}: declared {left} - {taken}, dis says {expected}"
            checked.add(inst.opname)
    assert len(checked) > 60


@functools.lru_cache(maxsize=4096)
def _offsets(code: types.CodeType) -> dict[int, dis.Instruction]:
    return {inst.offset: inst for inst in dis.get_instructions(code)}


def _dis_effect(code: types.CodeType, inst: Instruction) -> int | None:
    known = _offsets(code).get(inst.offset or 0)
    if known is None or known.opname in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
        return None
    arg = known.arg if known.opcode >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(known.opcode, arg, jump=False)


def test_effects_are_parsed() -> None:
    assert parse_effect("a b -- c")(Instruction("X")) == (2, 1)
    assert parse_effect("item* -- list")(Instruction("X", 3)) == (3, 1)


def test_a_second_handler_is_refused() -> None:
    with pytest.raises(ValueError, match="two handlers for NOP"):
        opcode("NOP", "--")(lambda ev, frame, inst: None)


def test_an_opcode_without_a_handler_breaks_the_graph_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return ~(x + 1) * 2

    monkeypatch.delitem(HANDLERS, "UNARY_INVERT")
    x = torch.arange(3)
    assert torch.equal(optimize()(program)(x), program(x))  # no handler says what is on the stack: it runs as it is
    with pytest.raises(Unsupported, match=rf"UNARY_INVERT of Python {VERSION[0]}\.{VERSION[1]} has no handler"):
        optimize(fullgraph=True)(program)(x)
