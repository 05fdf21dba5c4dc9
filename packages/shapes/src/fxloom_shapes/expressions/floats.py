"""Symbolic floats: expression trees over float symbols and integer polynomials. Evaluated, bounded, printed, never rewritten.

In: numbers, symbols and polynomials. Out: immutable trees; equal ones compare equal and hash alike. Rounding is Python's: an expression
is evaluated as it was written, since floats may not be reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fxloom_interfaces.symbolic_math import UNARY
from fxloom_shapes.expressions.polynomials import OPAQUE, Atom, Poly

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "quotient": lambda a, b: a / b if b else a * math.inf,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "abs": abs,
    "float": float,
    "round": round,
    **{name: getattr(math, name) for name in UNARY},
}
#: guards round floats to that many decimals at most
MOST_DIGITS = 22
_INFIX = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class FloatExpr:
    """kind: "symbol" (args: its atom), "const" (a float), "int" (a Poly), or an operation on float expressions."""

    kind: str
    args: tuple[Any, ...]

    def value(self, numbers: Mapping[str, Any]) -> Any:
        """The number when symbols have these values. KeyError for one that is missing."""
        if self.kind == "symbol":
            return numbers[self.args[0].text]
        if self.kind == "const":
            return self.args[0]
        if self.kind == "int":
            return self.args[0].value(numbers)
        return OPERATIONS[self.kind](*(argument.value(numbers) for argument in self.args))

    def symbols(self) -> dict[Atom, None]:
        if self.kind == "symbol":
            return {self.args[0]: None}
        if self.kind == "int":
            return self.args[0].symbols()  # type: ignore[no-any-return]  # args are anything
        if self.kind == "const":
            return {}
        return {name: None for argument in self.args for name in argument.symbols()}

    def atoms(self) -> dict[Atom, None]:
        """Atoms of the polynomials in it, and its symbols."""
        if self.kind == "int":
            return self.args[0].atoms()  # type: ignore[no-any-return]  # args are anything
        return self.symbols() if self.kind in ("symbol", "const") else {a: None for part in self.args for a in part.atoms()}

    def contains(self, wanted: Atom) -> bool:
        if self.kind in ("symbol", "const"):
            return self.args[0] is wanted
        return any(argument.contains(wanted) for argument in self.args)

    def rebuilt(self, simplify: Callable[[Poly], Poly]) -> FloatExpr:
        """With its polynomials simplified."""
        if self.kind == "int":
            return FloatExpr("int", (simplify(self.args[0]),))
        return self if self.kind in ("symbol", "const") else FloatExpr(self.kind, tuple(part.rebuilt(simplify) for part in self.args))

    def bounds(self, integers: Callable[[Poly], tuple[int | None, int | None]]) -> Bounds:
        """Numbers between which it lies; arithmetic rounds monotonically, so that of bounds bounds the result."""
        match self.kind:
            case "const":
                return self.args[0], self.args[0]
            case "int":
                low, high = integers(self.args[0])
                return -math.inf if low is None else float(low), math.inf if high is None else float(high)
        parts = [part.bounds(integers) for part in self.args] if self.kind in _BOUNDED else []
        if not parts or any(math.isnan(end) for part in parts for end in part):
            return _ANY
        (low, high), *rest = parts
        match self.kind:
            case "float":
                return low, high
            case "neg":
                return -high, -low
            case "sqrt":
                return (math.sqrt(low), math.sqrt(high)) if low >= 0 else _ANY
            case "add":
                return low + rest[0][0], high + rest[0][1]
            case "sub":
                return low - rest[0][1], high - rest[0][0]
            case "min" | "max":
                function = OPERATIONS[self.kind]
                return function(low, rest[0][0]), function(high, rest[0][1])
        if self.kind == "truediv" and rest[0][0] <= 0:
            return _ANY
        corners = [_corner(self.kind, a, b) for a in (low, high) for b in rest[0]]
        return min(corners), max(corners)

    def __str__(self) -> str:
        return text(self, {})


_BOUNDED = frozenset({"float", "neg", "sqrt", "add", "sub", "mul", "truediv", "min", "max"})


def _corner(kind: str, a: float, b: float) -> float:
    if kind == "mul":
        return 0.0 if a == 0 or b == 0 else a * b
    return 0.0 if math.isinf(b) else a / b


def text(expr: FloatExpr, names: Mapping[str, str]) -> str:
    """As a Python expression; names: what to call symbols otherwise than by their names."""
    if expr.kind == "symbol":
        return names.get(expr.args[0].text, expr.args[0].text)
    if expr.kind == "const":
        value = expr.args[0]
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if expr.kind == "int":
        return f"({python_text(expr.args[0], names)})"
    args = [text(argument, names) for argument in expr.args]
    if expr.kind in _INFIX:
        return f"({args[0]} {_INFIX[expr.kind]} {args[1]})"
    if expr.kind == "quotient":
        return f"({args[0]} / {args[1]} if {args[1]} else {args[0]} * math.inf)"
    if expr.kind == "neg":
        return f"(-{args[0]})"
    name = expr.kind if expr.kind in ("min", "max", "abs", "float", "round") else f"math.{expr.kind}"
    return f"{name}({', '.join(args)})"


def python_text(poly: Poly, names: Mapping[str, str] | None = None) -> str:
    """A polynomial as a Python expression; names: what to call symbols otherwise than by their names."""
    parts = []
    for monomial, value in poly.terms.items():
        factors = [atom_text(atom, names or {}) for atom in monomial]
        if value != 1 or not factors:
            factors.insert(0, str(value))
        parts.append(" * ".join(factors))
    return " + ".join(parts) or "0"


_SPELLING = {
    "FloorDiv": "(({0}) // ({1}))", "Mod": "(({0}) % ({1}))", "Min": "min({0}, {1})", "Max": "max({0}, {1})",
    "Floor": "math.floor({0})", "Ceil": "math.ceil({0})", "Trunc": "math.trunc({0})", "Round": "round({0})",
    "And": "(({0}) & ({1}))", "Or": "(({0}) | ({1}))", "Xor": "(({0}) ^ ({1}))", "Power": "(({0}) ** ({1}))",
    "BitLength": "({0}).bit_length()", "Isqrt": "math.isqrt({0})", "Gcd": "math.gcd({0}, {1})",
}  # fmt: skip


def atom_text(atom: Atom, names: Mapping[str, str]) -> str:
    """An atom as a Python expression."""
    if not atom.kind:
        return names.get(atom.text, atom.text)
    return _SPELLING[atom.kind].format(
        *(text(part, names) if isinstance(part, FloatExpr) else python_text(part, names) for part in atom.args)
    )


def opaque_atoms(poly: Poly) -> dict[Atom, None]:
    """The atoms of `OPAQUE` kinds in a polynomial that stand in no other such atom, in order of appearance."""
    found: dict[Atom, None] = {}
    for atom in poly.atoms():
        if atom.kind in OPAQUE:
            found[atom] = None
        elif atom.kind:
            for argument in atom.args:
                found.update(opaque_atoms(argument))
    return found
