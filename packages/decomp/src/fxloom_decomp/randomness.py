"""Random operators in terms of `rand` and `randn`. The numbers differ from eager's; the distribution does not."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten


def _uniform(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(list(x.shape), dtype=dtype, device=x.device)


@decomposition(aten.native_dropout.default)
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return torch.clone(x), torch.full(list(x.shape), True, dtype=torch.bool, device=x.device)
    if p == 1:
        return torch.zeros_like(x), torch.full(list(x.shape), False, dtype=torch.bool, device=x.device)
    keep = _uniform(x) >= p
    kept = torch.where(keep, widen(x) * (1 / (1 - p)), torch.full((), 0, dtype=widen(x).dtype, device=x.device))
    return cast(kept, x.dtype), keep


@decomposition(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.where(mask, grad * scale, torch.full((), 0, dtype=grad.dtype, device=grad.device))


@decomposition(aten.bernoulli.p)
def bernoulli_p(x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    return NotImplemented if generator is not None else cast(_uniform(x) < p, x.dtype)


@decomposition(aten.bernoulli.default)
def bernoulli(x: Tensor, generator: Any = None) -> Tensor:
    return NotImplemented if generator is not None else cast(_uniform(x) < widen(x), x.dtype)


@decomposition(aten.uniform.default)
def uniform(x: Tensor, low: float = 0, high: float = 1, generator: Any = None) -> Tensor:
    if generator is not None or x.dtype.is_complex:
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return cast(_uniform(x, wide) * (high - low) + low, x.dtype)


@decomposition(aten.normal_functional.default)
def normal(x: Tensor, mean: float = 0, std: float = 1, generator: Any = None) -> Tensor:
    if generator is not None or x.dtype.is_complex:
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return cast(torch.randn(list(x.shape), dtype=wide, device=x.device) * std + mean, x.dtype)


@decomposition(aten.exponential.default)
def exponential(x: Tensor, lambd: float = 1, generator: Any = None) -> Tensor:
    if generator is not None or math.isinf(lambd):
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    # 1 - u lies in (0, 1]
    return cast(torch.neg(torch.log1p(-_uniform(x, wide))) / lambd, x.dtype)


@decomposition(aten.rand_like.default)
def rand_like(
    x: Tensor, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    if not x.is_contiguous() or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    return torch.rand(list(x.shape), dtype=dtype or x.dtype, device=device or x.device)


@decomposition(aten.randn_like.default)
def randn_like(
    x: Tensor, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    if not x.is_contiguous() or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    return torch.randn(list(x.shape), dtype=dtype or x.dtype, device=device or x.device)
