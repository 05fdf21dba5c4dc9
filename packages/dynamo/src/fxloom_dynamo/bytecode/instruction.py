"""The symbolic form of a code object's instructions: `disassemble` and `snippets` make it, handlers read it, `assemble` writes it.

Instructions refer to names, constants and each other, not to indices and offsets, so they can be moved and mixed. EXTENDED_ARG
and CACHE entries don't exist here. Some opcodes are normalised (see `opcode_facts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Position(NamedTuple):
    """A source range as `code.co_positions()` gives it: lines count from 1, columns in UTF-8 bytes from 0."""

    line: int | None
    end_line: int | None
    column: int | None
    end_column: int | None


NOWHERE = Position(None, None, None, None)


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction; compared and hashed by identity, since others point to it.

    opname: normalised name.
    arg: the raw number, where it is one (BUILD_LIST n, SWAP n, COMPARE_OP, BINARY_OP, CALL n, ...). Ignored by the
        assembler where `argval` or `target` says more, except in COMPARE_OP.
    argval: the constant of LOAD_CONST, RETURN_CONST and KW_NAMES; the variable or attribute name; the operator's
        text of COMPARE_OP (`<`) and BINARY_OP (`+=`).
    push_null: the low bit of LOAD_GLOBAL (a NULL is pushed for a call) and LOAD_ATTR (a method is loaded, 3.12).
    target: where a jump goes.
    offset: of the instruction in the code object it was read from, in bytes; None for a new one.
    """

    opname: str
    arg: int | None = None
    argval: Any = None
    push_null: bool = False
    target: Instruction | None = None
    position: Position = NOWHERE
    offset: int | None = None

    def __repr__(self) -> str:
        parts = [self.opname]
        if self.target is not None:
            parts.append(f"-> {self.target.opname}@{self.target.offset}")
        elif self.argval is not None:
            parts.append(repr(self.argval))
        elif self.arg is not None:
            parts.append(str(self.arg))
        if self.push_null:
            parts.append("+NULL")
        where = "" if self.offset is None else f"{self.offset:>4} "
        return f"<{where}{' '.join(parts)}>"


@dataclass(slots=True, eq=False)
class ExceptionRegion:
    """While one of the instructions `start` to `end` (both included) runs, an exception goes to `handler`.

    depth: what the stack is cut to. lasti: the raising instruction's offset is pushed below the exception.
    """

    start: Instruction
    end: Instruction
    handler: Instruction
    depth: int
    lasti: bool


@dataclass(slots=True)
class Body:
    """Instructions in order, and their exception regions, sorted by start and never overlapping."""

    instructions: list[Instruction]
    regions: list[ExceptionRegion] = field(default_factory=list)
