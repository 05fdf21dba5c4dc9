"""Symbolic floats: expression trees over float symbols and integer polynomials. Evaluated, printed, never simplified."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fxloom_shapes.poly import Atom, Poly

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "abs": abs,
    "float": float,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}


@dataclass(frozen=True, slots=True)
class Real:
    """kind: "symbol" (args: its name), "const" (a float), "int" (a Poly), or an operation on Reals."""

    kind: str
    args: tuple[Any, ...]

    def value(self, numbers: Mapping[str, Any]) -> Any:
        """The number when symbols have these values. KeyError for one that is missing."""
        if self.kind == "symbol":
            return numbers[self.args[0]]
        if self.kind == "const":
            return self.args[0]
        if self.kind == "int":
            return self.args[0].value(numbers)
        return OPERATIONS[self.kind](*(argument.value(numbers) for argument in self.args))

    def symbols(self) -> dict[str, None]:
        if self.kind == "symbol":
            return {self.args[0]: None}
        if self.kind == "int":
            return {atom.text: None for atom in self.args[0].symbols()}
        if self.kind == "const":
            return {}
        return {name: None for argument in self.args for name in argument.symbols()}

    def __str__(self) -> str:
        if self.kind in ("symbol", "const"):
            return str(self.args[0])
        if self.kind == "int":
            return f"({python_text(self.args[0])})"
        if self.kind in _INFIX:
            return f"({self.args[0]} {_INFIX[self.kind]} {self.args[1]})"
        if self.kind == "neg":
            return f"(-{self.args[0]})"
        name = self.kind if self.kind in ("min", "max", "abs", "float") else f"math.{self.kind}"
        return f"{name}({', '.join(str(argument) for argument in self.args)})"


def python_text(poly: Poly) -> str:
    """A polynomial as a Python expression over its symbols."""
    parts = []
    for monomial, value in poly.terms.items():
        factors = [_atom_text(atom) for atom in monomial]
        if value != 1 or not factors:
            factors.insert(0, str(value))
        parts.append(" * ".join(factors))
    return " + ".join(parts) or "0"


def _atom_text(atom: Atom) -> str:
    if not atom.kind:
        return atom.text
    a, b = (python_text(argument) for argument in atom.args)
    if atom.kind in ("Min", "Max"):
        return f"{atom.kind.lower()}({a}, {b})"
    return f"(({a}) {'//' if atom.kind == 'FloorDiv' else '%'} ({b}))"
