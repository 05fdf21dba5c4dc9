"""Elementwise operators that are short formulas of simpler ones.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxloom_decomp.axes import number_like
from fxloom_decomp.registry import INT_TO_FLOAT, OPMATH, cast, decomposition

aten = torch.ops.aten
Number = float | int | bool


@decomposition(aten.rsub.Tensor, sets=("core_aten",))
def rsub(x: Tensor, y: Tensor, alpha: Number = 1) -> Tensor:
    return torch.sub(y, x, alpha=alpha)


@decomposition(aten.rsub.Scalar, sets=("core_aten",))
def rsub_scalar(x: Tensor, y: Number, alpha: Number = 1) -> Tensor:
    common = torch.result_type(x, y)
    number = torch.full((), y, dtype=common, device=x.device)
    return torch.sub(number, cast(x, common), alpha=alpha)


@decomposition(aten.square.default)
def square(x: Tensor) -> Tensor:
    return x * x


@decomposition(aten.addcmul.default, promote=OPMATH)
def addcmul(x: Tensor, a: Tensor, b: Tensor, value: Number = 1) -> Tensor:
    if isinstance(value, torch.SymFloat) and not (x.dtype.is_floating_point or x.dtype.is_complex):
        return NotImplemented
    scale = value if x.dtype.is_floating_point or x.dtype.is_complex else int(value)  # eager's kernel has it in its own type
    if scale == 1:
        return x + a * b
    return x + (a * scale * b if x.device.type == "cpu" else a * b * scale)  # in the order of eager's kernels: products overflow


@decomposition(aten.addcdiv.default, promote=OPMATH)
def addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Number = 1) -> Tensor:
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return NotImplemented  # eager raises
    if value == 1:
        return x + a / b
    return x + (a * value / b if x.device.type == "cpu" else a / b * value)


@decomposition(aten.lerp.Scalar, promote=OPMATH, floats_only=True)
def lerp_scalar(start: Tensor, end: Tensor, weight: Number) -> Tensor:
    if isinstance(weight, torch.SymFloat):  # which end is nearer is seen when the program runs
        dtype = start.dtype.to_real() if start.dtype.is_complex else start.dtype
        return lerp_tensor(start, end, torch.scalar_tensor(weight, dtype=dtype, device=start.device))
    # the form that is exact at the nearer end
    if abs(weight) < 0.5:
        return start + weight * (end - start)
    return end - (end - start) * (1 - weight)


@decomposition(aten.lerp.Tensor, promote=OPMATH, floats_only=True)
def lerp_tensor(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    if weight.dtype.is_complex:
        return NotImplemented
    difference = end - start
    return torch.where(torch.abs(weight) < 0.5, start + weight * difference, end - difference * (1 - weight))


@decomposition(aten.masked_fill.Scalar)
def masked_fill(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    if mask.dtype is not torch.bool:
        return NotImplemented
    return torch.where(mask, torch.full((), value, dtype=x.dtype, device=x.device), x)


@decomposition(aten.masked_fill.Tensor)
def masked_fill_tensor(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or value.device != x.device:
        return NotImplemented
    if torch.promote_types(x.dtype, value.dtype) != x.dtype:
        return NotImplemented  # the kernel raises for a value that doesn't fit
    return torch.where(mask, cast(value, x.dtype), x)


@decomposition(aten.logit.default, promote=INT_TO_FLOAT)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    if eps is not None and eps >= 0:  # above 0.5 the ends cross: the lower one comes first
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x))
    return torch.log(x / (1 - x))


@decomposition(aten.logit_backward.default, promote=OPMATH)
def logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    slope = grad / (x * (1 - x))
    if eps is None or eps < 0:
        return torch.where((x < 0) | (x > 1), math.nan, slope)
    return torch.where((x < eps) | (x > 1 - eps), 0.0, slope)


@decomposition(aten.deg2rad.default, promote=INT_TO_FLOAT)
def deg2rad(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


@decomposition(aten.rad2deg.default, promote=INT_TO_FLOAT)
def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


@decomposition(aten.sinc.default, promote=INT_TO_FLOAT)
def sinc(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return NotImplemented
    scaled = x * math.pi
    return torch.where(scaled == 0, 1.0, torch.sin(scaled) / scaled)


@decomposition(aten.logaddexp.default, promote=OPMATH)
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    larger = torch.maximum(x, y)
    # equal infinities: their difference would be NaN
    same = torch.isinf(x) & (x == y)
    return torch.where(same, x, larger + torch.log1p(torch.exp(-torch.abs(x - y))))


@decomposition(aten.logaddexp2.default, promote=OPMATH)
def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    larger = torch.maximum(x, y)
    same = torch.isinf(x) & (x == y)
    return torch.where(same, x, larger + torch.log1p(torch.exp2(-torch.abs(x - y))) * (1 / math.log(2)))


@decomposition(aten.xlogy.Tensor, promote=INT_TO_FLOAT)
def xlogy(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(y), math.nan, torch.where(x == 0, 0.0, x * torch.log(y)))


@decomposition(aten.special_entr.default, promote=INT_TO_FLOAT)
def entr(x: Tensor) -> Tensor:
    return torch.where(x > 0, -x * torch.log(x), torch.where(x == 0, 0.0, torch.where(torch.isnan(x), x, -math.inf)))


@decomposition(aten.nan_to_num.default)
def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    if x.dtype.is_complex:
        return NotImplemented
    if not x.dtype.is_floating_point:
        return torch.clone(x)
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    number = torch.where(torch.isnan(x), _converted(0.0 if nan is None else nan, x), x)
    number = torch.where(x == math.inf, _converted(high, x), number)
    return torch.where(x == -math.inf, _converted(low, x), number)


def _converted(value: float, x: Tensor) -> Tensor:
    """The number in the type of `x`, an infinity where it does not fit, which `torch.full` refuses."""
    return torch.full((), value, dtype=torch.float64, device=x.device).to(x.dtype)


@decomposition(aten.heaviside.default)
def heaviside(x: Tensor, values: Tensor) -> Tensor:
    step = torch.where(x > 0, number_like(1, x), number_like(0, x))
    return torch.where(x == 0, values, step)


@decomposition(aten.isposinf.default)
def isposinf(x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return torch.full_like(x, False, dtype=torch.bool)
    return x == math.inf


@decomposition(aten.isneginf.default)
def isneginf(x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return torch.full_like(x, False, dtype=torch.bool)
    return x == -math.inf


@decomposition(aten.frac.default, floats_only=True)
def frac(x: Tensor) -> Tensor:
    return x - torch.trunc(x)


@decomposition(aten.hypot.default, promote=OPMATH)
def hypot(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        return NotImplemented
    # in float64 squares of float32 numbers neither overflow nor vanish
    a, b = cast(x, torch.float64), cast(y, torch.float64)
    length = cast(torch.sqrt(a * a + b * b), torch.float32)
    return torch.where(torch.isinf(x) | torch.isinf(y), math.inf, length)  # also where the other one is NaN


@decomposition(aten.clamp_min.default)
def clamp_min(x: Tensor, low: Number) -> Tensor:
    return torch.clamp(x, min=low)


@decomposition(aten.clamp_max.default)
def clamp_max(x: Tensor, high: Number) -> Tensor:
    return torch.clamp(x, max=high)


@decomposition(aten.copy.default)
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if source.device != x.device:
        return NotImplemented
    value = cast(source, x.dtype)
    return torch.clone(value.expand(x.shape)) if value.shape != x.shape else torch.clone(value)


@decomposition(aten.fill.Scalar)
def fill(x: Tensor, value: Number) -> Tensor:
    return torch.full_like(x, value)


@decomposition(aten.fill.Tensor)
def fill_tensor(x: Tensor, value: Tensor) -> Tensor:
    if value.device != x.device:
        return NotImplemented
    return torch.clone(cast(value, x.dtype).expand(x.shape))


@decomposition(aten.zero.default)
def zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x)
