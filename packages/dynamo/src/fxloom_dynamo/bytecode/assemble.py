"""From a `Body` to a code object: indices, jumps, EXTENDED_ARG, caches, exception table, line table, stack size.

In: a `Body`, whose jumps and exception ranges point at instructions, and the code object whose signature and flags are taken. Out: a new
code object for the running Python. AssemblyError for a body that can't be written. Invariant: assembling what `disassemble` read gives
code that does the same; only the layout, and which of several equal encodings is used, may be others.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import Any

from fxloom_dynamo.bytecode import opcode_facts
from fxloom_dynamo.bytecode.disassemble import localsplus_names
from fxloom_dynamo.bytecode.instruction import NOWHERE, Body, ExceptionRegion, Instruction, Position


class AssemblyError(Exception):
    """The body can't be written: an unknown opcode, a jump to nowhere, a stack that doesn't balance."""


def assemble(
    body: Body,
    template: CodeType,
    *,
    name: str | None = None,
    qualname: str | None = None,
    argcount: int | None = None,
    posonlyargcount: int | None = None,
    kwonlyargcount: int | None = None,
    flags: int | None = None,
    varnames: Sequence[str] | None = None,
    cellvars: Sequence[str] | None = None,
    freevars: Sequence[str] | None = None,
) -> CodeType:
    """A code object with the given body; whatever is not given is as in `template`.

    Constants and names of the template keep their indices (so the docstring stays), new ones are appended.
    Conditional jumps backwards are rewritten in `body` where the version has none. Raises AssemblyError.
    """
    varnames = tuple(template.co_varnames if varnames is None else varnames)
    code = template.replace(
        co_name=name if name is not None else template.co_name,
        co_qualname=qualname or name or template.co_qualname,
        co_argcount=template.co_argcount if argcount is None else argcount,
        co_posonlyargcount=template.co_posonlyargcount if posonlyargcount is None else posonlyargcount,
        co_kwonlyargcount=template.co_kwonlyargcount if kwonlyargcount is None else kwonlyargcount,
        co_flags=template.co_flags if flags is None else flags,
        co_nlocals=len(varnames),
        co_varnames=varnames,
        co_cellvars=tuple(template.co_cellvars if cellvars is None else cellvars),
        co_freevars=tuple(template.co_freevars if freevars is None else freevars),
    )
    instructions = body.instructions = _expand_backward_conditions(body.instructions)
    tables = _Tables(code)
    args = [tables.arg(instruction) for instruction in instructions]
    args, offsets, widths = _resolve_jumps(instructions, args)
    first_line = code.co_firstlineno
    return code.replace(
        co_code=_encode(instructions, args, widths),
        co_consts=tuple(tables.consts),
        co_names=tuple(tables.names),
        co_stacksize=stack_size(instructions, body.regions, args),
        co_exceptiontable=_encode_regions(body.regions, instructions, offsets, widths),
        co_linetable=_encode_positions(instructions, widths, first_line),
    )


class _Tables:
    """Constants, names and variables of the code being made."""

    def __init__(self, code: CodeType) -> None:
        self.consts: list[Any] = list(code.co_consts)
        self.names: list[str] = list(code.co_names)
        self._const_index: dict[Any, int] = {}
        for index, value in enumerate(self.consts):
            self._const_index.setdefault(_const_key(value), index)
        self._name_index = {name: index for index, name in enumerate(self.names)}
        variables = localsplus_names(code)
        self._variable_index = {name: index for index, name in enumerate(variables)}
        if len(self._variable_index) != len(variables):
            # only class bodies that use `__class__` in two ways
            raise AssemblyError(f"{code.co_qualname}: a name is both a cell and a free variable: {variables}")

    def arg(self, instruction: Instruction) -> int:
        """The number to encode; 0 for jumps, whose number depends on the layout."""
        opname = instruction.opname
        if instruction.target is not None:
            return 0
        if opname in opcode_facts.HAS_CONST:
            return self._const(instruction.argval)
        if opname in opcode_facts.HAS_VARIABLE:
            if opname in opcode_facts.PAIRS:
                first, second = instruction.argval
                return self._variable(first) << 4 | self._variable(second)
            return self._variable(instruction.argval)
        if opname == "LOAD_GLOBAL" or (opname == "LOAD_ATTR" and opcode_facts.LOAD_ATTR_HAS_METHOD_BIT):
            return self._name(instruction.argval) << 1 | instruction.push_null
        if opname == "LOAD_SUPER_ATTR":
            return self._name(instruction.argval) << 2 | (instruction.arg or 0)
        if opname in opcode_facts.HAS_NAME:
            return self._name(instruction.argval)
        if opname == "COMPARE_OP" and instruction.arg is None:
            return opcode_facts.compare_arg(instruction.argval)
        if opname == "BINARY_OP" and instruction.arg is None:
            return opcode_facts.BINARY_OPERATORS.index(instruction.argval)
        return instruction.arg or 0

    def _const(self, value: Any) -> int:
        key = _const_key(value)
        if key not in self._const_index:
            self._const_index[key] = len(self.consts)
            self.consts.append(value)
        return self._const_index[key]

    def _name(self, name: str) -> int:
        if name not in self._name_index:
            self._name_index[name] = len(self.names)
            self.names.append(name)
        return self._name_index[name]

    def _variable(self, name: str) -> int:
        try:
            return self._variable_index[name]
        except KeyError:
            raise AssemblyError(f"no variable {name!r} among {list(self._variable_index)}") from None


def _const_key(value: Any) -> Any:
    """Equal exactly for constants that can stand for each other: 1, 1.0, True and 0.0, -0.0 are all different."""
    kind = type(value)
    if kind in (int, str, bytes, bool, type(None), type(...)):
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)
    if kind is tuple:
        return kind, tuple(map(_const_key, value))
    return "object", id(value)


def _expand_backward_conditions(instructions: list[Instruction]) -> list[Instruction]:
    """From 3.12 on conditional jumps only go forward: write a backward one as its inverse around JUMP_BACKWARD."""
    if opcode_facts.VERSION == (3, 11):
        return instructions
    index = {id(instruction): number for number, instruction in enumerate(instructions)}
    expanded: list[Instruction] = []
    for number, instruction in enumerate(instructions):
        target = instruction.target
        if target is None or instruction.opname not in opcode_facts.CONDITIONAL_JUMPS or _index(index, target) > number:
            expanded.append(instruction)
            continue
        # The object itself is edited, since others may jump to it; written again, it is a forward jump already.
        instruction.opname, instruction.target = opcode_facts.inverse_jump(instruction.opname), instructions[number + 1]
        expanded += instruction, Instruction("JUMP_BACKWARD", target=target, position=instruction.position)
    return expanded


def _index(index: dict[int, int], target: Instruction) -> int:
    try:
        return index[id(target)]
    except KeyError:
        raise AssemblyError(f"jump or handler target {target} is not in the body") from None


def _resolve_jumps(
    instructions: list[Instruction], args: list[int]
) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
    """Numbers for jumps, offset of each instruction in code units, and (opcode, prefixes, caches) of each.

    A jump's length depends on the widths of what it jumps over and these on the jumps: widths only grow until it fits.
    """
    index = {id(instruction): number for number, instruction in enumerate(instructions)}
    args = list(args)
    targets = [-1 if i.target is None else _index(index, i.target) for i in instructions]
    widths: list[tuple[int, int, int]] = []
    for number, instruction in enumerate(instructions):
        opname = instruction.opname
        if targets[number] >= 0:
            opname = opcode_facts.directed_name(opname, targets[number] > number)
        if opname not in opcode_facts.OPMAP:
            raise AssemblyError(f"CPython {opcode_facts.VERSION} has no opcode {opname}")
        widths.append((opcode_facts.OPMAP[opname], _prefixes(args[number]), opcode_facts.CACHE_ENTRIES.get(opname, 0)))
    while True:
        offsets, at = [], 0
        for _, prefixes, caches in widths:
            offsets.append(at)
            at += prefixes + 1 + caches
        offsets.append(at)
        grown = False
        for number, target in enumerate(targets):
            if target < 0:
                continue
            op, prefixes, caches = widths[number]
            args[number] = abs(offsets[target] - offsets[number + 1])
            if target > number and offsets[target] < offsets[number + 1]:
                raise AssemblyError(f"{instructions[number]} jumps into itself")
            if (needed := _prefixes(args[number])) > prefixes:
                widths[number] = (op, needed, caches)
                grown = True
        if not grown:
            return args, offsets, widths


def _prefixes(arg: int) -> int:
    return 0 if arg < 1 << 8 else 1 if arg < 1 << 16 else 2 if arg < 1 << 24 else 3


def _encode(instructions: list[Instruction], args: list[int], widths: list[tuple[int, int, int]]) -> bytes:
    out = bytearray()
    extended = opcode_facts.OPMAP["EXTENDED_ARG"]
    for (op, prefixes, caches), arg in zip(widths, args, strict=True):
        for shift in range(prefixes, 0, -1):
            out += bytes((extended, arg >> (8 * shift) & 255))
        out += bytes((op, arg & 255))
        out += bytes(2 * caches)
    return bytes(out)


def stack_size(instructions: list[Instruction], regions: list[ExceptionRegion], args: list[int]) -> int:
    """The deepest the stack gets on any path, by flow over the instructions.

    AssemblyError when two paths reach an instruction with different depths.
    """
    index = {id(instruction): number for number, instruction in enumerate(instructions)}
    depths: list[int | None] = [None] * len(instructions)
    handler_of: dict[int, tuple[int, int]] = {}
    for region in regions:
        target = (_index(index, region.handler), region.depth + 1 + region.lasti)
        for number in range(_index(index, region.start), _index(index, region.end) + 1):
            handler_of[number] = target
    deepest = 0
    work = [(0, 0)]
    while work:
        number, depth = work.pop()
        while number < len(instructions):
            known = depths[number]
            if known is not None:
                if known != depth:
                    raise AssemblyError(f"{instructions[number]} is reached with {known} and with {depth} values on the stack")
                break
            depths[number] = depth
            instruction = instructions[number]
            handler = handler_of.get(number)
            if handler is not None:
                work.append(handler)
                deepest = max(deepest, handler[1])
            opname = instruction.opname
            forward = instruction.target is not None and index[id(instruction.target)] > number
            op = opcode_facts.OPMAP[opcode_facts.directed_name(opname, forward) if instruction.target is not None else opname]
            arg = args[number] if op >= dis.HAVE_ARGUMENT else None
            if instruction.target is not None:
                after_jump = depth + dis.stack_effect(op, arg, jump=True)
                deepest = max(deepest, after_jump)
                work.append((index[id(instruction.target)], after_jump))
            depth += dis.stack_effect(op, arg, jump=False)
            if opname == "RETURN_GENERATOR" and opcode_facts.VERSION < (3, 13):
                depth += 1  # the value sent on start; these versions' tables leave it out
            if depth < 0:
                raise AssemblyError(f"{instruction} takes more than the stack holds")
            deepest = max(deepest, depth)
            if opname in opcode_facts.NO_FALL_THROUGH:
                break
            number += 1
        else:
            raise AssemblyError("control runs off the end of the body")
    return deepest


def _encode_regions(
    regions: list[ExceptionRegion], instructions: list[Instruction], offsets: list[int], widths: list[tuple[int, int, int]]
) -> bytes:
    index = {id(instruction): number for number, instruction in enumerate(instructions)}
    entries = []
    for region in regions:
        first, last = _index(index, region.start), _index(index, region.end)
        if last < first:
            raise AssemblyError(f"exception region ends ({region.end}) before it starts ({region.start})")
        entries.append((offsets[first], offsets[last + 1] - offsets[first], offsets[_index(index, region.handler)], region))
    out = bytearray()
    covered = 0
    for start, length, handler, region in sorted(entries, key=lambda entry: entry[0]):
        if start < covered:
            raise AssemblyError(f"exception regions overlap at {region.start}")
        covered = start + length
        out += _varint(start, first=True) + _varint(length) + _varint(handler) + _varint(region.depth << 1 | region.lasti)
    return bytes(out)


def _varint(value: int, first: bool = False) -> bytes:
    groups = [value & 63]
    while value := value >> 6:
        groups.append(value & 63 | 64)
    groups.reverse()
    # all but the last group continue; bit 7 marks the start of an entry
    groups = [group | 64 for group in groups[:-1]] + [groups[-1] & 63]
    if first:
        groups[0] |= 128
    return bytes(groups)


def _encode_positions(instructions: list[Instruction], widths: list[tuple[int, int, int]], first_line: int) -> bytes:
    """co_linetable. Format: Objects/locations.md of CPython 3.11: entries of at most 8 code units each."""
    out = bytearray()
    line = first_line
    pending: Position = NOWHERE
    units = 0
    for instruction, (_, prefixes, caches) in zip(instructions, widths, strict=True):
        if units and instruction.position != pending:
            line = _write_position(out, pending, units, line)
            units = 0
        pending = instruction.position
        units += prefixes + 1 + caches
    if units:
        _write_position(out, pending, units, line)
    return bytes(out)


def _write_position(out: bytearray, position: Position, units: int, line: int) -> int:
    """Append entries for `units` code units at `position`; returns the line that the next entry counts from."""
    while units:
        length = min(units, 8)
        units -= length
        if position.line is None:
            out.append(0x80 | 15 << 3 | length - 1)
            continue
        has_columns = position.column is not None and position.end_column is not None
        out.append(0x80 | (14 if has_columns else 13) << 3 | length - 1)
        out += _signed(position.line - line)
        line = position.line
        if has_columns:
            assert position.column is not None and position.end_column is not None
            end_line = position.end_line if position.end_line is not None else position.line
            out += _little(end_line - position.line) + _little(position.column + 1) + _little(position.end_column + 1)
    return line


def _little(value: int) -> bytes:
    out = bytearray()
    while value >= 64:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return bytes(out)


def _signed(value: int) -> bytes:
    return _little(-value << 1 | 1 if value < 0 else value << 1)
