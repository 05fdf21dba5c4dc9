"""Elementwise operators in prims: tables for those that are one prim, and short formulas.

In: an operator's arguments, tensors and numbers of any sizes and types. Out: its result. Operands are brought to one size and type
first; half-precision formulas are computed in float32 and rounded once, as eager's kernels do.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.prims.operands import (
    Number,
    aligned,
    broadcast,
    device_of,
    element_type,
    float_type,
    full,
    full_like,
    is_number,
    placed,
    to,
    widened,
)
from fxloom_decomp.prims.registry import prims_rule
from fxloom_decomp.registry import Rule, wide_dtype
from fxloom_interfaces.prims import PRIMS, Prim, p
from fxloom_ops.wide_numbers import takes_wide_number

aten = torch.ops.aten


# --- one operand ----------------------------------------------------------------------------------------------------------

_FLOAT_UNARY = (
    "sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
    " sigmoid erf erfc erfinv lgamma digamma i0"
).split()
_SPECIAL_UNARY = (
    "erfcx ndtri log_ndtr i0e i1 i1e airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1"
    " modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
).split()


def _float_unary(prim: Prim) -> Rule:
    def rule(x: Tensor) -> Tensor:
        return prim(to(x, float_type(x)))

    return rule


for _name in _FLOAT_UNARY:
    prims_rule(getattr(aten, _name).default)(_float_unary(PRIMS[_name]))
for _name in _SPECIAL_UNARY:
    prims_rule(getattr(aten, f"special_{_name}").default)(_float_unary(PRIMS[_name]))


def _rounding(prim: Prim) -> Rule:
    def rule(x: Tensor) -> Tensor:
        return prim(x) if x.dtype.is_floating_point else p.copy(x)

    return rule


for _name in ("floor", "ceil", "trunc", "round"):
    prims_rule(getattr(aten, _name).default)(_rounding(PRIMS[_name]))


@prims_rule(aten.round.decimals)
def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    if decimals == 0:
        return p.round(x)
    scale = full_like(x, float(10 ** abs(decimals)), wide_dtype(x.dtype))
    y = widened(x)
    scaled = p.round(p.mul(y, scale) if decimals > 0 else p.div(y, scale))
    return to(p.div(scaled, scale) if decimals > 0 else p.mul(scaled, scale), x.dtype)


for _op, _name in (
    (aten.neg.default, "neg"),
    (aten.abs.default, "abs"),
    (aten.bitwise_not.default, "bitwise_not"),
):
    prims_rule(_op)(lambda x, _prim=PRIMS[_name]: _prim(x))


@prims_rule(aten.sign.default, aten.sgn.default)
def sign(x: Tensor) -> Tensor:
    return p.copy(x) if x.dtype is torch.bool else p.sign(x)


@prims_rule(aten.signbit.default)
def signbit(x: Tensor) -> Tensor:
    return full_like(x, False) if x.dtype is torch.bool else p.signbit(x)


@prims_rule(aten.relu.default)
def relu(x: Tensor) -> Tensor:
    return p.maximum(x, full_like(x, 0))


@prims_rule(aten.isnan.default)
def isnan(x: Tensor) -> Tensor:
    return p.isnan(x) if x.dtype.is_floating_point else full_like(x, False, torch.bool)


@prims_rule(aten.isinf.default)
def isinf(x: Tensor) -> Tensor:
    return p.isinf(x) if x.dtype.is_floating_point else full_like(x, False, torch.bool)


@prims_rule(aten.angle.default)
def angle(x: Tensor) -> Tensor:
    y = to(x, float_type(x))
    turned = p.where(p.lt(y, full_like(y, 0)), full_like(y, math.pi), full_like(y, 0))
    return p.where(p.isnan(y), y, turned)


@prims_rule(aten.frexp.Tensor)
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    return p.frexp(x)


@prims_rule(aten.logical_not.default)
def logical_not(x: Tensor) -> Tensor:
    return p.eq(x, full_like(x, 0))


# --- arithmetic -----------------------------------------------------------------------------------------------------------


def _arithmetic(name: str, prim: Prim, x: Any, y: Any, dtype: torch.dtype) -> Tensor:
    """A prim of two operands. A number beside half-precision tensors is taken unrounded where eager's kernel does so."""
    if wide_dtype(dtype) != dtype:
        device = str(device_of([x, y]))
        if any(is_number(value) and takes_wide_number(name, place, device) for place, value in enumerate((x, y))):
            held = [value if is_number(value) else to(value, dtype) for value in (x, y)]
            return to(prim(*aligned(*held, dtype=torch.float32)), dtype)
    return prim(*aligned(x, y, dtype=dtype))


@prims_rule(aten.add.Tensor, aten.add.Scalar)
def add(x: Tensor, y: Any, alpha: Number = 1) -> Tensor:
    dtype = element_type(x, y)
    if dtype is torch.bool:
        return p.bitwise_or(*aligned(x, y)) if alpha in (1, True) else NotImplemented
    return _plus_scaled("add", x, y, alpha, dtype)


def _is_bool(value: Any) -> bool:
    return value.dtype is torch.bool if isinstance(value, Tensor) else isinstance(value, bool)


@prims_rule(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Tensor, y: Any, alpha: Number = 1) -> Tensor:
    if _is_bool(x) or _is_bool(y):
        return NotImplemented  # eager refuses it
    return _plus_scaled("sub", x, y, alpha, element_type(x, y))


@prims_rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: Tensor, y: Any, alpha: Number = 1) -> Tensor:
    if _is_bool(x) or _is_bool(y):
        return NotImplemented  # eager refuses it
    return _plus_scaled("sub", y, x, alpha, element_type(x, y))


def _plus_scaled(name: str, x: Any, y: Any, alpha: Number, dtype: torch.dtype) -> Tensor:
    """x + alpha · y, or x - alpha · y."""
    if not isinstance(alpha, (torch.SymInt, torch.SymFloat)) and alpha == 1:
        return _arithmetic(name, PRIMS[name], x, y, dtype)
    a, b = aligned(x, y, dtype=dtype)
    if not dtype.is_floating_point:
        return PRIMS[name](a, p.mul(b, full_like(b, alpha)))
    keeps = takes_wide_number(name, 2, str(a.device))
    a, b = widened(a), widened(b)
    scale = full_like(b, alpha) if keeps else to(full_like(b, alpha, dtype), b.dtype)
    return to(p.fma(p.neg(b) if name == "sub" else b, scale, a), dtype)


@prims_rule(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Tensor, y: Any) -> Tensor:
    dtype = element_type(x, y)
    if dtype is torch.bool:
        return p.bitwise_and(*aligned(x, y))
    return _arithmetic("mul", p.mul, x, y, dtype)


@prims_rule(aten.div.Tensor, aten.div.Scalar)
def div(x: Tensor, y: Any) -> Tensor:
    return _arithmetic("div", p.div, x, y, float_type(x, y))


@prims_rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(x, y)
    dtype = element_type(x, y)
    if dtype is torch.bool:
        return NotImplemented
    return _arithmetic("div_mode", p.floor_div if rounding_mode == "floor" else p.trunc_div, x, y, dtype)


@prims_rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(x: Tensor, y: Any) -> Tensor:
    return div_mode(x, y, rounding_mode="floor")


def _binary(prim: Prim, bools: Prim | None = None, floats: bool = False) -> Rule:
    """bools: the prim for booleans. floats: integers and booleans become floats."""

    def rule(x: Any, y: Any) -> Tensor:
        dtype = float_type(x, y) if floats else element_type(x, y)
        chosen = bools if dtype is torch.bool and bools is not None else prim
        return chosen(*aligned(x, y, dtype=dtype))

    return rule


prims_rule(aten.maximum.default)(_binary(p.maximum, p.bitwise_or))
prims_rule(aten.minimum.default)(_binary(p.minimum, p.bitwise_and))
prims_rule(aten.fmod.Tensor, aten.fmod.Scalar)(_binary(p.fmod))
prims_rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(_binary(p.remainder))
prims_rule(aten.atan2.default)(_binary(p.atan2, floats=True))
prims_rule(aten.copysign.Tensor, aten.copysign.Scalar)(_binary(p.copysign, floats=True))
prims_rule(aten.nextafter.default)(_binary(p.nextafter))
prims_rule(aten.hypot.default)(_binary(p.hypot))
prims_rule(aten.igamma.default)(_binary(p.igamma))
prims_rule(aten.igammac.default)(_binary(p.igammac))
for _name in ("and", "or", "xor"):
    _packet = getattr(aten, f"bitwise_{_name}")
    prims_rule(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_binary(PRIMS[f"bitwise_{_name}"]))
for _name, _short in (("left", "l"), ("right", "r")):
    _packet, _old = getattr(aten, f"bitwise_{_name}_shift"), getattr(aten, f"__{_short}shift__")
    prims_rule(_packet.Tensor, _packet.Tensor_Scalar, _packet.Scalar_Tensor, _old.Tensor, _old.Scalar)(_binary(PRIMS[f"shift_{_name}"]))

prims_rule(aten.gcd.default)(_binary(p.gcd))


@prims_rule(aten.lcm.default)
def lcm(x: Tensor, y: Tensor) -> Tensor:
    a, b = aligned(x, y)
    divisor = p.gcd(a, b)
    nothing = p.eq(divisor, full_like(divisor, 0))
    product = p.mul(p.trunc_div(a, p.where(nothing, full_like(divisor, 1), divisor)), b)
    return p.abs(product)


_OF_DEGREE = (
    *(f"{_shifted}chebyshev_polynomial_{_kind}" for _shifted in ("", "shifted_") for _kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)
for _name in _OF_DEGREE:
    _packet = getattr(aten, f"special_{_name}")
    prims_rule(_packet.default, _packet.n_scalar, _packet.x_scalar)(_binary(PRIMS[_name], floats=True))
prims_rule(aten.special_zeta.default, aten.special_zeta.other_scalar, aten.special_zeta.self_scalar)(_binary(p.zeta, floats=True))


@prims_rule(aten.polygamma.default)
def polygamma(n: int, x: Tensor) -> Tensor:
    """Of order 2 and up, (-1)^(n + 1) n! ζ(n + 1, x); that of order 1 eager computes in another way."""
    dtype = float_type(x)
    y = to(x, dtype)
    if n in (0, 1):
        return p.trigamma(y) if n else p.digamma(y)
    if n < 0 or n > 20:
        return NotImplemented
    y = widened(y)
    factor = full_like(y, (-1) ** (n + 1) * math.factorial(n))
    return to(p.mul(factor, p.zeta(full_like(y, n + 1), y)), dtype)


@prims_rule(aten.ldexp.Tensor)
def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    return mul(x, power_of_number(2.0, exponent))


@prims_rule(aten.pow.Tensor_Tensor)
def power(x: Tensor, y: Tensor) -> Tensor:
    return p.pow(*aligned(x, y))


@prims_rule(aten.pow.Scalar)
def power_of_number(x: Number, y: Tensor) -> Tensor:
    dtype = element_type(x, y)
    if dtype is torch.bool:
        return NotImplemented
    if not isinstance(x, (torch.SymInt, torch.SymFloat)) and x == 1:
        return full_like(y, 1, dtype)
    return p.pow(*aligned(x, y, dtype=dtype))


@prims_rule(aten.pow.Tensor_Scalar)
def power_to_number(x: Tensor, y: Number) -> Tensor:
    dtype = element_type(x, y)
    if isinstance(y, (torch.SymInt, torch.SymFloat)):
        return p.pow(*aligned(x, y, dtype=dtype))
    base = to(x, dtype)
    if y == 0:
        return full_like(base, 1)
    if y == 1:
        return p.copy(base)
    if dtype is torch.bool or (not dtype.is_floating_point and y < 0):
        return NotImplemented  # eager refuses it
    if y == 2:
        return p.mul(base, base)
    if dtype.is_floating_point and y == 0.5:
        return p.sqrt(base)
    if dtype.is_floating_point and y == -0.5:
        return p.rsqrt(base)
    if dtype.is_floating_point and y == -1:
        return p.reciprocal(base)
    return p.pow(base, full_like(base, y))


# --- comparisons ----------------------------------------------------------------------------------------------------------

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _packet = getattr(aten, _name)
    prims_rule(_packet.Tensor, _packet.Scalar)(_binary(PRIMS[_name]))


def truth(x: Tensor) -> Tensor:
    """Not 0?"""
    return x if x.dtype is torch.bool else p.ne(x, full_like(x, 0))


def _logical(prim: Prim) -> Rule:
    def rule(x: Tensor, y: Tensor) -> Tensor:
        return prim(*aligned(truth(x), truth(y), dtype=torch.bool))

    return rule


for _name in ("and", "or", "xor"):
    prims_rule(getattr(aten, f"logical_{_name}").default)(_logical(PRIMS[f"bitwise_{_name}"]))


def _at_least(x: Tensor, low: Tensor) -> Tensor:
    return p.bitwise_or(x, low) if x.dtype is torch.bool else p.maximum(x, low)


def _at_most(x: Tensor, high: Tensor) -> Tensor:
    return p.bitwise_and(x, high) if x.dtype is torch.bool else p.minimum(x, high)


@prims_rule(aten.clamp.default, aten.clamp.Tensor)
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    values = [value for value in (x, min, max) if value is not None]
    found, *limits = aligned(*values)
    if min is not None:
        found = _at_least(found, limits.pop(0))
    return _at_most(found, limits.pop(0)) if max is not None else found


@prims_rule(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(x: Tensor, low: Any) -> Tensor:
    return _at_least(*aligned(x, low))


@prims_rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: Tensor, high: Any) -> Tensor:
    return _at_most(*aligned(x, high))


@prims_rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    dtype = element_type(x, y)
    if not any(isinstance(value, Tensor) for value in (x, y)) and dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    held = [to(value, dtype) if isinstance(value, Tensor) else value for value in (x, y)]
    return p.where(*_chosen(condition, held, dtype))


def _chosen(condition: Tensor, values: list[Any], dtype: torch.dtype) -> list[Tensor]:
    """A condition and two values, of one size."""
    device = device_of([condition, *values])
    mask = truth(placed(condition, device))
    spread = aligned(mask, *values, dtype=dtype)
    return [broadcast(mask, spread[0].shape), *spread[1:]]


# --- types and copies -----------------------------------------------------------------------------------------------------


@prims_rule(aten._to_copy.default)
def to_copy(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    if layout not in (None, torch.strided):
        return NotImplemented
    found = to(x, dtype or x.dtype)
    if device is not None and torch.device(device) != x.device:
        return p.to_device(found, torch.device(device))
    return p.copy(found) if found is x else found


@prims_rule(torch.ops.prims.convert_element_type.default)
def convert_element_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    return to(x, dtype)


@prims_rule(aten.clone.default)
def clone(x: Tensor, memory_format: torch.memory_format | None = None) -> Tensor:
    return p.copy(x)


@prims_rule(aten.copy.default)
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    found = broadcast(to(placed(source, x.device), x.dtype), x.shape)
    return p.copy(found) if found is source else found


@prims_rule(aten.masked_fill.Scalar)
def masked_fill(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    if mask.dtype is not torch.bool:
        return NotImplemented
    held, number, y = _chosen(mask, [value, x], x.dtype)
    return p.where(held, number, y)


@prims_rule(aten.fill.Scalar)
def fill(x: Tensor, value: Number) -> Tensor:
    return full(x.shape, value, x.dtype, x.device)
