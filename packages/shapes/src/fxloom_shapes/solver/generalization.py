"""Size generalization: what a statement about unbacked sizes is for all sizes but 0 and 1 (here: ordinary sizes).

A kernel treats 0 and 1 apart (an empty reduction, an axis that is broadcast) and all other sizes alike. So its query is evaluated
at a few sizes without common factors, in all combinations; where the answers agree, that is the answer for ordinary sizes.
In: a statement or number, the range of each unbacked symbol. Out: the answers. This is an expectation, not a proof: the environment
has it checked when the program runs, unless no value depends on the answer (`is_about_strides`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fxloom_shapes.expressions.polynomials import Poly, const
from fxloom_shapes.expressions.statements import Relation, Statement
from fxloom_shapes.solver.constraints import Range

SIZES = (2, 3, 5, 24, 1000, 1 << 20)
#: of more unknown sizes than that nothing is concluded together
MOST_UNKNOWN = 3


def combinations(unknown: Mapping[str, Range]) -> Iterator[dict[str, int]]:
    """Ordinary sizes by name, in their ranges; none where a range has less than two of them, or there are too many names."""
    choices = [
        [(name, size) for size in SIZES if (low is None or low <= size) and (high is None or size <= high)]
        for name, (low, high) in unknown.items()
    ]
    if 1 <= len(choices) <= MOST_UNKNOWN and all(len(sizes) >= 2 for sizes in choices):
        yield from map(dict, itertools.product(*choices))


def truths(statement: Statement, unknown: Mapping[str, Range], hints: Mapping[str, Any]) -> set[bool]:
    """The truth values that a statement has for ordinary sizes."""
    return {statement.holds({**hints, **sizes}) for sizes in combinations(unknown)}


def truths_alike(statement: Statement, unknown: Iterable[str], hints: Mapping[str, Any]) -> set[bool]:
    """The truth values that a statement has where all that is unknown is one ordinary size."""
    return {statement.holds({**hints, **dict.fromkeys(unknown, size)}) for size in SIZES}


def values(poly: Poly, unknown: Mapping[str, Range], hints: Mapping[str, Any]) -> set[int]:
    """The numbers that a polynomial is for ordinary sizes."""
    return {poly.value({**hints, **sizes}) for sizes in combinations(unknown)}


def is_about_strides(statement: Statement) -> bool:
    """It is about strides, which alone are computed from max(size, 1): where a size of 0 or 1 makes a difference to it, no element
    is reached by that stride."""
    return isinstance(statement, Relation) and any(atom.kind == "Max" and const(1) in atom.args for atom in statement.poly.atoms())


def is_about_leading_part(statement: Statement) -> bool:
    """It is about what `x[:1]` leaves of an axis, min(size, 1) elements, or another part that ends with the axis."""
    return isinstance(statement, Relation) and any(atom.kind == "Min" for atom in statement.poly.atoms())
