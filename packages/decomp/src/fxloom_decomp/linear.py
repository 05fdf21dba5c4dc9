"""Products of matrices and vectors in terms of mm, bmm, addmm, baddbmm. They stay library calls.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten
Number = float | int | bool


@decomposition(aten.t.default)
def t(x: Tensor) -> Tensor:
    return torch.permute(x, [1, 0]) if x.dim() == 2 else x


@decomposition(aten.linear.default)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dim() != 2 or x.dim() < 1:
        return NotImplemented
    rows = x.reshape([-1, x.shape[-1]]) if x.dim() != 2 else x
    turned = torch.permute(weight, [1, 0])
    if bias is not None and bias.dim() == 1:
        out = torch.addmm(bias, rows, turned)
    else:
        out = torch.mm(rows, turned)
        out = out if bias is None else out + bias
    return out.reshape([*x.shape[:-1], weight.shape[0]]) if x.dim() != 2 else out


@decomposition(aten.mv.default)
def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.squeeze(torch.mm(matrix, torch.unsqueeze(vector, 1)), 1)


@decomposition(aten.dot.default)
def dot(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return NotImplemented
    if not x.dtype.is_floating_point:
        return torch.sum(x * y, dtype=x.dtype)
    return cast(torch.sum(widen(x) * widen(y)), x.dtype)


@decomposition(aten.addmv.default)
def addmv(x: Tensor, matrix: Tensor, vector: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    product = torch.mv(matrix, vector)
    return _weighted(x, product, beta, alpha)


@decomposition(aten.addbmm.default)
def addbmm(x: Tensor, a: Tensor, b: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    # one long inner axis: sum over batches included
    rows = torch.permute(a, [1, 0, 2]).reshape([a.shape[1], -1])
    return torch.addmm(x, rows, b.reshape([-1, b.shape[2]]), beta=beta, alpha=alpha)


@decomposition(aten.addr.default)
def addr(x: Tensor, a: Tensor, b: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    product = widen(torch.unsqueeze(a, 1)) * widen(torch.unsqueeze(b, 0))
    return cast(_weighted(widen(x), product, beta, alpha), x.dtype)


def _weighted(x: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    product = product if alpha == 1 else product * alpha
    # beta 0 drops x, NaN and all
    if beta == 0:
        return product.expand(torch.broadcast_shapes(x.shape, product.shape)).clone()
    return (x if beta == 1 else x * beta) + product
