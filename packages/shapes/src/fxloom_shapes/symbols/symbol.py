"""A symbol with the places that hold its number (`Symbol`), and a statement about symbols that a trace relied on (`SizeGuard`).

The symbol environment (`env`) makes both; dynamo turns the statements into guards, and makes their messages of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fxloom_interfaces.errors import Site
from fxloom_interfaces.sources import Source
from fxloom_shapes.expressions.polynomials import Atom
from fxloom_shapes.expressions.statements import Statement

#: sizes 0 and 1 behave unlike others (broadcasting, contiguity): they are never symbols
SPECIAL = (0, 1)
#: no size is larger; ranges end here instead of nowhere so that comparing with INT64_MAX asks nothing
LARGEST = (1 << 62) - 1


@dataclass(slots=True)
class Symbol:
    """One symbol. sources: all places that hold its number; every one is guarded to. hint: None for an unbacked one.

    pinned: the user asked for this dimension to be dynamic, so specializing it is an error; `label` names it then.
    promised: the range that the user gave; what the trace assumes of an unbacked one beyond it is checked at run time.
    computed_by: the program's expression that computes an unbacked symbol's number, for messages.
    """

    atom: Atom
    hint: int | float | None
    sources: list[Source] = field(default_factory=list)
    pinned: bool = False
    label: str = ""
    is_float: bool = False
    promised: tuple[int | None, int | None] = (None, None)
    computed_by: str = ""

    @property
    def name(self) -> str:
        return self.atom.text


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """A statement about symbols that the trace relied on.

    site: the user's line that asked. reason: why, where it isn't plain. message: the user's own, for when it does not hold, with
    `{}` for each of `numbers`, if there are any; error: the exception's name.
    """

    statement: Statement
    site: Site | None = None
    reason: str = ""
    message: str = ""
    error: str = "RuntimeError"
    numbers: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return str(self.statement)
