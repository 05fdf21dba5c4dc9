"""Rules for losses and distances with a symbolic number (a margin, a smoothing) where torch takes a plain one.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are: the loss by its formula, computed by
operators that leave the number symbolic; NotImplemented where a combination of arguments is not covered.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import rule
from fxloom_shapes.symbols.numbers import SYMBOLIC


def _reduced(loss: Tensor, reduction: Any) -> Any:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else NotImplemented


@rule(F.smooth_l1_loss)
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: Any = "mean", beta: Any = 1.0
) -> Any:
    plain = size_average is None and reduce is None and input.is_floating_point()
    if type(beta) not in SYMBOLIC or not plain or input.shape != target.shape or not beta > 0:
        return NotImplemented
    distance = torch.abs(input - target)
    return _reduced(torch.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta), reduction)


@rule(F.huber_loss)
def huber_loss(input: Tensor, target: Tensor, reduction: Any = "mean", delta: Any = 1.0, weight: Any = None) -> Any:
    if type(delta) not in SYMBOLIC or not input.is_floating_point() or input.shape != target.shape or weight is not None or not delta > 0:
        return NotImplemented
    distance = torch.abs(input - target)
    return _reduced(torch.where(distance <= delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta)), reduction)


@rule(F.cross_entropy)
def cross_entropy(
    input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: Any = -100, reduce: Any = None,
    reduction: Any = "mean", label_smoothing: Any = 0.0,
) -> Any:  # fmt: skip
    """(1 - s) * loss + s * mean over classes of -log(probability)"""
    legacy = size_average is not None or reduce is not None
    if type(label_smoothing) not in SYMBOLIC or legacy or input.dim() < 2 or target.dtype is not torch.int64:
        return NotImplemented
    unfit = weight is not None and (weight.dim() != 1 or weight.dtype != input.dtype or weight.shape[0] != input.shape[1])
    if unfit or not 0 <= label_smoothing <= 1:
        return NotImplemented
    logs = torch.log_softmax(input, 1)
    ignored = target == ignore_index
    costs = logs if weight is None else logs * weight.view(-1, *[1] * (input.dim() - 2))
    smooth = (-costs.mean(1)).masked_fill(ignored, 0.0)
    loss = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    if reduction == "mean":
        counted = ignored.logical_not() if weight is None else weight[target.masked_fill(ignored, 0)].masked_fill(ignored, 0.0)
        smooth = smooth.sum() / counted.sum()
    elif reduction == "sum":
        smooth = smooth.sum()
    return (1 - label_smoothing) * loss + label_smoothing * smooth


@rule(F.margin_ranking_loss)
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Any = 0, size_average: Any = None, reduce: Any = None, reduction: Any = "mean"
) -> Any:
    if type(margin) not in SYMBOLIC or size_average is not None or reduce is not None:
        return NotImplemented
    return _reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


@rule(F.hinge_embedding_loss)
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: Any = 1.0, size_average: Any = None, reduce: Any = None, reduction: Any = "mean"
) -> Any:
    if type(margin) not in SYMBOLIC or size_average is not None or reduce is not None:
        return NotImplemented
    zero = torch.zeros_like(input)
    return _reduced(torch.where(target != 1, (margin - input).clamp(min=0), zero) + torch.where(target != -1, input, zero), reduction)


@rule(F.triplet_margin_loss)
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: Any = 1.0, p: Any = 2, eps: Any = 1e-6, swap: Any = False,
    size_average: Any = None, reduce: Any = None, reduction: Any = "mean",
) -> Any:  # fmt: skip
    if type(margin) not in SYMBOLIC or size_average is not None or reduce is not None or not margin > 0:
        return NotImplemented
    near, far = (F.pairwise_distance(anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return _reduced((margin + near - far).clamp(min=0), reduction)


@rule(F.cosine_embedding_loss)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Any = 0, size_average: Any = None, reduce: Any = None, reduction: Any = "mean"
) -> Any:
    """1 - cosine where alike, how far it is above the margin where not. 1e-12 is ATen's (Loss.cpp)."""
    legacy = size_average is not None or reduce is not None
    if type(margin) not in SYMBOLIC or legacy or input1.dtype != input2.dtype or not input1.is_floating_point():
        return NotImplemented
    if target.dim() not in (0, 1) or input1.dim() != target.dim() + 1 or input2.dim() != target.dim() + 1:
        return NotImplemented
    squares = [(x * x).sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / torch.sqrt(squares[0] * squares[1])
    zero = torch.zeros_like(cosine)
    return _reduced(torch.where(target == 1, 1 - cosine, zero) + torch.where(target == -1, (cosine - margin).clamp(min=0), zero), reduction)


@rule(torch.pairwise_distance, F.pairwise_distance)
def pairwise_distance(x1: Tensor, x2: Tensor, p: Any = 2.0, eps: Any = 1e-6, keepdim: Any = False) -> Any:
    if type(eps) not in SYMBOLIC or type(p) in SYMBOLIC or x1.dtype != x2.dtype or not x1.is_floating_point():
        return NotImplemented
    if not x1.dim() or not x2.dim():
        return NotImplemented
    return torch.norm(x1 - x2 + eps, p, -1, keepdim)
