"""Iteration spaces: lists of extents, outermost first, and how loops over different lists are the same loop.

In: extents and index expressions. Out: extents and index expressions that mean the same for every size.
`refine` finds the coarsest common refinement of two lists; `express` writes an axis of one list in symbols of
a finer one; `collapse` merges neighbours that every index treats as one axis.
Invariant: rewriting keeps the order of iteration (row-major) and the number of points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import sympy

from fxloom_interfaces.expr import Expr, FloorDiv, Max, Min, Mod, floor_div, normalize, product

Axes: TypeAlias = "tuple[tuple[sympy.Symbol, Expr], ...]"


def refine(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """The coarsest list that merges to `a` and to `b` by multiplying neighbours; None when there is none."""
    if tuple(a) == tuple(b):
        return tuple(a)
    left, right = [e for e in a if e != 1], [e for e in b if e != 1]
    result: list[Expr] = []
    while left and right:
        p, q = left.pop(), right.pop()
        if p == q:
            result.append(p)
            continue
        rest = _quotient(q, p)
        if rest is not None:
            result.append(p)
            right.append(rest)
            continue
        rest = _quotient(p, q)
        if rest is None:
            return None
        result.append(q)
        left.append(rest)
    if left or right:
        return None
    return tuple(reversed(result))


def _quotient(a: Expr, b: Expr) -> Expr | None:
    """a / b where b visibly divides a, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    result = floor_div(a, b)
    if not isinstance(result, int) and result.has(FloorDiv):
        return None
    return result if normalize(sympy.expand(result * b)) == normalize(sympy.expand(sympy.sympify(a))) and result != 0 else None


@lru_cache(maxsize=1 << 12)
def express(coarse: Axes, fine: Axes) -> Mapping[sympy.Symbol, Expr]:
    """Each symbol of `coarse` as an expression in the symbols of `fine`, a refinement of it."""
    mapping: dict[sympy.Symbol, Expr] = {}
    rest = list(fine)
    for axis, extent in reversed(coarse):
        if extent == 1:
            mapping[axis] = 0
            continue
        position: Expr = 0
        step: Expr = 1
        while step != extent:
            part, size = rest.pop()
            position = position + part * step
            step = normalize(step * size)
        mapping[axis] = position
    return mapping


@lru_cache(maxsize=1 << 14)
def linear_parts(expr: Expr, axes: frozenset[sympy.Symbol]) -> tuple[Mapping[sympy.Symbol, Expr], frozenset[sympy.Symbol]]:
    """({axis: its stride}, axes that occur in some other way than times a stride)."""
    strides: dict[sympy.Symbol, Expr] = {}
    tangled: set[sympy.Symbol] = set()
    if isinstance(expr, int):
        return strides, frozenset()
    for term in sympy.Add.make_args(expr):
        inside = term.free_symbols & axes
        if not inside:
            continue
        axis = next(iter(inside))
        if len(inside) > 1 or term.has(FloorDiv, Mod, Min, Max):
            tangled |= inside
            continue
        if term is axis:
            step: Expr = 1
        else:
            step = normalize(term / axis)
            if not isinstance(step, int) and axis in step.free_symbols:
                tangled.add(axis)
                continue
        strides[axis] = normalize(strides.get(axis, 0) + step)
    return strides, frozenset(tangled)


def collapse(axes: Axes, exprs: Iterable[Expr]) -> tuple[Axes, dict[sympy.Symbol, Expr]]:
    """(merged axes, old symbol -> expression): neighbours become one axis where every expression allows it.

    The merged axis keeps the inner one's symbol.
    """
    if len(axes) < 2:
        return axes, {}
    symbols = frozenset(s for s, _ in axes)
    parts = [linear_parts(expr, symbols) for expr in exprs]
    merged: list[list[tuple[sympy.Symbol, Expr]]] = []
    for axis in axes:
        if merged and _mergeable(merged[-1][-1], axis, parts):
            merged[-1].append(axis)
        else:
            merged.append([axis])
    if len(merged) == len(axes):
        return axes, {}
    mapping: dict[sympy.Symbol, Expr] = {}
    result: list[tuple[sympy.Symbol, Expr]] = []
    for run in merged:
        symbol = run[-1][0]
        result.append((symbol, product(e for _, e in run)))
        if len(run) > 1:
            # index expressions only see sum(stride * axis), which is stride_of_innermost * merged axis
            for outer, _ in run[:-1]:
                mapping[outer] = 0
    return tuple(result), mapping


def _mergeable(
    outer: tuple[sympy.Symbol, Expr],
    inner: tuple[sympy.Symbol, Expr],
    parts: Iterable[tuple[Mapping[sympy.Symbol, Expr], frozenset[sympy.Symbol]]],
) -> bool:
    for strides, tangled in parts:
        if outer[0] in tangled or inner[0] in tangled:
            return False
        if strides.get(outer[0], 0) != normalize(strides.get(inner[0], 0) * inner[1]):
            return False
    return True
