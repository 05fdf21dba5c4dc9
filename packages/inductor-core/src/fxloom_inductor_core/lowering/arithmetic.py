"""Arithmetic: sums, products, quotients and powers, rounded as eager's kernels round them.

In: the context and the operator's arguments as lowered values. Out: a tensor with a body that computes one element; NotImplemented
where eager's kernel has to decide, as for a division of integers that may raise. Invariant: a half type is rounded after a step
where the kernel of that device computes in the half type, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.lowering.promote import binary, elementwise, is_number_on_cpu, is_tensor, result_device, result_dtype
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import is_float, is_integer, opmath
from fxloom_ops.wide_numbers import takes_wide_number

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(cx: LoweringContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    dtype = result_dtype(cx)
    if dtype == "bool":
        if alpha not in (1, True):
            return NotImplemented
        return elementwise(cx, [a, b], lambda ops, x, y: ops.logical_or(x, y), dtype=dtype, compute=dtype)
    return _scaled(cx, a, b, alpha, dtype, "add")


def _is_bool(value: Any) -> bool:
    return value.dtype == "bool" if is_tensor(value) else isinstance(value, bool)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(cx: LoweringContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    if _is_bool(a) or _is_bool(b):
        return NotImplemented  # eager refuses it
    return _scaled(cx, a, b, alpha, result_dtype(cx), "sub")


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(cx: LoweringContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    if _is_bool(a) or _is_bool(b):
        return NotImplemented  # eager refuses it
    dtype, device = result_dtype(cx), result_device([v for v in (a, b) if is_tensor(v)])

    def function(ops: Any, x: Any, y: Any) -> Any:
        return _plus_scaled(ops, y, x, alpha, dtype, "sub", device)

    return elementwise(cx, [a, b], function, dtype=dtype, compute=dtype, op="sub")


def _scaled(cx: LoweringContext, a: Any, b: Any, alpha: Any, dtype: str, name: str) -> Any:
    device = result_device([v for v in (a, b) if is_tensor(v)])

    def function(ops: Any, x: Any, y: Any) -> Any:
        return _plus_scaled(ops, x, y, alpha, dtype, name, device)

    return elementwise(cx, [a, b], function, dtype=dtype, compute=dtype, op=name)


def _plus_scaled(ops: Any, x: Any, y: Any, alpha: Any, dtype: str, name: str, device: str) -> Any:
    """x + alpha * y, or x - alpha * y with the name "sub"; floats are rounded once, as eager's kernels do."""
    if alpha == 1 and not isinstance(alpha, Float):
        return getattr(ops, name)(x, y)
    wide = takes_wide_number(name, 2, device)
    scale = ops.to_dtype(ops.constant(alpha, opmath(dtype) if wide else dtype), opmath(dtype))
    if not is_float(dtype):
        return getattr(ops, name)(x, ops.mul(y, scale))
    return ops.fma(ops.neg(y) if name == "sub" else y, scale, x)


@lowering(aten.mul.Tensor, aten.mul.Scalar)
def mul(cx: LoweringContext, a: Any, b: Any) -> Any:
    dtype = result_dtype(cx)
    name = "logical_and" if dtype == "bool" else "mul"
    return elementwise(cx, [a, b], lambda ops, x, y: getattr(ops, name)(x, y), dtype=dtype, compute=dtype, op="mul")


def _quotient(cx: LoweringContext, divisor: Any, device: str) -> Callable[[Any, Any, Any, str], Any]:
    """Division as eager does it: kernels off the CPU multiply by the reciprocal of a number beside the tensor."""
    if device == "cpu" or not is_number_on_cpu(cx, divisor):
        return lambda ops, x, y, dtype: ops.div(x, y)
    return lambda ops, x, y, dtype: ops.mul(x, ops.div(ops.constant(1, dtype), y))


@lowering(aten.div.Tensor, aten.div.Scalar)
def div(cx: LoweringContext, a: Any, b: Any) -> Any:
    dtype = result_dtype(cx)
    quotient = _quotient(cx, b, str(cx.fake.device))
    return elementwise(cx, [a, b], lambda ops, x, y: quotient(ops, x, y, opmath(dtype)), dtype=dtype, compute=dtype, op="div")


def _may_raise(dtype: str, divisor: Any) -> bool:
    """True where eager's integer kernel has to decide: on the CPU it raises where an element of the divisor is zero."""
    if not is_integer(dtype):
        return False
    if is_tensor(divisor):
        return divisor.device == "cpu"
    # a number that may change: one that is not zero may be zero in a narrow dtype
    return divisor == 0 if isinstance(divisor, (int, float)) else dtype != "int64"


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(cx: LoweringContext, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    dtype = result_dtype(cx)
    if rounding_mode is None:
        return div(cx, a, b)
    if dtype == "bool" or _may_raise(dtype, b):
        return NotImplemented
    if is_integer(dtype):
        name = "floor_div" if rounding_mode == "floor" else "trunc_div"
        return elementwise(cx, [a, b], lambda ops, x, y: getattr(ops, name)(x, y), dtype=dtype, compute=dtype, heavy=True)
    on_cpu, number = cx.fake.device.type == "cpu", is_number_on_cpu(cx, b)
    quotient = _quotient(cx, b, str(cx.fake.device))
    rounded = _rounded_steps(dtype)
    if rounding_mode == "trunc":
        steps = _unrounded if number else rounded

        def function(ops: Any, x: Any, y: Any) -> Any:
            return ops.trunc(steps(ops, quotient(ops, x, y, opmath(dtype))))

    else:
        steps = rounded if on_cpu and not number else _unrounded
        floors = _unrounded if on_cpu and number else rounded

        def function(ops: Any, x: Any, y: Any) -> Any:
            return _float_floor_div(ops, x, y, opmath(dtype), quotient, steps, floors)

    return elementwise(cx, [a, b], function, dtype=dtype, compute=dtype, op="div_mode", ops=10)


def _unrounded(ops: Any, value: Any) -> Any:
    return value


def _rounded_steps(dtype: str) -> Callable[[Any, Any], Any]:
    """Rounds a step within an operator whose kernel computes in the half type itself."""
    return _unrounded if opmath(dtype) == dtype else lambda ops, value: ops.to_dtype(ops.to_dtype(value, dtype), opmath(dtype))


@lowering(aten.floor_divide.default)
def floor_divide(cx: LoweringContext, a: Any, b: Any) -> Any:
    return div_mode(cx, a, b, rounding_mode="floor")


def _float_floor_div(
    ops: Any, a: Any, b: Any, dtype: str, divide: Callable[..., Any], steps: Callable[[Any, Any], Any], floors: Callable[[Any, Any], Any]
) -> Any:
    """c10::div_floor_floating: exact where floor(a / b) would round up, -1 toward minus infinity, signed zeros kept.

    steps, floors: round what leads to the quotient, and what is below it, to a half type, or don't.
    """
    zero, one, half = (ops.constant(c, dtype) for c in (0, 1, 0.5))
    # beyond this the rest is too small to change the dividend, and vector functions have lost it
    far = ops.ge(ops.abs(ops.div(a, b)), ops.constant(2.0**54 if dtype == "float64" else 2.0**26, dtype))
    rest = ops.where(far, ops.mul(zero, a), ops.fmod(a, b))
    quotient = steps(ops, divide(ops, steps(ops, ops.sub(a, rest)), b, dtype))
    opposite = ops.logical_and(ops.ne(rest, zero), ops.ne(ops.lt(b, zero), ops.lt(rest, zero)))
    quotient = ops.where(opposite, steps(ops, ops.sub(quotient, one)), quotient)
    floored = floors(ops, ops.floor(quotient))
    rounded = ops.where(ops.gt(ops.sub(quotient, floored), half), ops.add(floored, one), floored)
    signed_zero = ops.copysign(zero, divide(ops, a, b, dtype))
    result = ops.where(ops.eq(quotient, zero), signed_zero, rounded)
    return ops.where(ops.eq(b, zero), ops.div(a, b), result)



def _rest_of_division(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, a: Any, b: Any) -> Any:
        dtype = result_dtype(cx)
        if dtype == "bool" or _may_raise(dtype, b):
            return NotImplemented
        return binary(name)(cx, a, b)

    rule.__qualname__ = name
    return rule


lowering(aten.remainder.Tensor, aten.remainder.Scalar)(_rest_of_division("remainder"))
lowering(aten.fmod.Tensor, aten.fmod.Scalar)(_rest_of_division("fmod"))


def _integer_power(ops: Any, x: Any, exponent: int, dtype: str, steps: Callable[[Any, Any], Any] = _unrounded) -> Any:
    result = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else ops.mul(result, square)
        exponent >>= 1
        if exponent:
            square = steps(ops, ops.mul(square, square))
    return ops.constant(1, dtype) if result is None else result


@lowering(aten.pow.Tensor_Scalar)
def pow_scalar(cx: LoweringContext, x: Any, exponent: Any) -> Any:
    dtype = result_dtype(cx)
    compute = opmath(dtype)
    if is_tensor(exponent) or not isinstance(exponent, (int, float)):
        return NotImplemented
    # -0.0 and -inf have no roots of their sign as powers; eager's float16 kernel on the CPU has no case for roots
    roots = is_float(dtype) and not (dtype == "float16" and x.device == "cpu")
    if exponent == 0.5 and roots:
        return elementwise(cx, [x], lambda ops, a: ops.sqrt(a), dtype=dtype, compute=dtype, heavy=True)
    if exponent == -0.5 and roots:
        return elementwise(cx, [x], lambda ops, a: ops.rsqrt(a), dtype=dtype, compute=dtype, heavy=True)
    whole = int(exponent) if math.isfinite(exponent) and exponent == int(exponent) else None
    # one kernel of eager's computes powers of halves in float32, the others round each product
    steps = _unrounded if dtype == "float16" and x.device == "cpu" else _rounded_steps(dtype)
    # eager's own special cases are 2, 3, -1, -2; higher powers by squaring would round more often than pow does
    if whole in (0, 1, 2, 3) or (whole is not None and whole >= 0 and is_integer(dtype) and not isinstance(exponent, float)):
        return elementwise(cx, [x], lambda ops, a: _integer_power(ops, a, whole or 0, compute, steps), dtype=dtype, compute=dtype, ops=3)
    if whole in (-1, -2) and is_float(dtype):
        return elementwise(
            cx,
            [x],
            lambda ops, a: ops.reciprocal(_integer_power(ops, a, -int(whole), compute, steps)),
            dtype=dtype,
            compute=dtype,
            ops=2,
        )
    if not is_float(dtype):
        return NotImplemented
    return elementwise(
        cx, [x, exponent], lambda ops, a, b: ops.pow(a, b), dtype=dtype, compute=dtype, heavy=True
    )


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(cx: LoweringContext, x: Any, exponent: Any) -> Any:
    dtype = result_dtype(cx)
    if not is_float(dtype):
        return NotImplemented
    return elementwise(cx, [x, exponent], lambda ops, a, b: ops.pow(a, b), dtype=dtype, compute=dtype, heavy=True)
