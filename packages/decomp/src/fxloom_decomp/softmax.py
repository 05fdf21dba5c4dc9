"""Softmax, log-softmax and log-sum-exp, with their derivatives.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen
from fxloom_decomp.sizes import is_empty

aten = torch.ops.aten


@decomposition(aten._softmax.default, floats_only=True)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if is_empty(x, [dim]):
        return NotImplemented
    wide = widen(x)
    shifted = torch.exp(wide - torch.amax(wide, dim, keepdim=True))
    result = shifted / torch.sum(shifted, dim, keepdim=True)
    return result if half_to_float else cast(result, x.dtype)


@decomposition(aten._log_softmax.default, floats_only=True)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if is_empty(x, [dim]):
        return NotImplemented
    wide = widen(x)
    shifted = wide - torch.amax(wide, dim, keepdim=True)
    result = shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))
    return result if half_to_float else cast(result, x.dtype)


@decomposition(aten._softmax_backward_data.default, floats_only=True)
def softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    if is_empty(y, [dim]):
        return NotImplemented
    wide, share = widen(grad), widen(y)
    # the difference is taken before the product: where its terms cancel each other, two rounded products would not
    return cast(share * (wide - torch.sum(wide * share, dim, keepdim=True)), input_dtype)


@decomposition(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    if is_empty(y, [dim]):
        return NotImplemented
    wide = widen(grad)
    return cast(wide - torch.exp(widen(y)) * torch.sum(wide, dim, keepdim=True), input_dtype)


@decomposition(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if is_empty(x, dim) or not x.dtype.is_floating_point:
        return NotImplemented
    wide = widen(x)
    largest = torch.amax(wide, dim, keepdim=True)
    # an infinite maximum is the answer by itself: don't subtract it
    shift = torch.where(torch.abs(largest) == math.inf, 0.0, largest)
    total = torch.sum(torch.exp(wide - shift), dim, keepdim=keepdim)
    shift = torch.amax(shift, dim, keepdim=keepdim) if not keepdim else shift
    return cast(torch.log(total) + shift, x.dtype)


@decomposition(aten._safe_softmax.default)
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that gives zeros for a row of nothing but -inf."""
    if is_empty(x, [dim]):
        return NotImplemented
    result = torch.softmax(x, dim, dtype=dtype)
    nothing = torch.all(x == -math.inf, dim, keepdim=True)
    return torch.where(nothing, torch.full((), 0, dtype=result.dtype, device=x.device), result)
