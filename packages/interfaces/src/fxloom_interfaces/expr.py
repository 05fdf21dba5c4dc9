"""Index and size expressions: Python ints where static, SymPy expressions over integer symbols where not.

In: ints, symbols, expressions. Out: simplified expressions, facts about them (bounds, strides, affine form), and source text.
Invariant: all symbols are integers; sizes and axis symbols are non-negative, divisors positive. `FloorDiv` and `Mod` are our own
SymPy functions, since SymPy's `floor` and `Mod` simplify slowly and rewrite into forms that no index printer expects.

This module imports SymPy; nothing that `import fxloom_interfaces` reaches imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        if a == 0 or b == 0:  # b is 0 where a tensor is empty: nothing is computed with it
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
        if b in (0, 1) or a == 0 or a == b:  # b is 0 where a tensor is empty: nothing is computed with it
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
    """A plain int for a constant, the expression itself otherwise, with products of sums multiplied out.

    So equal sizes are equal expressions, which is how sizes are compared.
    """
    if isinstance(expr, int):
        return expr
    if expr.is_Mul and any(factor.is_Add or factor.is_Pow for factor in expr.args):
        expr = expr.expand()
    return int(expr) if expr.is_Integer else expr


def is_static(expr: Expr) -> bool:
    return isinstance(expr, int) or bool(expr.is_Integer)


def at_most_one(extent: Expr) -> bool:
    """True for 1, and for what `x[:1]` leaves of an axis that may be empty: of no element or one, it is broadcast like 1."""
    return extent == 1 or isinstance(extent, Min) and 1 in extent.args


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


def clamped(expr: Expr, low: Expr, high: Expr) -> Expr:
    """`expr` held between low and high."""
    return normalize(Min(Max(sympy.sympify(expr), sympy.sympify(low)), sympy.sympify(high)))


def product(sizes: Any) -> Expr:
    """The product of sizes; 1 for none."""
    result: Expr = 1
    for size in sizes:
        result = normalize(result * size)
    return result


#: Programs have few different indices and many loops that use them, so what is asked of an expression is remembered. An entry holds a
#: handful of nodes; the tables are large enough for the indices of one large program, and SymPy's own caches are as long.
_REMEMBERED = 1 << 15


def free_symbols(expr: Expr) -> frozenset[sympy.Symbol]:
    """Symbols of an expression; empty for ints."""
    return frozenset() if isinstance(expr, int) else _free_symbols(expr)


@lru_cache(maxsize=_REMEMBERED)
def _free_symbols(expr: sympy.Expr) -> frozenset[sympy.Symbol]:
    return frozenset(expr.free_symbols)


def substitute(expr: Expr, mapping: Mapping[Any, Expr]) -> Expr:
    """`expr` with symbols replaced at once, re-simplified."""
    if isinstance(expr, int):
        return expr
    return _substitute(expr, tuple(mapping.items()))


@lru_cache(maxsize=_REMEMBERED)
def _substitute(expr: sympy.Expr, mapping: tuple[tuple[Any, Expr], ...]) -> Expr:
    return normalize(expr.xreplace({key: sympy.sympify(value) for key, value in mapping}).expand())


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


def folds_columns(indices: Iterable[Expr], outer: Sequence[sympy.Symbol], inner: Sequence[sympy.Symbol]) -> bool:
    """Whether most of these reads, as far as they take one element for each point, step through memory along the outer axes.

    outer, inner: axes of a fold and of what is folded, innermost last.
    """
    if not outer or not inner:
        return False
    folded = set(inner)
    moving = [index for index in indices if outer[-1] in free_symbols(index) and not folded.isdisjoint(free_symbols(index))]
    return sum((stride_of(index, outer[-1]) == 1) - (stride_of(index, inner[-1]) == 1) for index in moving) > 0


def _is_polynomial(expr: Expr) -> bool:
    return isinstance(expr, int) or not expr.has(FloorDiv, Mod, Min, Max)


def bounds(expr: Expr, extents: Mapping[Any, Expr]) -> tuple[int | None, int | None]:
    """(lowest, highest) value of `expr` when each symbol s runs over [0, extents[s]); None where not known."""
    if isinstance(expr, int):
        return expr, expr
    if expr.is_Integer:
        return int(expr), int(expr)
    low: int | None
    high: int | None
    if expr.is_Symbol:
        extent = extents.get(expr)
        low = 0 if expr.is_nonnegative else None
        return low, (extent - 1 if isinstance(extent, int) else None)
    if expr.is_Add:
        low, high = 0, 0
        for term in expr.args:
            term_low, term_high = bounds(term, extents)
            low = None if low is None or term_low is None else low + term_low
            high = None if high is None or term_high is None else high + term_high
        return low, high
    if expr.is_Mul:
        low, high = 1, 1
        for factor in expr.args:
            factor_low, factor_high = bounds(factor, extents)
            low, high = _multiply((low, high), (factor_low, factor_high))
        return low, high
    if isinstance(expr, FloorDiv) and expr.args[1].is_Integer:
        divisor = int(expr.args[1])
        low, high = bounds(expr.args[0], extents)
        return (None if low is None else low // divisor), (None if high is None else high // divisor)
    if isinstance(expr, Mod) and expr.args[1].is_Integer:
        divisor = int(expr.args[1])
        low, high = bounds(expr.args[0], extents)
        inside = low is not None and high is not None and low >= 0 and high < divisor
        return (low, high) if inside else (0, divisor - 1)
    return (0 if expr.is_nonnegative else None), None


def _multiply(a: tuple[int | None, int | None], b: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    if None not in a and None not in b:
        corners = [x * y for x in a for y in b]  # type: ignore[operator]  # None was excluded
        return min(corners), max(corners)
    for fixed, other in ((a, b), (b, a)):
        if fixed[0] is not None and fixed[0] == fixed[1]:
            scaled = [None if x is None else x * fixed[0] for x in other]
            return (scaled[0], scaled[1]) if fixed[0] >= 0 else (scaled[1], scaled[0])
    both_nonnegative = all(low is not None and low >= 0 for low in (a[0], b[0]))
    return (0 if both_nonnegative else None), None


def simplify(expr: Expr, extents: Mapping[Any, Expr]) -> Expr:
    """`expr` with the divisions and remainders removed that the extents of its symbols make needless."""
    if isinstance(expr, int) or not _divides(expr):
        return expr
    return normalize(_simplify(expr, extents))


@lru_cache(maxsize=_REMEMBERED)
def _divides(expr: sympy.Expr) -> bool:
    return bool(expr.has(FloorDiv, Mod))


def _simplify(expr: sympy.Expr, extents: Mapping[Any, Expr]) -> sympy.Expr:
    if not expr.args or not _divides(expr):
        return expr
    args = [_simplify(arg, extents) for arg in expr.args]
    if not isinstance(expr, (FloorDiv, Mod)):
        return expr.func(*args).expand()
    value, divisor = args
    if isinstance(value, FloorDiv) and isinstance(expr, FloorDiv):  # (a // b) // c -> a // (b*c)
        return _simplify(FloorDiv(value.args[0], value.args[1] * divisor), extents)
    if isinstance(value, Mod) and isinstance(expr, Mod) and split_multiple(value.args[1], divisor)[1] == 0:
        return _simplify(Mod(value.args[0], divisor), extents)  # (a % (b*c)) % b -> a % b
    quotient, rest = split_multiple(value, divisor)
    small = _lies_below(rest, divisor, extents)
    if isinstance(expr, FloorDiv):
        if small:  # (b*q + r) // b -> q  for 0 <= r < b
            return quotient
        common = _common_factor(rest, divisor, extents)
        if common is not None:
            return (quotient + common).expand()
        return quotient + FloorDiv(rest, divisor)
    if small:
        return rest
    return Mod(rest, divisor)


def _lies_below(value: sympy.Expr, limit: sympy.Expr, extents: Mapping[Any, Expr]) -> bool:
    low, high = bounds(normalize(value), extents)
    if low is None or low < 0:
        return False
    if value.is_Symbol and extents.get(value) is not None and sympy.sympify(extents[value]) == limit:
        return True
    return bool(high is not None and limit.is_Integer and high < int(limit))


def _common_factor(value: sympy.Expr, divisor: sympy.Expr, extents: Mapping[Any, Expr]) -> sympy.Expr | None:
    """(g*a + r) // (g*c) -> a // c for 0 <= r < g, where g is a constant; None when no such g helps."""
    if not divisor.is_Integer:
        return None
    terms = sympy.Add.make_args(value)
    for term in terms:
        factor = abs(int(term.as_coeff_Mul()[0])) if term.as_coeff_Mul()[0].is_Integer else 1
        if factor <= 1 or int(divisor) % factor:
            continue
        quotient, rest = split_multiple(value, sympy.Integer(factor))
        if _lies_below(rest, sympy.Integer(factor), extents):
            return _simplify(FloorDiv(quotient, sympy.Integer(int(divisor) // factor)), extents)
    return None


_ADD, _MUL, _UNARY, _ATOM = 1, 2, 3, 4


def print_expr(expr: Expr, functions: Mapping[str, str] | None = None) -> str:
    """`expr` as source text with no needless parentheses.

    functions: spelling of FloorDiv, Mod, Min and Max, each a format of its two arguments ("({0} // {1})"); the default is
    Python's.
    """
    return _print(expr, functions or PYTHON_FUNCTIONS)[0]


PYTHON_FUNCTIONS: dict[str, str] = {
    "FloorDiv": "({0}) // ({1})",
    "Mod": "({0}) % ({1})",
    "Min": "min({0}, {1})",
    "Max": "max({0}, {1})",
}


def _print(expr: Expr, functions: Mapping[str, str]) -> tuple[str, int]:
    """The text, and how tightly its outermost operation binds: what binds tighter around it needs parentheses."""
    if isinstance(expr, int) or expr.is_Integer:
        value = int(expr)
        return str(value), _ATOM if value >= 0 else _UNARY
    if expr.is_Symbol:
        return str(expr.name), _ATOM
    if expr.is_Add:
        terms = sorted(expr.args, key=_term_order)
        text = ""
        for term in terms:
            negative = term.could_extract_minus_sign()
            part, binding = _print(-term if negative else term, functions)
            if negative and not text and binding == _ADD:
                part = f"({part})"  # a leading minus binds tighter than // and %
            text += (f" - {part}" if text else f"-{part}") if negative else (f" + {part}" if text else part)
        return text, _ADD
    if expr.is_Mul:
        factors = [_print(factor, functions) for factor in sorted(expr.args, key=_factor_order)]
        return " * ".join(
            text if binding > _MUL or (i == 0 and binding == _MUL) else f"({text})" for i, (text, binding) in enumerate(factors)
        ), _MUL
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        base, binding = _print(expr.base, functions)
        part = base if binding > _MUL else f"({base})"
        return " * ".join([part] * int(expr.exp)), _MUL
    name = type(expr).__name__
    if name in functions:
        template = functions[name]
        operands = []
        for argument, wrapped in zip(expr.args, ("({0})", "({1})"), strict=True):
            text, binding = _print(argument, functions)
            if wrapped in template and binding == _ATOM:
                template = template.replace(wrapped, wrapped[1:-1])
            operands.append(text)
        text = template.format(*operands)
        return text, _ATOM if text[-1] == ")" and "(" in template and template[0].isalpha() else _ADD
    raise TypeError(f"no spelling for {expr} ({name})")


def _term_order(term: Any) -> tuple[int, str]:
    """Longest strides first, constants last, names in order: 768*x0 + r0 + 5."""
    _, rest = term.as_coeff_Mul()
    return (1 if rest == 1 else 0, str(rest))


def _factor_order(factor: Any) -> tuple[int, str]:
    return (0 if factor.is_Integer else 1, str(factor))
