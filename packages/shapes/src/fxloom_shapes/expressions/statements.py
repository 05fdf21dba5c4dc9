"""Statements about numbers made of symbols: that a polynomial is zero or not negative, that floats compare, and what joins such.

In: polynomials and float expressions. Out: statements, or a bool where no knowledge about symbols is needed. Statements are
immutable; equal ones hash alike, so they serve as keys of guards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import Atom, Poly, const


@dataclass(frozen=True, slots=True)
class Relation:
    """`poly op 0`, op one of "==", "!=", ">="."""

    op: str
    poly: Poly

    def negated(self) -> Relation:
        if self.op == ">=":
            return Relation(">=", -self.poly - const(1))
        return Relation("!=" if self.op == "==" else "==", self.poly)

    def holds(self, numbers: Mapping[str, int]) -> bool:
        value = self.poly.value(numbers)
        return value >= 0 if self.op == ">=" else (value == 0) == (self.op == "==")

    def __str__(self) -> str:
        left = Poly({m: v for m, v in self.poly.terms.items() if v > 0})
        right = Poly({m: -v for m, v in self.poly.terms.items() if v < 0})
        return f"{left} {self.op} {right}"


@dataclass(frozen=True, slots=True)
class Logic:
    """Several statements: all of them ("and"), or one of them ("or")."""

    kind: str
    parts: tuple[Statement, ...]

    def negated(self) -> Logic:
        return Logic("or" if self.kind == "and" else "and", tuple(part.negated() for part in self.parts))

    def holds(self, numbers: Mapping[str, int]) -> bool:
        values = (part.holds(numbers) for part in self.parts)
        return all(values) if self.kind == "and" else any(values)

    def __str__(self) -> str:
        return "(" + f" {self.kind} ".join(str(part) for part in self.parts) + ")"


_HOLDS: dict[str, Callable[..., bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    "finite": math.isfinite,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`a op b` of floats, one of "==", "<", "<=", or that one is "finite", is as `truth` says (with NaN no order is another's
    negation). The prover knows no more of it than that it was stated."""

    op: str
    args: tuple[FloatExpr, ...]
    truth: bool = True

    def negated(self) -> Comparison:
        return Comparison(self.op, self.args, not self.truth)

    def holds(self, numbers: Mapping[str, Any]) -> bool:
        try:
            return _HOLDS[self.op](*[part.value(numbers) for part in self.args]) is self.truth
        except (ArithmeticError, ValueError, TypeError):  # no number: a division by zero, a logarithm of 0, a complex root
            if self.op == "finite":
                return not self.truth
            raise

    def __str__(self) -> str:
        text = f"{self.args[0]} is finite" if self.op == "finite" else f"{self.args[0]} {self.op} {self.args[1]}"
        return text if self.truth else f"not {text}"


Statement = Relation | Logic | Comparison


def relation(op: str, poly: Poly) -> Relation | bool:
    """`poly op 0` in lowest terms; a bool where that needs no knowledge about symbols."""
    value = poly.constant
    if value is not None:
        return value >= 0 if op == ">=" else (value == 0) == (op == "==")
    offset = poly.terms.get((), 0)
    varying = poly - const(offset)
    factor = varying.content()
    if factor > 1:
        if op == ">=":
            poly = Poly({m: v // factor for m, v in varying.terms.items()}) + const(offset // factor)
        elif offset % factor:
            return op == "!="
        else:
            poly = Poly({m: v // factor for m, v in poly.terms.items()})
    if op != ">=" and poly.key[0][1] < 0:
        poly = -poly
    return Relation(op, poly)


def symbols_of(statement: Statement) -> dict[Atom, None]:
    if isinstance(statement, Relation):
        return statement.poly.symbols()
    found: dict[Atom, None] = {}
    if isinstance(statement, Comparison):
        for expr in statement.args:
            found.update(expr.symbols())
        return found
    for part in statement.parts:
        found.update(symbols_of(part))
    return found


def both(a: Statement | bool, b: Statement | bool) -> Statement | bool:
    """a and b."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return Logic("and", (a, b))


def either(a: Statement | bool, b: Statement | bool) -> Statement | bool:
    """a or b."""
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return Logic("or", (a, b))
