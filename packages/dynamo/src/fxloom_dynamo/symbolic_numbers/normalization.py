"""Rules for normalization with a symbolic number (an epsilon, a momentum) where torch takes a plain one.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are: the result by its formula, with
running statistics written as torch writes them; NotImplemented where a combination is not covered. Sums are taken in the dtype in
which kernels take them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.reductions import extent_along
from fxloom_dynamo.symbolic_numbers.registry import rule
from fxloom_shapes.symbols.numbers import SYMBOLIC


def _wide(x: Tensor) -> Tensor:
    """In the type in which kernels add up."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if weight is not None:
        x = x * weight
    if bias is not None:
        x = x + bias
    return x.to(dtype)


@rule(torch.layer_norm, F.layer_norm)
def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-05, cudnn_enable: Any = True
) -> Any:
    axes = list(range(input.dim() - len(normalized_shape), input.dim()))
    if type(eps) not in SYMBOLIC or list(input.shape[axes[0] :]) != list(normalized_shape) or not input.is_floating_point():
        return NotImplemented
    wide = _wide(input)
    variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    return _affine((wide - mean) * torch.rsqrt(variance + eps), weight, bias, input.dtype)


@rule(torch.rms_norm, F.rms_norm)
def rms_norm(input: Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    axes = list(range(input.dim() - len(normalized_shape), input.dim()))
    if type(eps) not in SYMBOLIC or list(input.shape[axes[0] :]) != list(normalized_shape) or not input.is_floating_point():
        return NotImplemented
    wide = _wide(input)
    scaled = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + eps)
    return _affine(scaled, weight, None, input.dtype)


@rule(torch.group_norm, F.group_norm)
def group_norm(input: Tensor, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-05, cudnn_enabled: Any = True) -> Any:
    if type(eps) not in SYMBOLIC or type(num_groups) is not int or input.dim() < 2 or not input.is_floating_point():
        return NotImplemented
    n, c = input.shape[:2]
    if c % num_groups:
        return NotImplemented
    wide = _wide(input).reshape(n, num_groups, -1)
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    result = ((wide - mean) * torch.rsqrt(variance + eps)).reshape(input.shape)
    per_channel = [None if p is None else p.reshape(-1, *[1] * (input.dim() - 2)) for p in (weight, bias)]
    return _affine(result, per_channel[0], per_channel[1], input.dtype)


@rule(F.batch_norm)
def batch_norm(
    input: Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: Any = False,
    momentum: Any = 0.1, eps: Any = 1e-05,
) -> Any:  # fmt: skip
    if not (type(eps) in SYMBOLIC or type(momentum) in SYMBOLIC) or input.dim() < 2 or not input.is_floating_point() or not eps >= 0:
        return NotImplemented
    axes = [0, *range(2, input.dim())]
    count = extent_along(input, axes)
    if momentum is None or training and count == 1:
        return NotImplemented
    shape = [-1, *[1] * (input.dim() - 2)]
    wide = _wide(input)
    if training:
        variance, mean = torch.var_mean(wide, axes, correction=0)
        if running_mean is not None:
            _move(running_mean, mean.detach(), momentum)
            _move(running_var, variance.detach() * (count / (count - 1)), momentum)
    else:
        mean, variance = running_mean, running_var
    result = (wide - mean.reshape(shape)) * torch.rsqrt(variance + eps).reshape(shape)
    parameters = [None if p is None else p.reshape(shape) for p in (weight, bias)]
    return _affine(result, parameters[0], parameters[1], input.dtype)


def _move(running: Tensor, value: Tensor, momentum: Any) -> None:
    running.copy_(momentum * value + (1 - momentum) * running)


@rule(F.instance_norm)
def instance_norm(
    input: Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None, use_input_stats: Any = True,
    momentum: Any = 0.1, eps: Any = 1e-05,
) -> Any:  # fmt: skip
    """Every channel of every sample is one of a batch's; running statistics move by the samples' mean."""
    half = (running_mean is None) != (running_var is None) or not use_input_stats and running_mean is None
    if input.dim() < 3 or momentum is None or half:
        return NotImplemented
    n, c = input.shape[:2]
    statistics = [None if t is None else t.detach().repeat(n) for t in (running_mean, running_var)]
    parameters = [None if t is None else t.repeat(n) for t in (weight, bias)]
    batch = input.contiguous().reshape(1, n * c, *input.shape[2:])
    made = batch_norm(batch, *statistics, *parameters, use_input_stats, momentum, eps)
    if made is NotImplemented:
        return NotImplemented
    if use_input_stats:
        for running, moved in zip((running_mean, running_var), statistics, strict=True):
            if running is not None and moved is not None:
                running.copy_(moved.view(n, c).mean(0))
    return made.reshape(input.shape)
