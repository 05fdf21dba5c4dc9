"""Rules for pointwise functions with symbolic parameters (an epsilon, a weight, the ends of a range).

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are; NotImplemented where a combination of
arguments is not covered. Half types are computed in float32, as kernels do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import rule
from fxloom_shapes.symbols.numbers import SYMBOLIC


@rule(torch.nan_to_num, torch.Tensor.nan_to_num)
def nan_to_num(input: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None, *, out: Any = None) -> Any:
    if out is not None or input.dtype not in (torch.float32, torch.float64):
        return NotImplemented

    def number(given: Any, default: float) -> Any:
        """In the type of `input`, an infinity where it does not fit, which `torch.where` refuses."""
        return torch.scalar_tensor(default if given is None else given, dtype=torch.float64, device=input.device).to(input.dtype)

    ends = torch.finfo(input.dtype)
    result = torch.where(input.isnan(), number(nan, 0.0), input)
    result = torch.where(input == math.inf, number(posinf, ends.max), result)
    return torch.where(input == -math.inf, number(neginf, ends.min), result)


@rule(torch.isclose, torch.Tensor.isclose)
def isclose(input: Tensor, other: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Any:
    if input.dtype != other.dtype or not input.is_floating_point() or equal_nan or not rtol >= 0 or not atol >= 0:
        return NotImplemented
    apart = (input - other).abs()
    return (input == other) | (apart.isfinite() & (apart <= atol + (rtol * other).abs()))


@rule(torch.logit, torch.Tensor.logit, torch.special.logit)
def logit(input: Tensor, eps: Any = None, *, out: Any = None) -> Any:
    plain = out is None and input.dtype in (torch.float32, torch.float64)
    if type(eps) not in SYMBOLIC or not plain or not eps >= 0 or not eps <= 1:
        return NotImplemented
    # not `clamp`, for which the upper end counts where the ends cross; what is outside has no derivative
    return torch.logit(torch.where(input < eps, eps, torch.where(input > 1 - eps, 1 - eps, input)))


def _opmath(dtype: torch.dtype) -> torch.dtype:
    """The type that kernels compute in: a half type goes on to float32, and the number beside it is not rounded to the half type."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@rule(torch.celu, F.celu)
def celu(input: Tensor, alpha: Any = 1.0, inplace: Any = False) -> Any:
    """Its derivative asks for alpha."""
    if type(alpha) not in SYMBOLIC or inplace or alpha == 0.0:
        return NotImplemented
    x = input.to(_opmath(input.dtype))
    return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0) / alpha)).to(input.dtype)


@rule(F.softshrink)
def softshrink(input: Tensor, lambd: Any = 0.5) -> Any:
    if input.dtype == _opmath(input.dtype) or not lambd >= 0.0:
        return NotImplemented
    return F.softshrink(input.to(_opmath(input.dtype)), lambd).to(input.dtype)


@rule(torch.round, torch.Tensor.round, torch.special.round)
def round_to_decimals(input: Tensor, *, decimals: Any = 0, out: Any = None) -> Any:
    return NotImplemented if out is not None else torch.ops.aten.round.decimals(input, decimals=decimals)


@rule(torch.round_, torch.Tensor.round_)
def round_to_decimals_in_place(input: Tensor, *, decimals: Any = 0) -> Any:
    return input.copy_(round_to_decimals(input.clone(), decimals=decimals))


@rule(torch.polygamma, torch.special.polygamma)
def polygamma(n: Any, input: Tensor, *, out: Any = None) -> Any:
    return NotImplemented if out is not None or n < 0 else torch.ops.aten.polygamma.default(n, input)


@rule(torch.lerp, torch.Tensor.lerp)
def lerp(input: Tensor, end: Tensor, weight: Any) -> Any:
    if type(weight) not in SYMBOLIC:
        return NotImplemented
    wide = _opmath(input.dtype)
    if end.dtype != input.dtype:
        return NotImplemented  # eager refuses it
    return torch.lerp(input.to(wide), end.to(wide), torch.scalar_tensor(weight, dtype=wide, device=input.device)).to(input.dtype)
