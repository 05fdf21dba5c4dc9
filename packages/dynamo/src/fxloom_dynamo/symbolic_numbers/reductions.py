"""Rules for norms, variances, quantiles and differences with symbolic parameters or sizes.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are: the result by its formula;
NotImplemented where a combination of arguments is not covered.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import rule
from fxloom_shapes.symbols.numbers import SYMBOLIC


@rule(torch.gradient, any_size=True)
def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: Any = 1) -> Any:
    axes = list(range(input.dim())) if dim is None else list(dim) if isinstance(dim, (list, tuple)) else [dim]
    spaced = isinstance(spacing, (int, float)) or type(spacing) in SYMBOLIC
    if not spaced or edge_order != 1 or not input.is_floating_point() or any(input.shape[axis] < 2 for axis in axes):
        return NotImplemented

    def along(axis: int) -> Tensor:
        n = input.shape[axis]
        first, last = input.narrow(axis, 0, 2), input.narrow(axis, n - 2, 2)
        inner = (input.narrow(axis, 2, n - 2) - input.narrow(axis, 0, n - 2)) / spacing / 2
        edges = [(x.narrow(axis, 1, 1) - x.narrow(axis, 0, 1)) / spacing for x in (first, last)]
        return torch.cat([edges[0], inner, edges[1]], axis)

    return tuple(along(axis) for axis in axes)


def _spectral_norm(input: Tensor, ord: Any, dim: Any, keepdim: Any) -> Any:
    """Norms of matrices by their singular values."""
    axes = [axis % input.dim() for axis in dim]
    values = torch.linalg.svdvals(input.movedim(axes, (-2, -1)))
    found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
    if keepdim:
        for axis in sorted(axes):
            found = found.unsqueeze(axis)
    return found


def _pair_of_axes(input: Tensor, dim: Any) -> bool:
    whole = isinstance(dim, (list, tuple)) and len(dim) == 2 and all(-input.dim() <= axis < input.dim() for axis in dim)
    return whole and dim[0] % input.dim() != dim[1] % input.dim()


@rule(torch.linalg.matrix_norm, any_size=True)
def matrix_norm(input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: Any = False, *, dtype: Any = None, out: Any = None) -> Any:
    if ord not in ("nuc", 2, -2) or dtype is not None or out is not None or input.dim() < 2 or not _pair_of_axes(input, dim):
        return NotImplemented
    return _spectral_norm(input, ord, dim, keepdim)


@rule(torch.linalg.norm, any_size=True)
def norm(input: Tensor, ord: Any = None, dim: Any = None, keepdim: Any = False, *, dtype: Any = None, out: Any = None) -> Any:
    if ord not in ("nuc", 2, -2) or dtype is not None or out is not None:
        return NotImplemented
    axes = (0, 1) if dim is None and input.dim() == 2 else dim
    return _spectral_norm(input, ord, axes, keepdim) if _pair_of_axes(input, axes) else NotImplemented


def extent_along(input: Tensor, dim: Any) -> Any:
    axes = dim if isinstance(dim, (list, tuple)) else range(input.dim()) if dim is None else [dim]
    return math.prod([input.shape[axis] for axis in axes or range(input.dim())])


def _variance(input: Tensor, dim: Any, correction: Any, keepdim: Any) -> Any:
    if type(correction) not in SYMBOLIC:
        return NotImplemented
    count = extent_along(input, dim)
    dims = {} if dim is None else {"dim": dim}
    plain = torch.var(input, correction=0, keepdim=keepdim, **dims) if dims or keepdim else torch.var(input, correction=0)
    divisor = torch.scalar_tensor(torch.sym_max(count - correction, 0), dtype=torch.float64, device=input.device)
    return plain * (count / divisor).to(plain.dtype)


@rule(torch.var, torch.Tensor.var)
def var(input: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: Any = False) -> Any:
    return _variance(input, dim, correction, keepdim)


@rule(torch.std, torch.Tensor.std)
def std(input: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: Any = False) -> Any:
    variance = _variance(input, dim, correction, keepdim)
    return variance if variance is NotImplemented else torch.sqrt(variance)


@rule(torch.quantile, torch.Tensor.quantile)
def quantile(input: Tensor, q: Any, dim: Any = None, keepdim: Any = False, *, interpolation: Any = "linear") -> Any:
    if type(q) not in SYMBOLIC:
        return NotImplemented
    place = torch.scalar_tensor(q, dtype=input.dtype, device=input.device)
    return torch.quantile(input, place, dim, keepdim, interpolation=interpolation)


@rule(F.cosine_similarity)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: Any = 1, eps: Any = 1e-08) -> Any:
    """Norms are at least eps, but differentiated as if they were what they are."""
    if type(eps) not in SYMBOLIC or x1.dtype != x2.dtype or not x1.is_floating_point() or not eps >= 0:
        return NotImplemented
    x1, x2 = torch.broadcast_tensors(x1, x2)
    norms = [torch.linalg.vector_norm(x, 2, dim, keepdim=True) for x in (x1, x2)]
    raised = [torch.where(norm < eps, norm + (eps - norm).detach(), norm) for norm in norms]
    parts = [x / norm for x, norm in zip((x1, x2), raised, strict=True)]
    return (parts[0] * parts[1]).sum(dim)
