"""Functions of numbers that graphs call: on plain numbers what Python gives, on symbolic ones a symbolic number.

In: ints, floats, bools, or torch's symbolic ones. Out: the same of the result, plain where it is constant. Python's own functions
(`math.log`, `&`, `int.bit_length`) would convert a symbolic number to a plain one, or do not accept it.
Invariant: no symbolic number is asked for its value; `check` of a symbolic condition becomes an assertion of the environment: a
guard, or a check at run time.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

#: functions of one float that module `math` has
UNARY = (
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
)  # fmt: skip
_WRAPPERS: dict[type, Callable[..., Any]] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _wrapped(node: Any) -> Any:
    """The number of a node; a plain one where it is constant."""
    known = node.maybe_as_int() if node.pytype is int else node.maybe_as_float() if node.pytype is float else None
    return _WRAPPERS[node.pytype](node) if known is None else known


def _nodes(values: tuple[Any, ...]) -> list[Any]:
    some = next(value.node for value in values if isinstance(value, SYMBOLIC))
    wrap = {int: some.wrap_int, float: some.wrap_float, bool: some.wrap_int}
    return [value.node if isinstance(value, SYMBOLIC) else wrap[type(value)](value) for value in values]


def _function(name: str, method: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function `name` of this module: `plain` on numbers, the nodes' `method` on symbolic ones."""

    def function(*values: Any) -> Any:
        if not any(isinstance(value, SYMBOLIC) for value in values):
            return plain(*values)
        first, *rest = _nodes(values)
        return _wrapped(getattr(first, method)(*rest))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{getattr(plain, '__name__', name)}` on numbers and symbolic numbers."
    return function


def _quotient(a: Any, b: Any) -> float:
    return a / b if b else a * math.inf


UNARY_FUNCTIONS = {name: _function(name, name, getattr(math, name)) for name in UNARY}
globals().update(UNARY_FUNCTIONS)
floor = _function("floor", "floor", math.floor)
ceil = _function("ceil", "ceil", math.ceil)
trunc = _function("trunc", "trunc", math.trunc)
round_to_int = _function("round_to_int", "round", builtins.round)
round_to_digits = _function("round_to_digits", "round", builtins.round)
bitwise_and = _function("bitwise_and", "bitwise_and", operator.and_)
bitwise_or = _function("bitwise_or", "bitwise_or", operator.or_)
bitwise_xor = _function("bitwise_xor", "bitwise_xor", operator.xor)
shift_left = _function("shift_left", "lshift", operator.lshift)
shift_right = _function("shift_right", "rshift", operator.rshift)
invert = _function("invert", "invert", operator.invert)
power = _function("power", "pow", operator.pow)
bit_length = _function("bit_length", "bit_length", int.bit_length)
isqrt = _function("isqrt", "isqrt", math.isqrt)
#: a / b as operators divide, in C++: infinite or NaN where b, a number of elements, is 0
quotient = _function("quotient", "quotient", _quotient)
is_integer = _function("is_integer", "is_integer", float.is_integer)
gcd = _function("gcd", "gcd", math.gcd)
as_int = _function("as_int", "sym_int", int)
is_finite = _function("is_finite", "is_finite", math.isfinite)
negation = _function("negation", "sym_not", operator.not_)
#: what graphs may call
FUNCTIONS = frozenset(
    {
        *UNARY_FUNCTIONS.values(), floor, ceil, trunc, round_to_int, bitwise_and, bitwise_or, bitwise_xor, power, bit_length,
        isqrt, gcd, as_int, is_finite, negation, quotient, round_to_digits,
    }
)  # fmt: skip


def check(condition: Any, message: str, error: str = "RuntimeError", *numbers: Any) -> None:
    """`torch._check` with the very text of its message; on a symbolic condition an assertion of the environment.

    error: the name of the exception. numbers: what the message has `{}` for; with none it is the text itself.
    """
    if isinstance(condition, torch.SymBool):
        node: Any = condition.node
        condition = node.env.expect(node.statement, message, error, numbers)
    if not condition:
        raise complaint(message or "Expected cond to be True, but got False", error, numbers)


def complaint(message: str, error: str, numbers: tuple[Any, ...]) -> Exception:
    """What `check` raises."""
    made: Exception = getattr(builtins, error)(message.format(*numbers) if numbers else message)
    return made
