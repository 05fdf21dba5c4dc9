"""Polynomials as SymPy expressions of `fxloom_interfaces.expr`: the printed form, and what the loop IR speaks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy

from fxloom_interfaces.expr import FloorDiv, Max, Min, Mod, symbol, value_symbol
from fxloom_shapes.env import SIGNED
from fxloom_shapes.poly import Atom, Poly

_FUNCTIONS = {"FloorDiv": FloorDiv, "Mod": Mod, "Min": Min, "Max": Max}


@lru_cache(maxsize=8192)
def sympy_expr(poly: Poly) -> Any:
    """The same number as a SymPy expression; a SymPy Integer for a constant."""
    return sympy.Add(*[sympy.Mul(sympy.Integer(value), *[_atom(atom) for atom in monomial]) for monomial, value in poly.terms.items()])


def _atom(atom: Atom) -> Any:
    if not atom.kind:
        return value_symbol(atom.text) if atom.text.startswith(SIGNED) else symbol(atom.text)
    return _FUNCTIONS[atom.kind](*(sympy_expr(argument) for argument in atom.args))
