"""Rules for powers with an exponent or a base that changes, where they are differentiated: torch's derivatives ask for the number.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are: the same power of a tensor that holds
the number, of which no derivative asks; NotImplemented where a combination is not covered. Exponents that kernels treat apart
(0.5, -0.5), with other results at infinity or minus zero, are specialized on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import rule

_SPECIAL = (0.5, -0.5)


def _is_fit(number: Any, tensor: Any) -> bool:
    """A number with a tensor that is differentiated, and is of a type to which kernels round the number alike."""
    known = type(number) is torch.SymFloat and number.node.has_hint() or type(number) is torch.SymInt
    return known and isinstance(tensor, Tensor) and _is_differentiated(tensor) and tensor.dtype in (torch.float32, torch.float64)


def _is_differentiated(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _number(value: Any, like: Tensor) -> Tensor:
    return torch.scalar_tensor(value, dtype=like.dtype, device=like.device)


@rule(torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)
def power(input: Any, exponent: Any, *, out: Any = None) -> Any:
    if out is not None:
        return NotImplemented
    if _is_fit(input, exponent):
        return torch.pow(_number(input, exponent), exponent)
    if not _is_fit(exponent, input) or type(exponent) is torch.SymFloat and any(exponent == special for special in _SPECIAL):
        return NotImplemented
    return torch.pow(input, _number(exponent, input))


@rule(torch.Tensor.__rpow__)
def power_of_number(exponent: Tensor, base: Any) -> Any:
    return power(base, exponent)


@rule(torch.Tensor.pow_)
def power_in_place(input: Tensor, exponent: Any) -> Any:
    made = power(input.clone(), exponent)
    return made if made is NotImplemented else input.copy_(made)


@rule(torch.xlogy, torch.Tensor.xlogy, torch.special.xlogy)
def xlogy(input: Any, other: Any, *, out: Any = None) -> Any:
    return torch.xlogy(input, _number(other, input)) if out is None and _is_fit(other, input) else NotImplemented
