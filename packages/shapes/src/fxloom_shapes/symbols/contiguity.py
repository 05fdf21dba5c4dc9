"""Contiguity of tensors with symbolic sizes: whether axes step through memory without gaps, and in which order.

In: sizes and strides as polynomials. Out: a statement for the caller to decide, or an answer for the traced call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fxloom_shapes.expressions.polynomials import Poly, const
from fxloom_shapes.expressions.statements import Statement, both, either, relation

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv


def contiguity(env: SymbolEnv, sizes: Sequence[Poly], strides: Sequence[Poly], order: Sequence[int]) -> Statement | bool:
    """Axes, taken innermost first, step through memory without gaps; axes of one element may have any stride."""
    statement: Statement | bool = True
    empty: Statement | bool = False
    step = padded = const(1)  # where an axis is empty these differ, and nothing is stepped through
    for axis in order:
        size, stride = sizes[axis], strides[axis]
        fits = either(relation("==", size - const(1)), relation("==", stride - step))
        if padded is not step:
            fits = either(fits, relation("==", stride - padded))
        statement = both(statement, fits)
        empty = either(empty, relation("==", size))
        same, step = padded is step, env.solver.simplify(step * size)
        least = env.solver.function("Max", size, const(1))
        padded = step if same and least == size else env.solver.simplify(padded * least)
    return either(empty, statement)


def prefers_channels_last(env: SymbolEnv, sizes: Sequence[Poly], strides: Sequence[Poly], order: Sequence[int]) -> bool:
    """What torch's `suggest_memory_format` says (c10/core/MemoryFormat.h, is_channels_last_strides_2d)."""

    def holds(op: str, poly: Poly) -> bool:
        return env.decide_or(relation(op, poly), False)

    least = const(0)
    if holds("==", strides[1]):
        return False
    for axis in order:
        size, stride = sizes[axis], strides[axis]
        if holds("==", size) or not holds(">=", stride - least) or (axis == 0 and holds("==", least - strides[1])):
            return False
        least = stride if holds("==", size - const(1)) else stride * size
    return True


def inner_to_outer(env: SymbolEnv, sizes: Sequence[Poly], strides: Sequence[Poly]) -> list[int]:
    """The axes that have more than one element in the call at hand, by their strides there."""
    axes = []
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        hint = env.hint(stride)
        if env.hint(size) != 1:
            axes.append((float("inf") if hint is None else hint, -axis))
    return [-axis for _, axis in sorted(axes)]
