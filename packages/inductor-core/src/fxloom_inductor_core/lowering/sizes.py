"""Arithmetic on sizes and floats that are known when the graph runs: Python operators of the aten dialect.

In: ints, size expressions, `Float`s. Out: a size expression where all operands are sizes and the result is one, else a `Float`,
the text of what the program computes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch

from fxloom_inductor_core.ir.numbers import Float, function, infix
from fxloom_interfaces import symbolic_math
from fxloom_interfaces.expr import Max, Min, floor_div, mod, normalize


def _integers(on_sizes: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    """An operator on sizes; text where a float takes part."""

    def operate(*args: Any) -> Any:
        if any(isinstance(value, (Float, float)) for value in args):
            return infix(symbol, *args)
        return on_sizes(*args)

    return operate


def _plain(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: normalize(operation(*args))


def _extreme(kind: Any, name: str) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        if any(isinstance(value, (Float, float)) for value in (a, b)):
            return function(name)(a, b)
        return normalize(kind(sympy.sympify(a), sympy.sympify(b)))

    return operate


def _negate(value: Any) -> Any:
    return Float(f"(-{value.text})") if isinstance(value, Float) else normalize(-value)


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and exponent >= 0 and not isinstance(base, (Float, float)):
        return normalize(base**exponent)
    return infix("**", base, exponent)


def _quotient(a: Any, b: Any) -> Any:
    whole, infinite = infix("/", a, b), infix("*", a, Float("math.inf"))
    return Float(f"({whole.text} if {infix('!=', b, 0).text} else {infinite.text})")


SIZE_OPS: dict[Any, Callable[..., Any]] = {
    operator.add: _integers(_plain(operator.add), "+"),
    operator.sub: _integers(_plain(operator.sub), "-"),
    operator.mul: _integers(_plain(operator.mul), "*"),
    operator.neg: _negate,
    operator.floordiv: _integers(floor_div, "//"),
    operator.mod: _integers(mod, "%"),
    operator.truediv: lambda a, b: infix("/", a, b),
    symbolic_math.quotient: _quotient,
    operator.pow: _power,
    operator.abs: function("abs"),
    torch.sym_float: function("float"),
    **{found: function(f"math.{name}") for name, found in symbolic_math.UNARY_FUNCTIONS.items()},
    symbolic_math.power: _power,
    symbolic_math.as_int: function("int"),
    symbolic_math.round_to_digits: function("round"),
    operator.eq: lambda a, b: infix("==", a, b),
    operator.ne: lambda a, b: infix("!=", a, b),
    operator.ge: lambda a, b: infix(">=", a, b),
    operator.lt: lambda a, b: infix("<", a, b),
    operator.le: lambda a, b: infix("<=", a, b),
    symbolic_math.is_finite: function("math.isfinite"),
    symbolic_math.negation: lambda value: Float(f"(not {value.text})"),
    operator.and_: lambda a, b: infix("and", a, b),
    operator.or_: lambda a, b: infix("or", a, b),
    torch.sym_max: _extreme(Max, "max"),
    torch.sym_min: _extreme(Min, "min"),
}
