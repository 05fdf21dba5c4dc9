"""Elementwise ops: a table for those that map onto one loop op, and small bodies for the rest.

In: the context and the operator's arguments as lowered values. Out: a tensor with a body that computes one element; no loop is added
before something needs it stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.lowering.promote import binary, elementwise, is_tensor, promote, result_dtype, to_float
from fxloom_inductor_core.lowering.registry import library_call, lowering
from fxloom_interfaces.dtypes import dtype_info, is_float, is_integer, opmath
from fxloom_interfaces.ops import OPS

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


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
            cx, [x], lambda ops, a: getattr(ops, name)(a), dtype=result_dtype(cx), compute=to_float(x.dtype), heavy=heavy
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
        return elementwise(cx, [x], lambda ops, a: getattr(ops, name)(a), dtype=result_dtype(cx), compute=x.dtype)

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


# ------------------------------------------------------------------------------------------------ two operands


for _ops, _name in (
    ((aten.maximum.default,), "maximum"),
    ((aten.minimum.default,), "minimum"),
    ((aten.atan2.default,), "atan2"),
    ((aten.copysign.Tensor, aten.copysign.Scalar), "copysign"),
):
    lowering(*_ops)(binary(_name))


def _where_dtype(takes: Callable[[str], bool], rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` for results of the dtypes that `takes` is true of; the others run, or are refused, as in eager."""

    def for_some(cx: LoweringContext, a: Any, b: Any) -> Any:
        return rule(cx, a, b) if takes(result_dtype(cx)) else NotImplemented

    for_some.__qualname__ = rule.__qualname__
    return for_some


for _ops, _name in (
    ((aten.bitwise_and.Tensor, aten.bitwise_and.Scalar), "bitwise_and"),
    ((aten.bitwise_or.Tensor, aten.bitwise_or.Scalar), "bitwise_or"),
    ((aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar), "bitwise_xor"),
):
    lowering(*_ops)(_where_dtype(_has_bits, binary(_name)))

for _shifts, _name in (
    ((aten.bitwise_left_shift.Tensor, aten.__lshift__.Scalar, aten.__lshift__.Tensor), "shift_left"),
    ((aten.bitwise_right_shift.Tensor, aten.__rshift__.Scalar, aten.__rshift__.Tensor), "shift_right"),
):
    lowering(*_shifts)(_where_dtype(is_integer, binary(_name)))

# The neighbour of a float16 is no neighbour in float32, in which kernels compute.
lowering(aten.nextafter.default)(_where_dtype(lambda dtype: dtype == opmath(dtype), binary("nextafter")))


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
    dtype = result_dtype(cx)
    if dtype != "float32" or x.dtype != dtype or not is_integer(exponent.dtype):
        return library_call(cx)

    def function(ops: Any, a: Any, e: Any) -> Any:
        low, high, bias, digits = (ops.constant(c, "int64") for c in (-400, 400, 1023, 52))
        held = ops.minimum(ops.maximum(e, low), high)
        power = ops.bitcast(ops.shift_left(ops.add(held, bias), digits), "float64")
        return ops.mul(ops.to_dtype(a, "float64"), power)

    return elementwise(cx, [x, exponent], function, dtype=dtype, compute=[dtype, "int64"], ops=8)


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
    dtype = result_dtype(cx)

    def function(ops: Any, c: Any, x: Any, y: Any) -> Any:
        return ops.where(ops.to_dtype(c, "bool"), x, y)

    return elementwise(cx, [condition, a, b], function, dtype=dtype, compute=[condition.dtype, dtype, dtype])


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(cx: LoweringContext, x: Any, mask: Any, value: Any) -> Any:
    dtype = result_dtype(cx)
    given = cx.given(2, "value")
    if isinstance(given, torch.Tensor) and torch.promote_types(cx.fake.dtype, given.dtype) != cx.fake.dtype:
        return NotImplemented  # the kernel raises for a value that doesn't fit
    return elementwise(cx, [mask, value, x], lambda ops, m, v, a: ops.where(m, v, a), dtype=dtype, compute=["bool", dtype, dtype])


def clamp(cx: LoweringContext, x: Any, low: Any = None, high: Any = None) -> Any:
    dtype = result_dtype(cx)
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
    dtype = result_dtype(cx)
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
