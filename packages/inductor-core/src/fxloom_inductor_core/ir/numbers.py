"""Floats that are known when the graph runs: Python expressions of the wrapper, and what sizes have to do with them.

In: arguments of the graph that are floats, and arithmetic on them and on sizes. Out: `Float`s, whose text the wrapper
evaluates; kernels read one from a buffer with one float64 element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from fxloom_interfaces.expr import normalize, print_expr


@dataclass(frozen=True, slots=True)
class Float:
    """A float or a truth value. text: a Python expression over names of the wrapper; it is an atom or in parentheses."""

    text: str


def is_number(value: Any) -> bool:
    """True for numbers known at compile time or when the graph runs."""
    return isinstance(value, (bool, int, float, sympy.Basic, Float))


def _text(value: Any) -> str:
    if isinstance(value, Float):
        return value.text
    if isinstance(value, sympy.Basic):
        return f"({print_expr(normalize(value))})"
    return f"({value!r})" if value < 0 else repr(value)


def infix(symbol: str, *args: Any) -> Float:
    """`a symbol b`"""
    return Float("(" + f" {symbol} ".join(_text(argument) for argument in args) + ")")


def function(name: str) -> Callable[..., Float]:
    """`name(...)` of numbers."""
    return lambda *args: Float(f"{name}({', '.join(_text(argument) for argument in args)})")
