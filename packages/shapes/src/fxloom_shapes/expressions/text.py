"""Statements about sizes as Python expressions for messages: `x.size(0) % 2 == 0`, `n.item() <= 4`.

In: a statement and the program's names for its symbols. Out: a Python expression. Bounds of one number have it on the left.
"""

from __future__ import annotations

from collections.abc import Mapping

from fxloom_shapes.expressions.floats import FloatExpr, text
from fxloom_shapes.expressions.polynomials import Atom, Poly
from fxloom_shapes.expressions.statements import Comparison, Relation, Statement

_SPELLING = {"FloorDiv": "{0} // {1}", "Mod": "{0} % {1}", "And": "{0} & {1}", "Or": "{0} | {1}", "Xor": "{0} ^ {1}", "Power": "{0} ** {1}"}
_CALLED = {"Min": "min", "Max": "max", "Floor": "math.floor", "Ceil": "math.ceil", "Trunc": "math.trunc", "Round": "round",
           "Isqrt": "math.isqrt", "Gcd": "math.gcd", "BitLength": "int.bit_length"}  # fmt: skip
_MIRRORED = {">=": "<=", "==": "==", "!=": "!="}


def statement_text(statement: Statement, names: Mapping[str, str]) -> str:
    """See the module's docstring. names: symbol -> what to call it."""
    if isinstance(statement, Relation):
        return _relation(statement, names)
    if isinstance(statement, Comparison):
        args = [text(part, names) for part in statement.args]
        said = f"{args[0]} is finite" if statement.op == "finite" else f"{args[0]} {statement.op} {args[1]}"
        return said if statement.truth else f"not {said}"
    return "(" + f" {statement.kind} ".join(statement_text(part, names) for part in statement.parts) + ")"


def _relation(statement: Relation, names: Mapping[str, str]) -> str:
    left = Poly({monomial: value for monomial, value in statement.poly.terms.items() if value > 0})
    right = Poly({monomial: -value for monomial, value in statement.poly.terms.items() if value < 0})
    op = statement.op
    if left.constant is not None and right.constant is None:
        left, right, op = right, left, _MIRRORED[op]
    return f"{_poly(left, names)} {op} {_poly(right, names)}"


def number_text(poly: Poly, names: Mapping[str, str]) -> str:
    """A number likewise."""
    return _poly(poly, names)


def _poly(poly: Poly, names: Mapping[str, str]) -> str:
    said = ""
    for monomial, value in poly.terms.items():
        factors = [_atom(atom, names) for atom in monomial]
        if len(factors) + (abs(value) != 1) > 1:
            factors = [f"({factor})" if " " in factor and not factor.endswith(")") else factor for factor in factors]
        if abs(value) != 1 or not factors:
            factors.insert(0, str(abs(value)))
        term = " * ".join(factors)
        said = f"{said} {'-' if value < 0 else '+'} {term}" if said else f"-{term}" if value < 0 else term
    return said or "0"


def _atom(atom: Atom, names: Mapping[str, str]) -> str:
    if not atom.kind:
        return names.get(atom.text, atom.text)
    parts = [text(part, names) if isinstance(part, FloatExpr) else _poly(part, names) for part in atom.args]
    if atom.kind in _CALLED:
        return f"{_CALLED[atom.kind]}({', '.join(parts)})"
    return _SPELLING[atom.kind].format(*(f"({part})" if " " in part else part for part in parts))
