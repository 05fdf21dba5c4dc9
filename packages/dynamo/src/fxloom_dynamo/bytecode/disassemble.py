"""Disassembly: read a code object's bytecode as instructions that can be moved and edited.

In: a code object. Out: a `Body`, whose instructions refer to names, constants and each other in place of indices and offsets,
with its exception regions. EXTENDED_ARG and CACHE entries are gone and opcode names are normalized (see `opcode_facts`).
Invariant: `assemble` is the inverse. The code object stays as it is, and each call gives instructions of its own.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

from fxloom_dynamo.bytecode import opcode_facts
from fxloom_dynamo.bytecode.instruction import Body, ExceptionRegion, Instruction, Position

_EXTENDED_ARG = opcode_facts.OPMAP["EXTENDED_ARG"]
_CACHE = opcode_facts.OPMAP["CACHE"]


def disassemble(code: CodeType, *, split_pairs: bool = True) -> Body:
    """The instructions of `code`, fresh on every call.

    split_pairs: read 3.13's two-variable instructions as two.
    """
    raw = code.co_code  # specialised and instrumented opcodes already undone by CPython
    variables = localsplus_names(code)
    positions = [Position(*entry) for entry in code.co_positions()]
    instructions: list[Instruction] = []
    at_offset: dict[int, Instruction] = {}  # start of the instruction, prefixes included
    jumps: list[tuple[Instruction, int]] = []
    arg, start = 0, 0
    for offset in range(0, len(raw), 2):
        op = raw[offset]
        if op == _CACHE:
            start = offset + 2
            continue
        arg |= raw[offset + 1]
        if op == _EXTENDED_ARG:
            at_offset.setdefault(offset, None)  # type: ignore[arg-type]  # filled in below
            arg <<= 8
            continue
        opname = dis.opname[op]
        position = positions[offset // 2]
        if split_pairs and opname in opcode_facts.PAIRS:
            first, second = opcode_facts.PAIRS[opname]
            new = Instruction(first, argval=variables[arg >> 4], position=position, offset=offset)
            instructions += new, Instruction(second, argval=variables[arg & 15], position=position, offset=offset)
        else:
            new = _read(code, opname, arg, variables, position, offset)
            if opname in opcode_facts.IS_JUMP:
                after = offset + 2 + 2 * opcode_facts.CACHE_ENTRIES.get(opname, 0)
                jumps.append((new, after - 2 * arg if "BACKWARD" in opname else after + 2 * arg))
            instructions.append(new)
        for covered in range(start, offset + 2, 2):
            at_offset[covered] = new
        arg, start = 0, offset + 2
    for jump, target in jumps:
        jump.target = at_offset[target]
    return Body(instructions, _read_regions(code, instructions, at_offset, len(raw)))


def localsplus_names(code: CodeType) -> list[str]:
    """The frame's variables in order: locals, then cells that are no parameters, then free variables."""
    own = set(code.co_varnames)
    return [*code.co_varnames, *(name for name in code.co_cellvars if name not in own), *code.co_freevars]


def _read(code: CodeType, opname: str, arg: int, variables: list[str], position: Position, offset: int) -> Instruction:
    argval: Any = None
    number: int | None = arg
    push_null = False
    if opname in opcode_facts.HAS_CONST:
        argval, number = code.co_consts[arg], None
    elif opname in opcode_facts.HAS_VARIABLE:
        if opname in opcode_facts.PAIRS:
            argval = (variables[arg >> 4], variables[arg & 15])
        else:
            argval, number = variables[arg], None
    elif opname == "LOAD_GLOBAL" or (opname == "LOAD_ATTR" and opcode_facts.LOAD_ATTR_HAS_METHOD_BIT):
        argval, number, push_null = code.co_names[arg >> 1], None, bool(arg & 1)
    elif opname == "LOAD_SUPER_ATTR":
        argval, number = code.co_names[arg >> 2], arg & 3
    elif opname in opcode_facts.HAS_NAME:
        argval, number = code.co_names[arg], None
    elif opname == "COMPARE_OP":
        argval = opcode_facts.compare_operator(arg)
    elif opname == "BINARY_OP":
        argval = opcode_facts.BINARY_OPERATORS[arg]
    elif opname in opcode_facts.IS_JUMP or opcode_facts.OPMAP[opname] < dis.HAVE_ARGUMENT:
        number = None
    return Instruction(opcode_facts.normalize_name(opname), number, argval, push_null, None, position, offset)


def _read_regions(
    code: CodeType, instructions: list[Instruction], at_offset: dict[int, Instruction], size: int
) -> list[ExceptionRegion]:
    regions = []
    index = {id(instruction): number for number, instruction in enumerate(instructions)}
    for start, end, handler, depth, lasti in read_exception_table(code.co_exceptiontable):
        if start == end:
            continue
        first = _at_or_after(at_offset, start, size)
        after = at_offset.get(end) or _at_or_after(at_offset, end, size)
        last = instructions[(index[id(after)] if after is not None else len(instructions)) - 1]
        if first is None or index[id(last)] < index[id(first)]:
            continue  # covers caches only
        regions.append(ExceptionRegion(first, last, at_offset[handler], depth, lasti))
    return regions


def _at_or_after(at_offset: dict[int, Instruction], offset: int, size: int) -> Instruction | None:
    while offset < size:
        if offset in at_offset:
            return at_offset[offset]
        offset += 2
    return None


def read_exception_table(table: bytes) -> list[tuple[int, int, int, int, bool]]:
    """Entries `(start, end, handler, depth, lasti)`, offsets in bytes, end exclusive.

    Format: Objects/exception_handling_notes.txt of CPython 3.11: 6-bit big-endian groups, bit 6 continues.
    """
    numbers = []
    value, fresh = 0, True
    for byte in table:
        value = (0 if fresh else value << 6) | (byte & 63)
        fresh = not byte & 64
        if fresh:
            numbers.append(value)
    entries = []
    for at in range(0, len(numbers), 4):
        start, length, handler, depth_lasti = numbers[at : at + 4]
        entries.append((2 * start, 2 * (start + length), 2 * handler, depth_lasti >> 1, bool(depth_lasti & 1)))
    return entries
