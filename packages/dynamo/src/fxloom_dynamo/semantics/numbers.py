"""Symbolic numbers as values of the program: what Python's operators, builtins and C code do with them.

In: an operator, a builtin or a C function, and arguments with symbolic numbers among them. Out: the result, symbolic where it can be;
NotImplemented for what is not listed here.

A symbolic int is an int to the program. Arithmetic and comparisons stay symbolic; whatever else looks at the number gets it
as it is now, which leaves a guard on it (`concrete`). So every use is sound, and only what is listed here is general.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.libraries import torch_functions
from fxloom_dynamo.symbolic_numbers import operators
from fxloom_dynamo.symbolic_numbers.values import PYTHON_TYPES, alike, concrete, settled
from fxloom_interfaces import symbolic_math

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: operators whose result on symbolic numbers is symbolic
_ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "**"})
_BITWISE: dict[str, Callable[..., Any]] = {
    "&": symbolic_math.bitwise_and,
    "|": symbolic_math.bitwise_or,
    "^": symbolic_math.bitwise_xor,
    "<<": symbolic_math.shift_left,
    ">>": symbolic_math.shift_right,
}


def binary(ev: Interpreter, function: Callable[[Any, Any], Any], text: str, left: Any, right: Any) -> Any:
    """`left text right` with a symbolic operand and no tensor."""
    sign = text.rstrip("=")
    if sign in _ARITHMETIC and all(isinstance(value, _NUMBERS) for value in (left, right)):
        if sign == "**" and torch_functions.is_update(ev.frames[-1].code):
            ev.torch_native(operators.expect_no_negative, left)
        result = ev.torch_native(operators.OPERATORS.get(sign, function), left, right)
        if result is not NotImplemented:
            return settled(result)
    bitwise = _BITWISE.get(sign)
    if bitwise is not None and all(type(value) is int or type(value) is torch.SymInt for value in (left, right)):
        return ev.torch_native(bitwise, left, right)
    return ev.native(function, concrete(left), concrete(right))


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def compare(ev: Interpreter, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """A comparison with a symbolic operand and no tensor."""
    if all(isinstance(value, _NUMBERS) for value in (left, right)):
        return settled(ev.torch_native(function, left, right))
    return ev.native(function, concrete(left), concrete(right))


def unary(ev: Interpreter, function: Callable[[Any], Any], value: Any) -> Any:
    if function is operator.invert:
        return ev.torch_native(symbolic_math.invert, value) if type(value) is torch.SymInt else ev.native(function, concrete(value))
    return settled(ev.torch_native(function, value))


def call(ev: Interpreter, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of a C function or builtin class with a symbolic argument; NotImplemented where the usual way is right."""
    try:
        known = _FUNCTIONS.get(fn)
    except TypeError:
        known = None
    if known is None or kwargs or len(args) not in _ARITIES.get(fn, (len(args),)):
        return NotImplemented
    kinds = (int, torch.SymInt) if fn in _INTEGERS_ONLY else _NUMBERS
    if not all(isinstance(arg, kinds) for arg in args):
        return NotImplemented
    result = ev.torch_native(known, *args)
    return result if result is NotImplemented else settled(result)


def _max(*values: Any) -> Any:
    result = values[0]
    for value in values[1:]:
        result = torch.sym_max(result, value) if alike(result, value) else builtins.max(result, value)
    return result


def _min(*values: Any) -> Any:
    result = values[0]
    for value in values[1:]:
        result = torch.sym_min(result, value) if alike(result, value) else builtins.min(result, value)
    return result


def _log(value: Any, *base: Any) -> Any:
    """As CPython has it: the quotient of two natural logarithms."""
    log = symbolic_math.UNARY_FUNCTIONS["log"]
    return log(value) / log(base[0]) if base else log(value)


def _round(value: Any, *digits: Any) -> Any:
    if not digits:
        return symbolic_math.round_to_int(value)
    if PYTHON_TYPES.get(type(value), type(value)) is float and type(digits[0]) in (int, torch.SymInt):
        return symbolic_math.round_to_digits(value, digits[0])
    if type(value) is torch.SymInt and type(digits[0]) is int and digits[0] >= 0:
        return value
    return builtins.round(concrete(value), concrete(digits[0]))


def _int(value: Any = 0) -> Any:
    return value if type(value) is torch.SymInt else symbolic_math.as_int(value)


def _float(value: Any = 0) -> Any:
    return value if type(value) is torch.SymFloat else torch.sym_float(value)


#: C functions and classes -> what does the same on symbolic numbers
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    builtins.max: _max,
    builtins.min: _min,
    builtins.abs: builtins.abs,
    builtins.divmod: operators.divmod,
    int: _int,
    float: _float,
    bool: bool,
    **{getattr(math, name): function for name, function in symbolic_math.UNARY_FUNCTIONS.items()},
    math.log: _log,
    math.ceil: symbolic_math.ceil,
    math.floor: symbolic_math.floor,
    math.trunc: symbolic_math.trunc,
    math.isqrt: symbolic_math.isqrt,
    math.gcd: symbolic_math.gcd,
    math.isfinite: symbolic_math.is_finite,
    math.pow: lambda a, b: symbolic_math.power(_float(a), _float(b)),
    math.fabs: lambda a: abs(_float(a)),
    builtins.round: _round,
    builtins.pow: operators.power,
    operator.index: _int,
}
#: methods of int and float -> functions that do the same
METHODS: dict[tuple[type, str], Callable[..., Any]] = {
    (int, "bit_length"): symbolic_math.bit_length,
    (float, "is_integer"): symbolic_math.is_integer,
}
_ARITIES: dict[Any, tuple[int, ...]] = {
    math.gcd: (2,), math.log: (1, 2), builtins.round: (1, 2), builtins.pow: (2,), int: (1,), float: (1,),
}  # fmt: skip
_INTEGERS_ONLY = frozenset({math.gcd, math.isqrt, operator.index})


def is_captured(ev: Interpreter, tensor: Any) -> bool:
    """Whether reading a number out of `tensor` stays in the graph."""
    env = ev.heap.fake_mode.env
    return env is not None and env.options.capture_scalars and tensor.constant is None


# --- at run time -----------------------------------------------------------------------------------------------------
