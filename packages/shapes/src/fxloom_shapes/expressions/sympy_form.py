"""Polynomials as SymPy expressions of `fxloom_interfaces.expr`: the printed form, and what the loop IR speaks.

In: a polynomial. Out: the same number as a SymPy expression. What neither SymPy nor kernels compute (a rounded float, an
operation on bits) is a symbol there, whose number the program works out before it is used. Invariant: its name is the same in
every process.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import sympy

from fxloom_interfaces.expr import FloorDiv, Max, Min, Mod, symbol, value_symbol
from fxloom_shapes.expressions.polynomials import OPAQUE, SIGNED, Atom, Poly

_FUNCTIONS = {"FloorDiv": FloorDiv, "Mod": Mod, "Min": Min, "Max": Max}


@lru_cache(maxsize=8192)
def sympy_expr(poly: Poly) -> Any:
    """The same number as a SymPy expression; a SymPy Integer for a constant."""
    return sympy.Add(*[sympy.Mul(sympy.Integer(value), *[_atom(atom) for atom in monomial]) for monomial, value in poly.terms.items()])


def _atom(atom: Atom) -> Any:
    if not atom.kind:
        return value_symbol(atom.text) if atom.text.startswith(SIGNED) else symbol(atom.text)
    if atom.kind in OPAQUE:
        return value_symbol(opaque_name(atom))
    return _FUNCTIONS[atom.kind](*(sympy_expr(argument) for argument in atom.args))


def opaque_name(atom: Atom) -> str:
    """The name that the number of an atom of an `OPAQUE` kind has in programs: the same in every process."""
    return f"w{hashlib.blake2b(atom.text.encode(), digest_size=4).hexdigest()}"
