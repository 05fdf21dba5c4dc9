"""Division and powers of symbolic numbers as Python has them: what they raise, and their numeric type.

In: the two operands of `/`, `//`, `%`, `divmod` or `**`, one of them symbolic at least. Out: the result, symbolic where it can be.
A divisor that only running the program tells is checked to be non-zero first, since the float arithmetic of kernels raises nothing.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

import torch

from fxloom_interfaces import symbolic_math
from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.symbols.numbers import SYMBOLIC

_INTS = (int, torch.SymInt, torch.SymBool)


def _is_unbacked(value: Any) -> bool:
    """Only running the graph tells the number."""
    return type(value) in SYMBOLIC and not value.node.has_hint()


def _expect_divisor(function: Callable[[Any, Any], Any], left: Any, right: Any) -> None:
    """The text of the error is that of the Python that runs."""
    if not _is_unbacked(right) or isinstance(left, _INTS) and isinstance(right, _INTS) and function is not operator.truediv:
        return  # nodes of whole numbers ask that themselves
    try:
        function(1 if isinstance(left, _INTS) else 1.0, 0 if isinstance(right, _INTS) else 0.0)
    except ZeroDivisionError as error:
        symbolic_math.check(right != 0, str(error), "ZeroDivisionError")


def _division(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def divide(left: Any, right: Any) -> Any:
        _expect_divisor(function, left, right)
        return function(left, right)

    return divide


def divmod(left: Any, right: Any) -> Any:
    """`builtins.divmod`."""
    _expect_divisor(builtins.divmod, left, right)
    return left // right, left % right


def power(base: Any, exponent: Any) -> Any:
    """`base ** exponent`; NotImplemented where it is complex, which is asked. torch's own takes no negative base."""
    whole = isinstance(exponent, _INTS)
    if isinstance(base, _INTS) and whole and exponent >= 0:
        return base**exponent
    whole = whole or type(exponent) is float and exponent.is_integer()
    if not whole and not _is_never_negative(base) and not base >= 0:
        return NotImplemented
    return symbolic_math.power(_as_float(base), _as_float(exponent))


def expect_no_negative(base: Any) -> None:
    """Check, when the graph runs, a base that only running it tells: optimizers count steps and measure norms."""
    if _is_unbacked(base) and not _is_never_negative(base):
        symbolic_math.check(base >= 0, "a negative number to a power that is no whole number, within an optimizer's update")


def _is_never_negative(value: Any) -> bool:
    return type(value) is torch.SymFloat and _never_negative(value.node.float_expr)


def _never_negative(expr: FloatExpr) -> bool:
    """By how it is made: of an absolute value, a square and their kind nobody need ask."""
    match expr.kind:
        case "const":
            return bool(expr.args[0] >= 0)
        case "abs" | "exp" | "sqrt" | "cosh":
            return True
        case "mul" if expr.args[0] == expr.args[1]:
            return True
        case "add" | "mul" | "truediv" | "min":
            return all(_never_negative(part) for part in expr.args)
        case "pow":
            power = expr.args[1]
            return power.kind == "const" and power.args[0] % 2 == 0 or _never_negative(expr.args[0])
    return False


def _as_float(value: Any) -> Any:
    return value if isinstance(value, (float, torch.SymFloat)) else torch.sym_float(value)


#: by their signs
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "/": _division(operator.truediv), "//": _division(operator.floordiv), "%": _division(operator.mod), "**": power,
}  # fmt: skip
