"""Elementwise ops: a table for those that map onto one loop op, and small bodies for the rest.

In: the context and the operator's arguments as lowered values. Out: a tensor with a body that computes one element; no loop is added
before something needs it stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.lowering.promote import elementwise, is_number_on_cpu, is_tensor, promote, result_device, to_float
from fxloom_inductor_core.lowering.registry import library_call, lowering
from fxloom_interfaces.dtypes import dtype_info, dtype_name, is_float, is_integer, opmath
from fxloom_interfaces.ops import OPS
from fxloom_ops.wide_numbers import takes_wide_number

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


def _result(cx: LoweringContext) -> str:
    return dtype_name(cx.fake.dtype)


# ------------------------------------------------------------------------------------ unary float maths: int -> float

_FLOAT_UNARY = [
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
    "lgamma",
    "reciprocal",
]


def _float_unary(name: str) -> Callable[..., Any]:
    heavy = OPS[name].heavy

    def rule(cx: LoweringContext, x: Any) -> Any:
        return elementwise(
            cx, [x], lambda ops, a: getattr(ops, name)(a), dtype=_result(cx), compute=to_float(x.dtype), heavy=heavy
        )

    rule.__qualname__ = name
    return rule


for _name in _FLOAT_UNARY:
    lowering(getattr(aten, _name).default)(_float_unary(_name))


# --------------------------------------------------------------------------------------------- unary, dtype kept


def _rounding(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any) -> Any:
        if x.dtype == "bool":
            return NotImplemented  # eager refuses it, in its own words
        if not is_float(x.dtype):
            return cx.copy_of(x)
        return elementwise(cx, [x], lambda ops, a: getattr(ops, name)(a), dtype=x.dtype, compute=x.dtype)

    rule.__qualname__ = name
    return rule


for _name in ("floor", "ceil", "trunc", "round"):
    lowering(getattr(aten, _name).default)(_rounding(_name))


def _unary(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any) -> Any:
        if x.dtype == "bool":
            return NotImplemented
        return elementwise(cx, [x], lambda ops, a: getattr(ops, name)(a), dtype=_result(cx), compute=x.dtype)

    rule.__qualname__ = name
    return rule


for _op, _name in ((aten.neg.default, "neg"), (aten.abs.default, "abs"), (aten.sign.default, "sign"), (aten.sgn.default, "sign")):
    lowering(_op)(_unary(_name))


@lowering(aten.relu.default)
def relu(cx: LoweringContext, x: Any) -> Any:
    if x.dtype == "bool":
        return NotImplemented  # eager refuses it
    return elementwise(cx, [x], lambda ops, a: ops.maximum(a, ops.constant(0, opmath(x.dtype))), dtype=x.dtype, compute=x.dtype)


def _has_bits(dtype: str) -> bool:
    """True for the dtypes that bitwise operators take: eager refuses the others."""
    return dtype == "bool" or is_integer(dtype)


@lowering(aten.bitwise_not.default)
def bitwise_not(cx: LoweringContext, x: Any) -> Any:
    if not _has_bits(x.dtype):
        return NotImplemented
    return elementwise(cx, [x], lambda ops, a: ops.bitwise_not(a), dtype=x.dtype, compute=x.dtype)


@lowering(aten.logical_not.default)
def logical_not(cx: LoweringContext, x: Any) -> Any:
    return elementwise(cx, [x], lambda ops, a: ops.logical_not(ops.to_dtype(a, "bool")), dtype="bool", compute=x.dtype)


@lowering(aten.isnan.default)
def isnan(cx: LoweringContext, x: Any) -> Any:
    if not is_float(x.dtype):
        return elementwise(cx, [x], lambda ops, a: ops.constant(False, "bool"), dtype="bool", compute=x.dtype)
    return elementwise(cx, [x], lambda ops, a: ops.isnan(a), dtype="bool", compute=x.dtype)


@lowering(aten.isinf.default)
def isinf(cx: LoweringContext, x: Any) -> Any:
    if not is_float(x.dtype):
        return elementwise(cx, [x], lambda ops, a: ops.constant(False, "bool"), dtype="bool", compute=x.dtype)
    return elementwise(cx, [x], lambda ops, a: ops.isinf(a), dtype="bool", compute=x.dtype)


# ------------------------------------------------------------------------------------------------ arithmetic


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(cx: LoweringContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    dtype = _result(cx)
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
    return _scaled(cx, a, b, alpha, _result(cx), "sub")


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(cx: LoweringContext, a: Any, b: Any, alpha: Any = 1) -> Any:
    if _is_bool(a) or _is_bool(b):
        return NotImplemented  # eager refuses it
    dtype, device = _result(cx), result_device([v for v in (a, b) if is_tensor(v)])

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
    dtype = _result(cx)
    name = "logical_and" if dtype == "bool" else "mul"
    return elementwise(cx, [a, b], lambda ops, x, y: getattr(ops, name)(x, y), dtype=dtype, compute=dtype, op="mul")


def _quotient(cx: LoweringContext, divisor: Any, device: str) -> Callable[[Any, Any, Any, str], Any]:
    """Division as eager does it: kernels off the CPU multiply by the reciprocal of a number beside the tensor."""
    if device == "cpu" or not is_number_on_cpu(cx, divisor):
        return lambda ops, x, y, dtype: ops.div(x, y)
    return lambda ops, x, y, dtype: ops.mul(x, ops.div(ops.constant(1, dtype), y))


@lowering(aten.div.Tensor, aten.div.Scalar)
def div(cx: LoweringContext, a: Any, b: Any) -> Any:
    dtype = _result(cx)
    quotient = _quotient(cx, b, str(cx.fake.device))
    return elementwise(cx, [a, b], lambda ops, x, y: quotient(ops, x, y, opmath(dtype)), dtype=dtype, compute=dtype, op="div")


def _may_raise(dtype: str, divisor: Any) -> bool:
    """True where eager's integer kernel has to decide: on the CPU it raises where an element of the divisor is zero."""
    if not is_integer(dtype):
        return False
    return divisor.device == "cpu" if is_tensor(divisor) else divisor == 0


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(cx: LoweringContext, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    dtype = _result(cx)
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


def _binary(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, a: Any, b: Any) -> Any:
        dtype = _result(cx)
        return elementwise(
            cx, [a, b], lambda ops, x, y: getattr(ops, name)(x, y), dtype=dtype, compute=dtype, heavy=OPS[name].heavy
        )

    rule.__qualname__ = name
    return rule


for _ops, _name in (
    ((aten.maximum.default,), "maximum"),
    ((aten.minimum.default,), "minimum"),
    ((aten.atan2.default,), "atan2"),
    ((aten.copysign.Tensor, aten.copysign.Scalar), "copysign"),
):
    lowering(*_ops)(_binary(_name))


def _where_dtype(takes: Callable[[str], bool], rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` for results of the dtypes that `takes` is true of; the others run, or are refused, as in eager."""

    def for_some(cx: LoweringContext, a: Any, b: Any) -> Any:
        return rule(cx, a, b) if takes(_result(cx)) else NotImplemented

    for_some.__qualname__ = rule.__qualname__
    return for_some


for _ops, _name in (
    ((aten.bitwise_and.Tensor, aten.bitwise_and.Scalar), "bitwise_and"),
    ((aten.bitwise_or.Tensor, aten.bitwise_or.Scalar), "bitwise_or"),
    ((aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar), "bitwise_xor"),
):
    lowering(*_ops)(_where_dtype(_has_bits, _binary(_name)))

for _shifts, _name in (
    ((aten.bitwise_left_shift.Tensor, aten.__lshift__.Scalar, aten.__lshift__.Tensor), "shift_left"),
    ((aten.bitwise_right_shift.Tensor, aten.__rshift__.Scalar, aten.__rshift__.Tensor), "shift_right"),
):
    lowering(*_shifts)(_where_dtype(is_integer, _binary(_name)))

# The neighbour of a float16 is no neighbour in float32, in which kernels compute.
lowering(aten.nextafter.default)(_where_dtype(lambda dtype: dtype == opmath(dtype), _binary("nextafter")))


@lowering(aten.frexp.Tensor)
def frexp(cx: LoweringContext, x: Any) -> Any:
    """(m, e) with x = m 2^e and |m| in [1/2, 1), read off the bits; numbers below the normal ones are scaled up first."""
    if not is_float(x.dtype):
        return NotImplemented  # eager refuses it
    compute = opmath(x.dtype)
    single = compute == "float32"
    bits, digits, lowest, ones = ("int32", 23, -126, 0xFF) if single else ("int64", 52, -1022, 0x7FF)

    def parts(ops: Any, a: Any) -> tuple[Any, Any]:
        size = ops.abs(a)
        small = ops.lt(size, ops.constant(2.0**lowest, compute))
        scaled = ops.where(small, ops.mul(a, ops.constant(2.0 ** (digits + 2), compute)), a)
        word = ops.bitcast(scaled, bits)
        field = ops.bitwise_and(ops.shift_right(word, ops.constant(digits, bits)), ops.constant(ones, bits))
        half = ops.constant((-lowest) << digits, bits)  # the exponent's bits of 1/2
        mantissa = ops.bitcast(ops.bitwise_or(ops.bitwise_and(word, ops.constant(~(ones << digits), bits)), half), compute)
        shift = ops.where(small, ops.constant(-lowest + digits + 2, bits), ops.constant(-lowest, bits))
        plain = ops.logical_or(ops.eq(a, ops.constant(0, compute)), ops.eq(field, ops.constant(ones, bits)))
        exponent = ops.where(plain, ops.constant(0, bits), ops.sub(field, shift))
        return ops.where(plain, a, mantissa), ops.to_dtype(exponent, "int32")

    mantissas = elementwise(cx, [x], lambda ops, a: parts(ops, a)[0], dtype=x.dtype, compute=x.dtype, ops=12)
    exponents = elementwise(cx, [x], lambda ops, a: parts(ops, a)[1], dtype="int32", compute=x.dtype, ops=12)
    return mantissas, exponents


@lowering(aten.ldexp.Tensor)
def ldexp(cx: LoweringContext, x: Any, exponent: Any) -> Any:
    """x 2^exponent for integers: exact in float64, where no float32 leaves the range, and rounded once. A call for other types: the type
    of the result differs between versions of torch."""
    dtype = _result(cx)
    if dtype != "float32" or x.dtype != dtype or not is_integer(exponent.dtype):
        return library_call(cx)

    def function(ops: Any, a: Any, e: Any) -> Any:
        low, high, bias, digits = (ops.constant(c, "int64") for c in (-400, 400, 1023, 52))
        held = ops.minimum(ops.maximum(e, low), high)
        power = ops.bitcast(ops.shift_left(ops.add(held, bias), digits), "float64")
        return ops.mul(ops.to_dtype(a, "float64"), power)

    return elementwise(cx, [x, exponent], function, dtype=dtype, compute=[dtype, "int64"], ops=8)


def _rest_of_division(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, a: Any, b: Any) -> Any:
        dtype = _result(cx)
        if dtype == "bool" or _may_raise(dtype, b):
            return NotImplemented
        return _binary(name)(cx, a, b)

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
    dtype = _result(cx)
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
    dtype = _result(cx)
    if not is_float(dtype):
        return NotImplemented
    return elementwise(cx, [x, exponent], lambda ops, a, b: ops.pow(a, b), dtype=dtype, compute=dtype, heavy=True)


# ------------------------------------------------------------------------------------------ comparison, logic, choice


def _compare(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, a: Any, b: Any) -> Any:
        compute = promote([a, b])
        return elementwise(cx, [a, b], lambda ops, x, y: getattr(ops, name)(x, y), dtype="bool", compute=compute)

    rule.__qualname__ = name
    return rule


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowering(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_compare(_name))


def _logical(name: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, a: Any, b: Any) -> Any:
        def function(ops: Any, x: Any, y: Any) -> Any:
            return getattr(ops, name)(ops.to_dtype(x, "bool"), ops.to_dtype(y, "bool"))

        return elementwise(cx, [a, b], function, dtype="bool", compute=promote([a, b]))

    rule.__qualname__ = name
    return rule


for _name in ("logical_and", "logical_or", "logical_xor"):
    lowering(getattr(aten, _name).default)(_logical(_name))


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(cx: LoweringContext, condition: Any, a: Any, b: Any) -> Any:
    dtype = _result(cx)

    def function(ops: Any, c: Any, x: Any, y: Any) -> Any:
        return ops.where(ops.to_dtype(c, "bool"), x, y)

    return elementwise(cx, [condition, a, b], function, dtype=dtype, compute=[condition.dtype, dtype, dtype])


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(cx: LoweringContext, x: Any, mask: Any, value: Any) -> Any:
    dtype = _result(cx)
    given = cx.given(2, "value")
    if isinstance(given, torch.Tensor) and torch.promote_types(cx.fake.dtype, given.dtype) != cx.fake.dtype:
        return NotImplemented  # the kernel raises for a value that doesn't fit
    return elementwise(cx, [mask, value, x], lambda ops, m, v, a: ops.where(m, v, a), dtype=dtype, compute=["bool", dtype, dtype])


def clamp(cx: LoweringContext, x: Any, low: Any = None, high: Any = None) -> Any:
    dtype = _result(cx)
    bounds = [b for b in (low, high) if b is not None]
    # eager's kernels elsewhere than on the CPU pass by a single number that is NaN
    passes_by = x.device != "cpu" and len(bounds) == 1 and not is_tensor(bounds[0]) and is_float(dtype)

    def function(ops: Any, a: Any, *limits: Any) -> Any:
        rest = list(limits)
        if passes_by:
            limit = rest[0]
            held = ops.maximum(a, limit) if low is not None else ops.minimum(a, limit)
            return ops.where(ops.isnan(limit), a, held)
        if low is not None:
            a = ops.maximum(a, rest.pop(0))
        return ops.minimum(a, rest.pop(0)) if high is not None else a

    return elementwise(cx, [x, *bounds], function, dtype=dtype, compute=dtype, ops=2)


lowering(aten.clamp.default, aten.clamp.Tensor)(clamp)
lowering(aten.clamp_min.default, aten.clamp_min.Tensor)(lambda cx, x, low: clamp(cx, x, low, None))
lowering(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda cx, x, high: clamp(cx, x, None, high))


@lowering(aten.hardtanh.default)
def hardtanh(cx: LoweringContext, x: Any, low: float = -1, high: float = 1) -> Any:
    return clamp(cx, x, low, high)


@lowering(aten.leaky_relu.default)
def leaky_relu(cx: LoweringContext, x: Any, slope: float = 0.01) -> Any:
    if not is_float(x.dtype):
        return NotImplemented  # eager refuses it
    compute = opmath(x.dtype)

    def function(ops: Any, a: Any) -> Any:
        return ops.where(ops.gt(a, ops.constant(0, compute)), a, ops.mul(a, ops.constant(slope, compute)))

    return elementwise(cx, [x], function, dtype=x.dtype, compute=x.dtype, ops=2)


@lowering(aten.gelu.default)
def gelu(cx: LoweringContext, x: Any, approximate: str = "none") -> Any:
    if not is_float(x.dtype):
        return NotImplemented  # eager refuses it
    compute = opmath(x.dtype)

    def exact(ops: Any, a: Any) -> Any:  # x/2 (1 + erf(x/sqrt 2))
        inner = ops.erf(ops.mul(a, ops.constant(math.sqrt(0.5), compute)))
        return ops.mul(ops.mul(a, ops.constant(0.5, compute)), ops.add(ops.constant(1, compute), inner))

    def by_tanh(ops: Any, a: Any) -> Any:  # x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        cube = ops.mul(ops.mul(a, a), a)
        inner = ops.mul(ops.constant(math.sqrt(2 / math.pi), compute), ops.add(a, ops.mul(ops.constant(0.044715, compute), cube)))
        return ops.mul(ops.mul(ops.constant(0.5, compute), a), ops.add(ops.constant(1, compute), ops.tanh(inner)))

    return elementwise(cx, [x], exact if approximate == "none" else by_tanh, dtype=x.dtype, compute=x.dtype, ops=8, heavy=True)


@lowering(aten.silu.default)
def silu(cx: LoweringContext, x: Any) -> Any:
    if not is_float(x.dtype):
        return NotImplemented  # eager refuses it
    return elementwise(cx, [x], lambda ops, a: ops.mul(a, ops.sigmoid(a)), dtype=x.dtype, compute=x.dtype, ops=2, heavy=True)


# ------------------------------------------------------------------------------------------------- copies


@lowering(aten.clone.default)
def clone(cx: LoweringContext, x: Any, memory_format: Any = None) -> Any:
    return cx.copy_of(x)


@lowering(aten._to_copy.default)
def to_copy(cx: LoweringContext, x: Any, **kwargs: Any) -> Any:
    dtype = _result(cx)
    if str(cx.fake.device) != x.device or dtype_info(dtype).kind == "complex" or dtype_info(x.dtype).kind == "complex":
        return NotImplemented
    return cx.compute(
        x.size,
        dtype,
        x.device,
        lambda ops, index: ops.to_dtype(x.load(ops, index), dtype),
        [x],
        ops=int(dtype != x.dtype),
    )


if hasattr(torch.ops.prims, "convert_element_type"):

    @lowering(torch.ops.prims.convert_element_type.default)
    def convert_element_type(cx: LoweringContext, x: Any, dtype: Any) -> Any:
        return to_copy(cx, x)


@lowering(aten.copy.default)
def copy(cx: LoweringContext, target: Any, source: Any, non_blocking: bool = False) -> Any:
    if source.device != target.device:
        return NotImplemented
    from fxloom_inductor_core.lowering.view import expand_to

    wide = expand_to(source, target.size)
    return cx.compute(
        target.size, target.dtype, target.device, lambda ops, index: ops.to_dtype(wide.load(ops, index), target.dtype), [wide]
    )
