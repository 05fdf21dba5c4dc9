"""Losses and their derivatives. reduction: 0 none, 1 mean, 2 sum (ATen's numbering).

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxloom_decomp.expectations import expect
from fxloom_decomp.registry import OPMATH, cast, decomposition, widen
from fxloom_decomp.sizes import is_empty
from fxloom_ops.choices import CHOOSE_CLASS

aten = torch.ops.aten
_NONE, _MEAN, _SUM = 0, 1, 2


def _reduce(loss: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return torch.mean(loss)
    return torch.sum(loss) if reduction == _SUM else loss


def _spread(grad: Tensor, like: Tensor, reduction: int) -> Tensor:
    """The gradient of each element of the loss."""
    return grad / like.numel() if reduction == _MEAN and like.numel() else grad


@decomposition(aten.mse_loss.default, promote=OPMATH)
def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    difference = x - target
    return _reduce(difference * difference, reduction)


@decomposition(aten.mse_loss_backward.default, promote=OPMATH)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return 2.0 * (x - target) * _spread(grad, x, reduction)


@decomposition(aten.smooth_l1_loss.default, promote=OPMATH, floats_only=True)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    z = torch.abs(x - target)
    if beta == 0:
        return _reduce(z, reduction)
    return _reduce(torch.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction)


@decomposition(aten.smooth_l1_loss_backward.default, promote=OPMATH)
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference = x - target
    slope = torch.sign(difference)
    if beta != 0:
        slope = torch.where(torch.abs(difference) >= beta, slope, difference / beta)  # of NaN it is NaN
    return slope * _spread(grad, difference, reduction)


@decomposition(aten.huber_loss.default, promote=OPMATH, floats_only=True)
def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    z = torch.abs(x - target)
    return _reduce(torch.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction)


@decomposition(aten.huber_loss_backward.default, promote=OPMATH)
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    return torch.clamp(x - target, -delta, delta) * _spread(grad, x, reduction)


@decomposition(aten.binary_cross_entropy.default, promote=OPMATH, floats_only=True)
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Tensor:
    expect((x >= 0) & (x <= 1), "all elements of input should be between 0 and 1")
    expect((target >= 0) & (target <= 1), "all elements of target should be between 0 and 1")
    # logarithms are cut at -100 (ATen), so that 0·log 0 is 0
    loss = (target - 1) * torch.clamp(torch.log1p(-x), min=-100) - target * torch.clamp(torch.log(x), min=-100)
    return _reduce(loss if weight is None else loss * weight, reduction)


@decomposition(aten.binary_cross_entropy_backward.default, promote=OPMATH)
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    slope = grad * (x - target) / torch.clamp(x * (1 - x), min=1e-12)
    slope = slope if weight is None else slope * weight
    return slope / x.numel() if reduction == _MEAN and x.numel() else slope


@decomposition(aten.binary_cross_entropy_with_logits.default, promote=OPMATH)
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    # -log σ(x) = log(1 + e^-|x|) + max(-x, 0)
    log_sigmoid = torch.clamp(x, max=0) - torch.log1p(torch.exp(-torch.abs(x)))
    if pos_weight is None:
        loss = (1 - target) * x - log_sigmoid
    else:
        loss = (1 - target) * x - (1 + (pos_weight - 1) * target) * log_sigmoid
    return _reduce(loss if weight is None else loss * weight, reduction)


def _class_axis(x: Tensor) -> int:
    return 0 if x.dim() < 2 else 1


def _chosen(value: Tensor, index: Tensor, axis: int) -> Tensor:
    return torch.squeeze(CHOOSE_CLASS(value, axis, torch.unsqueeze(index, axis)), axis)


def _of_one_row(x: Tensor, target: Tensor) -> Tensor:
    """The target of a row without a batch may have one element instead of no axes."""
    return target.reshape([]) if x.dim() == target.dim() == 1 else target


@decomposition(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, floats_only=True)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    axis = _class_axis(x)
    if is_empty(x, [axis]) or target.dtype != torch.int64:
        return NotImplemented
    target = _of_one_row(x, target)
    wide = widen(x)
    counted = target != ignore_index
    safe = torch.where(counted, target, 0)
    loss = torch.neg(_chosen(wide, safe, axis))
    if weight is not None:
        factor = torch.index_select(widen(weight), 0, safe.reshape([-1])).reshape(safe.shape)
        loss = loss * factor
        total = torch.sum(torch.where(counted, factor, 0.0))
    else:
        total = torch.sum(cast(counted, wide.dtype))
    loss = torch.where(counted, loss, 0.0)
    if reduction == _NONE and x.dim() > 1:
        nothing = torch.full((), 0.0, dtype=x.dtype, device=x.device)
        return cast(loss, x.dtype), nothing
    result = torch.sum(loss)
    if reduction == _MEAN:
        result = result / total
    elif reduction == _NONE:
        result = loss
    return cast(result, x.dtype), cast(total, x.dtype)


@decomposition(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:
    axis = _class_axis(x)
    if is_empty(x, [axis]) or target.dtype != torch.int64 or x.dim() == target.dim() == 1:
        return NotImplemented
    flow = widen(grad)
    if reduction == _MEAN:
        flow = flow / widen(total_weight)
    classes = torch.arange(x.shape[axis], dtype=torch.int64, device=x.device)
    classes = classes.reshape([-1 if other == axis else 1 for other in range(x.dim())])
    index = torch.unsqueeze(target, axis)
    if flow.dim() > 0 and reduction == _NONE:
        flow = torch.unsqueeze(flow, axis)
    if weight is not None:
        flow = flow * widen(weight).reshape([-1 if other == axis else 1 for other in range(x.dim())])
    hit = (classes == index) & (index != ignore_index)
    return cast(torch.where(hit, -flow, 0.0).expand(x.shape), x.dtype)


def _margins(x: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """(how far each class comes too near to the right one, 0 for that one; which is right; its place) for rows of `x`."""
    place = torch.unsqueeze(target, -1)
    right = torch.gather(x, -1, place)
    ours = torch.arange(x.shape[-1], dtype=torch.int64, device=x.device) == place
    return torch.where(ours, 0.0, torch.clamp(margin - right + x, min=0)), ours, place


def _has_margins(x: Tensor, target: Tensor, p: float) -> bool:
    # eager raises for other powers and types, and its CPU kernel has no half types
    fits = x.dtype == torch.float32 or (x.dtype.is_floating_point and x.dtype.itemsize == 2 and x.device.type != "cpu")
    shaped = (x.dim() == 2 and target.dim() == 1) or (x.dim() == 1 and target.numel() == 1)
    return fits and shaped and p in (1, 2) and target.dtype == torch.int64 and not is_empty(x, range(x.dim()))


@decomposition(aten.multi_margin_loss.default)
def multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    if not _has_margins(x, target, p):
        return NotImplemented
    rows = widen(x).reshape([-1, x.shape[-1]])
    near, _, place = _margins(rows, target.reshape([-1]), margin)
    terms = near * near if p == 2 else near
    if weight is not None:
        terms = terms * torch.gather(widen(weight).expand_as(rows), -1, place)
    loss = torch.sum(terms, -1) / x.shape[-1]
    return cast(_reduce(loss, reduction) if reduction else loss.reshape(target.shape), x.dtype)


@decomposition(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    if not _has_margins(x, target, p):
        return NotImplemented
    rows = widen(x).reshape([-1, x.shape[-1]])
    near, ours, place = _margins(rows, target.reshape([-1]), margin)
    slope = 2 * near if p == 2 else cast(near > 0, near.dtype)
    if weight is not None:
        slope = slope * torch.gather(widen(weight).expand_as(rows), -1, place)
    upstream = widen(grad).reshape([-1, 1]) / (rows.numel() if reduction == _MEAN else x.shape[-1])
    slope = slope * upstream
    return cast(torch.where(ours, -torch.sum(slope, -1, keepdim=True), slope).reshape(x.shape), x.dtype)
