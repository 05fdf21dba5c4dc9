"""Layer, group, batch and RMS norm, with their derivatives. Statistics are computed in float32 for half types.

In: an operator's arguments. Out: the operator's results in simpler operators, with eager's dtypes, or NotImplemented to decline.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen
from fxloom_decomp.sizes import is_empty

aten = torch.ops.aten


def _statistics_dtype(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Type of the mean and rstd that kernels return: float32 for half input on accelerators; on CPU when weights are float32."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return x.dtype
    if x.device.type == "cpu" and (weight is None or weight.dtype == x.dtype):
        return x.dtype
    return torch.float32


@decomposition(aten.native_layer_norm.default)
def native_layer_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    if is_empty(x, dims):
        return NotImplemented
    wide = widen(x)
    var, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = (wide - mean) * rstd
    if weight is not None:
        out = out * widen(weight)
    if bias is not None:
        out = out + widen(bias)
    kept = _statistics_dtype(x, weight if weight is not None else bias)
    return cast(out, x.dtype), cast(mean, kept), cast(rstd, kept)


@decomposition(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    outer = x.dim() - len(normalized_shape)
    if is_empty(x, range(outer, x.dim())):
        return NotImplemented
    inner_dims, outer_dims = list(range(outer, x.dim())), list(range(outer))
    wide, grad = widen(x), widen(grad)
    mean, rstd = (_with_axes(widen(value), x.dim()) for value in (mean, rstd))
    normal = (wide - mean) * rstd
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad * widen(weight) if weight is not None else grad
        count = math.prod(normalized_shape)
        # dx = rstd·(g - mean(g) - x̂·mean(g·x̂))
        sum_g = torch.sum(scaled, inner_dims, keepdim=True)
        sum_gx = torch.sum(scaled * normal, inner_dims, keepdim=True)
        grad_x = cast((scaled - sum_g / count - normal * (sum_gx / count)) * rstd, x.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = cast(_sum(grad * normal, outer_dims), weight.dtype)
    if output_mask[2] and bias is not None:
        grad_bias = cast(_sum(grad, outer_dims), bias.dtype)
    return grad_x, grad_weight, grad_bias


def _with_axes(value: Tensor, rank: int) -> Tensor:
    return value.reshape([*value.shape, *[1] * (rank - value.dim())])


def _sum(value: Tensor, dims: list[int]) -> Tensor:
    return torch.sum(value, dims) if dims else value


@decomposition(aten._fused_rms_norm.default)
def fused_rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    if is_empty(x, dims) or x.dtype.is_complex:
        return NotImplemented
    wide = widen(x)
    small = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = torch.rsqrt(_mean(wide * wide, dims) + small)
    out = wide * rstd
    if weight is not None:
        out = out * widen(weight)
    common = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    return cast(out, common), rstd


@decomposition(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad: Tensor, x: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    outer = x.dim() - len(normalized_shape)
    inner_dims, outer_dims = list(range(outer, x.dim())), list(range(outer))
    wide, grad = widen(x), widen(grad)
    normal = wide * rstd
    grad_x = grad_weight = None
    if output_mask[0]:
        scaled = grad * widen(weight) if weight is not None else grad
        grad_x = cast((scaled - normal * _mean(scaled * normal, inner_dims)) * rstd, x.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = cast(_sum(grad * normal, outer_dims), weight.dtype)
    return grad_x, grad_weight


def _mean(value: Tensor, dims: list[int]) -> Tensor:
    return torch.sum(value, dims, keepdim=True) / math.prod(value.shape[dim] for dim in dims)


@decomposition(aten.native_group_norm.default)
def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        return NotImplemented
    wide = widen(x).reshape([n, group, c // group * hxw])
    var, mean = torch.var_mean(wide, [2], correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = ((wide - mean) * rstd).reshape(x.shape)
    affine = [1, c, *[1] * (x.dim() - 2)]
    if weight is not None:
        out = out * widen(weight).reshape(affine)
    if bias is not None:
        out = out + widen(bias).reshape(affine)
    kept = _statistics_dtype(x, weight if weight is not None else bias)
    return cast(out, x.dtype), cast(mean.reshape([n, group]), kept), cast(rstd.reshape([n, group]), kept)


@decomposition(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if x.numel() == 0:
        return NotImplemented
    per_group = [n, group, c // group, hxw]
    wide, flow = widen(x).reshape(per_group), widen(grad).reshape(per_group)
    mean4, rstd4 = (widen(value).reshape([n, group, 1, 1]) for value in (mean, rstd))
    normal = (wide - mean4) * rstd4
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = flow * widen(weight).reshape([1, group, c // group, 1]) if weight is not None else flow
        grad_x = (scaled - _mean(scaled, [2, 3]) - normal * _mean(scaled * normal, [2, 3])) * rstd4
        grad_x = cast(grad_x.reshape(x.shape), x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_weight = cast(torch.sum(flow * normal, [0, 3]).reshape([c]), kept)
    if output_mask[2]:
        grad_bias = cast(torch.sum(flow, [0, 3]).reshape([c]), kept)
    return grad_x, grad_weight, grad_bias


# --- batch norm ---------------------------------------------------------------------------------------------------------


def _per_channel(value: Tensor, rank: int) -> Tensor:
    return widen(value).reshape([1, -1, *[1] * (rank - 2)])


def _scaled(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Normalize by per-channel statistics of shape (1, C, 1, ...)."""
    scale = rstd if weight is None else rstd * _per_channel(weight, x.dim())
    out = (widen(x) - mean) * scale
    return cast(out if bias is None else out + _per_channel(bias, x.dim()), x.dtype)


def _train(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, mean and rstd of shape (C,), biased variance of shape (C,)."""
    dims = [0, *range(2, x.dim())]
    var, mean = torch.var_mean(widen(x), dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = _scaled(x, mean, rstd, weight, bias)
    return out, mean.reshape([-1]), rstd.reshape([-1]), var.reshape([-1])


def _evaluate(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    rstd = torch.rsqrt(widen(var) + eps)
    return _scaled(x, _per_channel(mean, x.dim()), _per_channel(rstd, x.dim()), weight, bias)


def _nothing(x: Tensor, weight: Tensor | None, running_mean: Tensor) -> Tensor:
    """The statistics that are not taken, of their type: it is that of the first of weight and running mean that is there."""
    given = running_mean if weight is None else weight
    return torch.full((0,), 0, dtype=_statistics_dtype(x, given), device=x.device)


@decomposition(aten.native_batch_norm.default)
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    if training:
        # aot has rewritten the case in which the running statistics are updated
        return _with_kept_statistics(x, weight, bias, eps)
    if running_mean is None or running_var is None:
        return NotImplemented
    return _evaluate(x, weight, bias, running_mean, running_var, eps), _nothing(x, weight, running_mean), _nothing(x, weight, running_mean)


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    if x.numel() == 0 or x.dim() < 2 or not training:
        return NotImplemented
    return _with_kept_statistics(x, weight, bias, eps)


def _with_kept_statistics(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, rstd, _ = _train(x, weight, bias, eps)
    kept = _statistics_dtype(x, weight)
    return out, cast(mean, kept), cast(rstd, kept)


@decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> Any:
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    return _evaluate(x, weight, bias, running_mean, running_var, eps), _nothing(x, weight, running_mean), _nothing(x, weight, running_mean)


@decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    if not training:
        out = _evaluate(x, weight, bias, running_mean, running_var, eps)
        return out, _nothing(x, weight, running_mean), _nothing(x, weight, running_mean), running_mean, running_var
    out, mean, rstd, var = _train(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    unbiased = var * (count / max(count - 1, 1))
    new_mean = momentum * mean + (1 - momentum) * running_mean
    new_var = momentum * unbiased + (1 - momentum) * running_var
    kept = _statistics_dtype(x, running_mean if weight is None else weight)
    return out, cast(mean, kept), cast(rstd, kept), cast(new_mean, running_mean.dtype), cast(new_var, running_var.dtype)


@decomposition(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_rstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> Any:
    if x.numel() == 0 or x.dim() < 2:
        return NotImplemented
    rank, dims = x.dim(), [0, *range(2, x.dim())]
    if train:
        if save_mean is None or save_rstd is None:
            return NotImplemented
        mean, rstd = _per_channel(save_mean, rank), _per_channel(save_rstd, rank)
    else:
        if running_mean is None or running_var is None:
            return NotImplemented
        mean = _per_channel(running_mean, rank)
        rstd = _per_channel(torch.rsqrt(widen(running_var) + eps), rank)
    flow = widen(grad)
    normal = (widen(x) - mean) * rstd
    count = x.numel() // x.shape[1]
    sum_g = torch.sum(flow, dims, keepdim=True)
    sum_gx = torch.sum(flow * normal, dims, keepdim=True)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        scale = rstd if weight is None else rstd * _per_channel(weight, rank)
        centred = flow - sum_g / count - normal * (sum_gx / count) if train else flow
        grad_x = cast(centred * scale, x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_weight = cast(sum_gx.reshape([-1]), kept)
    if output_mask[2]:
        grad_bias = cast(sum_g.reshape([-1]), kept)
    return grad_x, grad_weight, grad_bias
