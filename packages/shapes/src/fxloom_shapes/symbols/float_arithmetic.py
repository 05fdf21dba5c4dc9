"""Arithmetic that gives floats: the exceptions that Python raises, and division by zero within operators, which does not raise.

In: an expression. Out: its node, made by the environment. Invariant: an operation that may raise leaves a guard that it doesn't,
or raises what Python raises for the numbers of the traced call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fxloom_interfaces.symbolic_math import UNARY
from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.statements import relation

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv
    from fxloom_shapes.symbols.float_nodes import FloatNode

#: operations that raise for some numbers
_MAY_RAISE = frozenset(UNARY) | {"truediv", "floordiv", "mod", "pow"}


def computed(env: SymbolEnv, expr: FloatExpr) -> FloatNode:
    """The node of a float expression. Raises what Python raises for the traced call; else leaves a guard that nothing is raised."""
    try:
        if not expr.symbols():
            return env.float_node(FloatExpr("const", (float(expr.value({})),)))
        if expr.kind == "truediv" and env.in_operator and _may_be_zero(env, expr.args[1]):
            return env.float_node(FloatExpr("quotient", expr.args))  # raises nothing, whatever its number is at run time
        if expr.kind in _MAY_RAISE:
            env.expect_finite(expr)
    except ZeroDivisionError:
        if not env.in_operator or expr.kind != "truediv":
            raise
        # an operator divides as C++ does; a guard keeps the divisor zero
        return env.float_node(FloatExpr("const", (_divided_by_zero(env, expr),)))
    return env.float_node(expr)


def _may_be_zero(env: SymbolEnv, expr: FloatExpr) -> bool:
    """True for a number known only at run time, and that may be 0."""
    try:
        expr.value(env.hints)
    except KeyError:
        return expr.kind != "int" or env.proven(relation("!=", expr.args[0])) is not True
    return False


def _divided_by_zero(env: SymbolEnv, expr: FloatExpr) -> float:
    above, below = (float(part.value(env.hints)) for part in expr.args)
    if above == 0 or math.isnan(above):
        return math.nan
    return math.copysign(math.inf, above) * math.copysign(1.0, below)
