"""Index and size expressions: Python ints where static, SymPy expressions over integer symbols where not.

All symbols are integers; sizes and axis symbols are non-negative, divisors positive. `FloorDiv` and `Mod` are our own SymPy
functions, since SymPy's `floor` and `Mod` simplify slowly and rewrite into forms that no index printer expects.
This module imports SymPy; nothing that `import fxloom_interfaces` reaches imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias

import sympy

#: An index or a size. Static ones are plain ints.
Expr: TypeAlias = "int | sympy.Expr"


class FloorDiv(sympy.Function):  # type: ignore[misc]  # SymPy is untyped
    """`a // b` rounding to minus infinity, for b > 0."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if b == 1:
            return a
        if a == 0:
            return sympy.Integer(0)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) // int(b))
        if a == b:
            return sympy.Integer(1)
        quotient, remainder = split_multiple(a, b)
        if remainder == 0:  # (b*q) // b -> q
            return quotient
        if quotient != 0:  # (b*q + r) // b -> q + r // b
            return quotient + cls(remainder, b)
        return None


class Mod(sympy.Function):  # type: ignore[misc]  # SymPy is untyped
    """`a % b` with the sign of b, for b > 0: the value lies in [0, b)."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if b == 1 or a == 0 or a == b:
            return sympy.Integer(0)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) % int(b))
        quotient, remainder = split_multiple(a, b)
        if remainder == 0:
            return sympy.Integer(0)
        if quotient != 0:  # (b*q + r) % b -> r % b
            return cls(remainder, b)
        return None


class Min(sympy.Function):  # type: ignore[misc]  # SymPy is untyped
    """The smaller of two integers."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a == b:
            return a
        return sympy.Integer(min(int(a), int(b))) if a.is_Integer and b.is_Integer else None


class Max(sympy.Function):  # type: ignore[misc]  # SymPy is untyped
    """The larger of two integers."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        if a == b:
            return a
        return sympy.Integer(max(int(a), int(b))) if a.is_Integer and b.is_Integer else None


@lru_cache(maxsize=4096)
def split_multiple(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """(q, r) with a == b*q + r, moving those terms of the sum `a` into q that are visibly integer multiples of b."""
    quotient: list[sympy.Expr] = []
    rest: list[sympy.Expr] = []
    for term in sympy.Add.make_args(a):
        part = _exact_quotient(term, b)
        if part is None:
            rest.append(term)
        else:
            quotient.append(part)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _exact_quotient(term: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """term / b when that is visibly an integer: b's constant divides term's and b's factors are among term's."""
    term_constant, term_factors = term.as_coeff_Mul()
    constant, factors = b.as_coeff_Mul()
    if not (term_constant.is_Integer and constant.is_Integer) or int(term_constant) % int(constant):
        return None
    left = list(sympy.Mul.make_args(term_factors))
    if factors != 1:
        for factor in sympy.Mul.make_args(factors):
            if factor not in left:
                return None
            left.remove(factor)
    return sympy.Integer(int(term_constant) // int(constant)) * sympy.Mul(*left)


@cache
def symbol(name: str) -> sympy.Symbol:
    """The non-negative integer symbol `name`; two calls give the same object."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


@cache
def value_symbol(name: str) -> sympy.Symbol:
    """An integer symbol of unknown sign: the value of an indirect index."""
    return sympy.Symbol(name, integer=True)


def normalize(expr: Any) -> Expr:
    """A plain int for a constant, the expression itself otherwise."""
    if isinstance(expr, int):
        return expr
    return int(expr) if expr.is_Integer else expr


def is_static(expr: Expr) -> bool:
    return isinstance(expr, int) or bool(expr.is_Integer)


def floor_div(a: Expr, b: Expr) -> Expr:
    """a // b for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return normalize(FloorDiv(sympy.sympify(a), sympy.sympify(b)))


def mod(a: Expr, b: Expr) -> Expr:
    """a % b for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return normalize(Mod(sympy.sympify(a), sympy.sympify(b)))


def product(sizes: Any) -> Expr:
    """The product of sizes; 1 for none."""
    result: Expr = 1
    for size in sizes:
        result = normalize(result * size)
    return result


def free_symbols(expr: Expr) -> frozenset[sympy.Symbol]:
    """Symbols of an expression; empty for ints."""
    return frozenset() if isinstance(expr, int) else frozenset(expr.free_symbols)


def substitute(expr: Expr, mapping: Mapping[Any, Expr]) -> Expr:
    """`expr` with symbols replaced at once, re-simplified."""
    if isinstance(expr, int):
        return expr
    return normalize(expr.xreplace({key: sympy.sympify(value) for key, value in mapping.items()}).expand())


def affine(expr: Expr) -> tuple[dict[sympy.Symbol, Expr], Expr] | None:
    """({symbol: coefficient}, offset) of a sum of symbols times ints; None when `expr` is anything else.

    Coefficients are ints: a product of two symbols is not affine here.
    """
    if isinstance(expr, int):
        return {}, expr
    coefficients: dict[sympy.Symbol, Expr] = {}
    offset = 0
    for term in sympy.Add.make_args(expr):
        constant, rest = term.as_coeff_Mul()
        if not constant.is_Integer:
            return None
        if rest == 1:
            offset += int(constant)
        elif rest.is_Symbol:
            coefficients[rest] = int(constant)
        else:
            return None
    return coefficients, offset


def stride_of(expr: Expr, axis: sympy.Symbol) -> Expr | None:
    """How far `expr` moves when `axis` grows by one; None when that is not constant."""
    if isinstance(expr, int) or axis not in expr.free_symbols:
        return 0
    step = normalize(sympy.expand(expr.xreplace({axis: axis + 1}) - expr))
    return None if axis in free_symbols(step) or not _is_polynomial(step) else step


def _is_polynomial(expr: Expr) -> bool:
    return isinstance(expr, int) or not expr.has(FloorDiv, Mod, Min, Max)
