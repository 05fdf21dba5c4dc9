"""Foreach operators: lists of tensors, one call of the plain operator for each place of the lists.

In: lists of equal length (eager has checked them when the program was recorded), numbers, tensors. Out: a list of results. Numbers
and tensors that are no lists go to each call. What differs from the plain operator has a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import Op, cast, decomposition, widen

aten = torch.ops.aten
Number = float | int | bool

_ELEMENTWISE = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10",
    "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    "add", "sub", "mul", "div", "clamp_min", "clamp_max", "pow", "lerp",
)  # fmt: skip


def addcmul(x: Tensor, a: Tensor, b: Tensor, value: Number = 1) -> Tensor:
    return torch.addcmul(x, a, b, value=value)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Number = 1) -> Tensor:
    return torch.addcdiv(x, a, b, value=value)


#: foreach operator -> function of single tensors
_SINGLE: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _ELEMENTWISE},
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "zero": torch.zeros_like,
    "copy": aten.copy.default,
    "clone": torch.clone,
    "max": torch.max,
    "norm": torch.linalg.vector_norm,
    "mm": torch.mm,
}
#: a tensor of numbers, one for each place
_NUMBERS_IN_A_TENSOR = frozenset({"addcmul.Tensor", "addcdiv.Tensor"})


def each(call: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The rule that calls `call` once for each place of the lists among its arguments."""

    def rule(*args: Any, **kwargs: Any) -> list[Any]:
        lists = [type(value) in (list, tuple) for value in args]
        length = len(args[lists.index(True)])
        return [call(*[value[n] if many else value for value, many in zip(args, lists, strict=True)], **kwargs) for n in range(length)]

    return rule


def _functional(name: str) -> list[Op]:
    packet = getattr(aten, f"_foreach_{name}", None)  # a release of torch may lack one
    if packet is None:
        return []
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return [op for op in overloads if not op._schema.is_mutable and f"{name}.{op._overloadname}" not in _NUMBERS_IN_A_TENSOR]


for _name, _call in _SINGLE.items():
    decomposition(*_functional(_name))(each(_call))


@decomposition(aten._foreach_addcmul.Tensor)
def addcmul_by_numbers(xs: list[Tensor], a: list[Tensor], b: list[Tensor], numbers: Tensor) -> list[Tensor]:
    return _with_numbers(xs, a, b, numbers, torch.mul)


@decomposition(aten._foreach_addcdiv.Tensor)
def addcdiv_by_numbers(xs: list[Tensor], a: list[Tensor], b: list[Tensor], numbers: Tensor) -> list[Tensor]:
    return _with_numbers(xs, a, b, numbers, torch.div)


def _with_numbers(
    xs: list[Tensor], a: list[Tensor], b: list[Tensor], numbers: Tensor, combine: Callable[[Tensor, Tensor], Tensor]
) -> list[Tensor]:
    places = list(zip(xs, a, b, strict=True))
    if any(x.device != numbers.device or not x.dtype.is_floating_point or {y.dtype, z.dtype} != {x.dtype} for x, y, z in places):
        return NotImplemented
    results = []
    for place, (x, y, z) in enumerate(places):
        wide = widen(x)
        # as a number is: in the type that the operator computes in
        scale = cast(torch.select(numbers, 0, place), wide.dtype)
        results.append(cast(wide + combine(widen(y) * scale, widen(z)), x.dtype))
    return results


def powsum(x: Tensor, exponent: Number = 2, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of the powers of the absolute values."""
    wide = widen(x if dtype is None else cast(x, dtype))
    size = torch.abs(wide)
    return cast(torch.sum(torch.pow(size, exponent)), x.dtype if dtype is None else dtype)


if hasattr(aten, "_foreach_powsum"):

    @decomposition(aten._foreach_powsum.Scalar)
    def foreach_powsum(xs: list[Tensor], exponent: Number = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
        if any(not x.dtype.is_floating_point for x in xs):
            return NotImplemented
        return [powsum(x, exponent, dtype) for x in xs]


@decomposition(aten._amp_foreach_non_finite_check_and_unscale.default)
def non_finite_check_and_unscale(xs: list[Tensor], found: Tensor, inverse_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients times the inverse scale, and 1 in `found` where one was not finite."""
    results = []
    factor = torch.reshape(inverse_scale, ())
    for x in xs:
        found = torch.where(torch.all(torch.isfinite(x)), found, 1.0)
        results.append(cast(widen(x) * factor, x.dtype))
    return results, found
