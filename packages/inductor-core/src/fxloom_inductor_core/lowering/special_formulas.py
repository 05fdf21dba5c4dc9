"""Special functions as formulas over the loop IR's elementary ops, so that every code generator has them.

In: a `Number`, the value of one element in float32 or float64. Out: the function's value. Each formula says where it comes from; the
numbers in `special_coefficients` are fits made for it by `tools/fit_special_functions.py`. All branches are computed and one is
chosen, so that loops stay free of jumps; what the others give outside of their ranges, NaN for instance, has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fxloom_inductor_core.lowering.special_coefficients import FITS
from fxloom_interfaces.ops import Ops

_PI = math.pi
_EULER_LIMIT = 10  # where asymptotic series of the gamma function's derivatives start


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A value of a loop body with Python's operators. Python numbers beside it are constants of its dtype."""

    ops: Ops[Any]
    dtype: str
    value: Any

    def _given(self, other: Number | float) -> Any:
        return other.value if isinstance(other, Number) else self.ops.constant(other, self.dtype)

    def _made(self, value: Any) -> Number:
        return Number(self.ops, self.dtype, value)

    def __add__(self, other: Number | float) -> Number:
        return self._made(self.ops.add(self.value, self._given(other)))

    def __radd__(self, other: float) -> Number:
        return self._made(self.ops.add(self._given(other), self.value))

    def __sub__(self, other: Number | float) -> Number:
        return self._made(self.ops.sub(self.value, self._given(other)))

    def __rsub__(self, other: float) -> Number:
        return self._made(self.ops.sub(self._given(other), self.value))

    def __mul__(self, other: Number | float) -> Number:
        return self._made(self.ops.mul(self.value, self._given(other)))

    def __rmul__(self, other: float) -> Number:
        return self._made(self.ops.mul(self._given(other), self.value))

    def __truediv__(self, other: Number | float) -> Number:
        return self._made(self.ops.div(self.value, self._given(other)))

    def __rtruediv__(self, other: float) -> Number:
        return self._made(self.ops.div(self._given(other), self.value))

    def __neg__(self) -> Number:
        return self._made(self.ops.neg(self.value))

    def __abs__(self) -> Number:
        return self._made(self.ops.abs(self.value))

    def __lt__(self, other: Number | float) -> Number:
        return self._made(self.ops.lt(self.value, self._given(other)))

    def __le__(self, other: Number | float) -> Number:
        return self._made(self.ops.le(self.value, self._given(other)))

    def __gt__(self, other: Number | float) -> Number:
        return self._made(self.ops.gt(self.value, self._given(other)))

    def equals(self, other: Number | float) -> Number:
        return self._made(self.ops.eq(self.value, self._given(other)))

    def fma(self, factor: Number, term: Number | float) -> Number:
        """self * factor + term, rounded once."""
        return self._made(self.ops.fma(self.value, factor.value, self._given(term)))

    def chosen(self, a: Number | float, b: Number | float) -> Any:
        """a where this truth value holds, else b."""
        return self._made(self.ops.where(self.value, self._given(a), self._given(b)))

    def copysign(self, sign: Number) -> Number:
        return self._made(self.ops.copysign(self.value, sign.value))


def _function(name: str) -> Callable[[Number], Number]:
    return lambda x: Number(x.ops, x.dtype, getattr(x.ops, name)(x.value))


exp, log, log1p, sqrt, sin, tan, erfc, rounded = (
    _function(name) for name in ("exp", "log", "log1p", "sqrt", "sin", "tan", "erfc", "round")
)  # fmt: skip


def where(condition: Number, a: Number | float, b: Number | float) -> Number:
    return condition.chosen(a, b)  # type: ignore[no-any-return]


def polynomial(t: Number, coefficients: Sequence[float]) -> Number:
    """sum of coefficients[k] * t^k, by Horner's rule."""
    if len(coefficients) == 1:
        return 0.0 * t + coefficients[0]
    result = t._made(t.ops.constant(coefficients[-1], t.dtype))
    for coefficient in reversed(coefficients[:-1]):
        result = result.fma(t, coefficient)
    return result


def fit(name: str, t: Number) -> Number:
    """The fit of this name at t."""
    center, p, q = FITS[name][t.dtype]
    t = t - center if center else t
    return polynomial(t, p) if len(q) == 1 else polynomial(t, p) / polynomial(t, q)


def _is_single(x: Number) -> bool:
    return x.dtype == "float32"


# ------------------------------------------------------------------------------------------------ modified Bessel functions


def _power_series(order: int, y: Number, terms: int) -> Number:
    """sum of y^k / (k! (k + order)!): I_order(x) / (x/2)^order at y = x^2 / 4 (Abramowitz and Stegun 9.6.10). No term is negative."""
    return polynomial(y, [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(terms)])


def bessel_i(x: Number, order: int, scaled: bool) -> Number:
    """I_0 or I_1, times e^-|x| if scaled: the power series up to 8, a fit of sqrt(x) e^-x I(x) in 8 / x beyond."""
    a = abs(x)
    near = _power_series(order, a * a * 0.25, 15 if _is_single(x) else 24)
    if order:
        near = near * (a * 0.5)
    far = fit(f"I{order}_FAR", 8.0 / a) / sqrt(a)
    near, far = (near * exp(-a), far) if scaled else (near, exp(a) * far)
    value = where(a <= 8.0, near, far)
    return where(x < 0.0, -value, value) if order else value


def bessel_k(x: Number, order: int, scaled: bool) -> Number:
    """K_0 or K_1, times e^x if scaled. Up to 1 the part with the logarithm (9.6.11, 9.6.13) and a fit of the rest in x^2 / 4; a fit of
    sqrt(x) e^x K(x) in 1 / x beyond."""
    y = x * x * 0.25
    series = _power_series(order, y, 7 if _is_single(x) else 11)
    if order:
        near = fit("K1_NEAR", y) / x + log(x * 0.5) * (x * 0.5) * series
    else:
        near = fit("K0_NEAR", y) - log(x * 0.5) * series
    far = fit(f"K{order}_FAR", 1.0 / x) / sqrt(x)
    near, far = (near * exp(x), far) if scaled else (near, far * exp(-x))
    value = where(x <= 1.0, near, far)
    return where(x.equals(0.0), math.inf, where(x < 0.0, math.nan, value))


def spherical_bessel_j0(x: Number) -> Number:
    """sin(x) / x, by its power series near 0."""
    near = polynomial(x * x, [(-1) ** k / math.factorial(2 * k + 1) for k in range(5 if _is_single(x) else 8)])
    value = where(abs(x) < 0.5, near, sin(x) / x)
    return where(abs(x).equals(math.inf), 0.0, value)


# ---------------------------------------------------------------------------------------------------- the error function's kin


def _erfinv_ratio(w: Number, *, tails: bool) -> Number:
    """erfinv(x) / x for 1 - x^2 = e^-w: fits in w, or in sqrt(w) where w is large (Giles 2011). tails: also nearer to 1 than x can be."""
    s = sqrt(w)
    large = fit("ERFINV_FAR", s)
    if tails:
        large = where(s <= 4.0, large, s * 0.25 * fit("ERFINV_FARTHER", 4.0 / s))
    return where(w < 5.0, fit("ERFINV_NEAR", w), large)


def erfinv(x: Number) -> Number:
    """In float32."""
    a = abs(x)
    value = x * _erfinv_ratio(-log((1.0 - a) * (1.0 + a)), tails=False)
    return where(a.equals(1.0), x * math.inf, value)


def ndtri(p: Number) -> Number:
    """In float32: the normal distribution's quantile, sqrt(2) erfinv(2 p - 1), where 1 - (2 p - 1)^2 = 4 p (1 - p)."""
    value = (p + p - 1.0) * math.sqrt(2) * _erfinv_ratio(-log(p * (1.0 - p) * 4.0), tails=True)
    return where(p.equals(0.0), -math.inf, where(p.equals(1.0), math.inf, value))


def _erfcx_of_positive(x: Number) -> Number:
    """A fit of erfcx(x) (1 + x/2) in 1 / (1 + x/2) (Shepherd and Laframboise 1981)."""
    t = 2.0 / (2.0 + x)
    return t * fit("ERFCX", t)


def erfcx(x: Number) -> Number:
    """In float32; for negative numbers 2 e^(x^2) - erfcx(-x)."""
    positive = _erfcx_of_positive(abs(x))
    return where(x < 0.0, 2.0 * exp(x * x) - positive, positive)


def log_ndtr(x: Number) -> Number:
    """In float32."""
    t = x * math.sqrt(0.5)
    low = log(_erfcx_of_positive(-t) * 0.5) - t * t
    return where(x < -1.0, low, log1p(erfc(t) * -0.5))


# ----------------------------------------------------------------------------------------- derivatives of the gamma function


def _product(polynomials: Sequence[Sequence[int]]) -> list[int]:
    result = [1]
    for factor in polynomials:
        longer = [0] * (len(result) + len(factor) - 1)
        for i, a in enumerate(result):
            for j, b in enumerate(factor):
                longer[i + j] += a * b
        result = longer
    return result


#: sum over 0 < k < 10 of 1 / (x + k), as one fraction
_STEPS = range(1, _EULER_LIMIT)
_DENOMINATOR = _product([(k, 1) for k in _STEPS])
_NUMERATOR = [sum(row) for row in zip(*(_product([(j, 1) for j in _STEPS if j != k]) for k in _STEPS), strict=True)]


def digamma(x: Number) -> Number:
    """In float32: the asymptotic series (6.3.18) from 10 on, the recurrence (6.3.6) below, the reflection (6.3.7) for negative numbers."""
    negative = x < 0.0
    z = where(negative, 1.0 - x, x)
    small = z < float(_EULER_LIMIT)
    scale = float(_DENOMINATOR[0])
    steps = polynomial(z, [c / scale for c in _NUMERATOR]) / polynomial(z, [c / scale for c in _DENOMINATOR])
    big = where(small, z + float(_EULER_LIMIT), z)
    inverse = 1.0 / big
    u = inverse * inverse
    series = log(big) - 0.5 * inverse - u * polynomial(u, [1 / 12, -1 / 120, 1 / 252, -1 / 240])
    value = where(small, series - steps - 1.0 / z, series)
    whole = rounded(x)
    reflected = value - _PI / tan(_PI * (x - whole))
    value = where(negative, where(x.equals(whole), math.nan, reflected), value)
    return where(x.equals(0.0), (0.0 * x + math.inf).copysign(-x), value)


def trigamma(x: Number) -> Number:
    """The series 6.4.12 after six steps of the recurrence 6.4.6, the reflection 6.4.7 below 1/2. Its last term and the plain product
    with pi are eager's choice: more terms or an exact phase would differ from it in more than last bits."""
    reflect = x < 0.5
    s = sin(_PI * x)
    z = where(reflect, 1.0 - x, x)
    value = where(reflect, -(_PI * _PI) / (s * s), 0.0)
    for _ in range(6):
        value = value + 1.0 / (z * z)
        z = z + 1.0
    u = 1.0 / (z * z)
    value = value + (1.0 + 1.0 / (2.0 * z) + u * (1 / 6 - u * (1 / 30 - u * (1 / 42)))) / z
    return where(reflect, -value, value)
