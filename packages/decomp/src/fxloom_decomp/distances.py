"""Distances between rows, and norms that are held below a limit.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxloom_decomp.libraries import may_reorder_sums, on_cpu_library
from fxloom_decomp.registry import cast, decomposition, widen
from fxloom_decomp.sizes import is_empty

aten = torch.ops.aten
Number = float | int | bool


def _differences(x: Tensor, y: Tensor) -> Tensor:
    """(..., P, M) and (..., R, M) -> (..., P, R, M)"""
    return torch.unsqueeze(x, -2) - torch.unsqueeze(y, -3)


def _takes(x: Tensor, y: Tensor) -> bool:
    same = x.dtype == y.dtype and x.device == y.device and may_reorder_sums(x.dtype)
    return same and not is_empty(x, [-1, -2]) and not is_empty(y, [-1, -2])


@decomposition(aten._cdist_forward.default)
def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    if not _takes(x, y) or (p == math.inf and on_cpu_library(x)):
        return NotImplemented
    return torch.linalg.vector_norm(_differences(x, y), p, -1)


@decomposition(aten._euclidean_dist.default)
def euclidean_dist(x: Tensor, y: Tensor) -> Tensor:
    """By a matrix product of rows (-2 x, |x|^2, 1) and (y, 1, |y|^2)."""
    if not _takes(x, y):
        return NotImplemented
    x_norm, y_norm = (torch.sum(v * v, -1, keepdim=True) for v in (x, y))
    left = torch.cat([x * -2, x_norm, torch.ones_like(x_norm)], -1)
    right = torch.cat([y, torch.ones_like(y_norm), y_norm], -1)
    return torch.sqrt(torch.clamp(torch.matmul(left, torch.transpose(right, -2, -1)), min=0))


@decomposition(aten._cdist_backward.default)
def cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    if not _takes(x, y) or (p in (2, math.inf) and on_cpu_library(x)) or x.shape[:-2] != y.shape[:-2]:
        return NotImplemented
    if p == 0:
        return torch.zeros_like(x)
    difference = _differences(x, y)
    size, far, slope = torch.abs(difference), torch.unsqueeze(distance, -1), torch.unsqueeze(grad, -1)
    if p == 1:
        parts = slope * torch.sign(difference)
    elif p == math.inf:
        parts = slope * torch.where(size == far, torch.sign(difference), 0.0)
    elif p == 2:
        parts = torch.unsqueeze(torch.where(distance == 0, 0.0, grad / distance), -1) * difference
    else:
        parts = torch.sign(difference) * torch.pow(size, p - 1) * slope / torch.pow(far, p - 1)
        parts = torch.where((far == 0) | ((size == 0) if p < 1 else (far == 0)), 0.0, parts)
    return torch.sum(parts, -2)


@decomposition(aten.renorm.default)
def renorm(x: Tensor, p: Number, dim: int, maxnorm: Number) -> Tensor:
    if not may_reorder_sums(x.dtype) or x.dim() < 2 or p <= 0 or maxnorm < 0:
        return NotImplemented
    others = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    norm = torch.linalg.vector_norm(widen(x), p, others, keepdim=True)
    scale = torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)
    return x * cast(scale, x.dtype)
