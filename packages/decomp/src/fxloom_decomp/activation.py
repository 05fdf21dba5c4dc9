"""Activations and their derivatives.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxloom_decomp.registry import OPMATH, cast, decomposition, widen

aten = torch.ops.aten
Number = float | int | bool


@decomposition(aten.gelu.default, promote=OPMATH, floats_only=True)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + torch.tanh(_gelu_inner(x)))


def _gelu_inner(x: Tensor) -> Tensor:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


@decomposition(aten.gelu_backward.default, promote=OPMATH)
def gelu_backward(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        # d/dx x·Φ(x) = Φ(x) + x·φ(x)
        cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        pdf = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (cdf + x * pdf)
    t = torch.tanh(_gelu_inner(x))
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)


@decomposition(aten.silu.default, promote=OPMATH, floats_only=True)
def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@decomposition(aten.silu_backward.default, promote=OPMATH)
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    s = 1 / (1 + torch.exp(-x))
    return grad * s * (1 + x * (1 - s))  # d/dx x·σ(x)


@decomposition(aten.sigmoid_backward.default, promote=OPMATH)
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    if y.dtype.is_complex:
        return NotImplemented
    return grad * (y * (1 - y))


@decomposition(aten.tanh_backward.default, promote=OPMATH)
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    if y.dtype.is_complex:
        return NotImplemented
    return grad * (1 - y * y)


def _as_compared(x: Tensor) -> Tensor:
    """What eager's kernels compare with numbers: halves in float32 on the CPU, in their own type, numbers too, elsewhere."""
    return widen(x) if x.device.type == "cpu" else x


@decomposition(aten.threshold.default)
def threshold(x: Tensor, threshold: Number, value: Number) -> Tensor:
    threshold = threshold if x.dtype.is_floating_point else int(threshold)  # eager's kernel has it in its own type
    return torch.where(_as_compared(x) <= threshold, torch.full((), value, dtype=x.dtype, device=x.device), x)


@decomposition(aten.threshold_backward.default)
def threshold_backward(grad: Tensor, x: Tensor, threshold: Number) -> Tensor:
    return torch.where(_as_compared(x) <= threshold, torch.full((), 0, dtype=grad.dtype, device=grad.device), grad)


@decomposition(aten.leaky_relu.default, promote=OPMATH)
def leaky_relu(x: Tensor, negative_slope: Number = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * negative_slope)


@decomposition(aten.leaky_relu_backward.default, promote=OPMATH)
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: Number, self_is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * negative_slope)


@decomposition(aten._prelu_kernel.default, promote=OPMATH, floats_only=True)
def prelu_kernel(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


@decomposition(aten._prelu_kernel_backward.default, promote=OPMATH)
def prelu_kernel_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x > 0, grad, weight * grad), torch.where(x > 0, 0.0, x * grad)


def _unless(x: Tensor, changed: Tensor) -> Tensor:
    """Where a gradient passes unchanged: not where `changed`, nor, in eager's vector code on the CPU, where x is NaN."""
    passes = torch.logical_not(changed)
    return passes & (x == x) if x.device.type == "cpu" else passes


@decomposition(aten.elu.default, promote=OPMATH, floats_only=True)
def elu(x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


@decomposition(aten.elu_backward.default, promote=OPMATH)
def elu_backward(grad: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Tensor) -> Tensor:
    if is_result:
        negative = grad * input_scale * (x + alpha * scale)
    else:
        negative = grad * (input_scale * alpha * scale) * torch.exp(x * input_scale)
    return torch.where(_unless(x, x <= 0), grad * scale, negative)


@decomposition(aten.celu.default, promote=OPMATH)
def celu(x: Tensor, alpha: Number = 1.0) -> Tensor:
    if alpha == 0:
        return NotImplemented  # eager raises
    return torch.where(x > 0, x, torch.expm1(x * (1.0 / alpha)) * alpha)


@decomposition(aten.softplus.default, promote=OPMATH, floats_only=True)
def softplus(x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


@decomposition(aten.softplus_backward.default, promote=OPMATH)
def softplus_backward(grad: Tensor, x: Tensor, beta: Number, threshold: Number) -> Tensor:
    z = torch.exp(x * beta)
    return torch.where(x * beta > threshold, grad, grad * z / (z + 1.0))


@decomposition(aten.mish.default, promote=OPMATH, floats_only=True)
def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@decomposition(aten.mish_backward.default, promote=OPMATH)
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    t = torch.tanh(torch.where(x > 20, x, torch.log1p(torch.exp(x))))
    return grad * (t + x * s * (1 - t * t))


@decomposition(aten.log_sigmoid_forward.default, promote=OPMATH, floats_only=True)
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.exp(-torch.abs(x))
    value = torch.clamp(x, max=0) - torch.log1p(z)
    # the CPU kernel keeps z for its backward, others keep nothing
    return value, z if x.device.type == "cpu" else torch.zeros((0,), dtype=x.dtype, device=x.device)


@decomposition(aten.log_sigmoid_backward.default, promote=OPMATH)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    # d/dx log σ(x) = σ(-x)
    z = torch.exp(-torch.abs(x))
    small = z / (1 + z)
    return grad * torch.where(x < 0, 1 - small, small)


@decomposition(aten.hardtanh.default)
def hardtanh(x: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    if x.dtype is torch.bool:
        return NotImplemented  # eager raises
    if not x.dtype.is_floating_point:
        min_val, max_val = int(min_val), int(max_val)
    return torch.clamp(x, min_val, max_val)


@decomposition(aten.hardtanh_backward.default, promote=OPMATH)
def hardtanh_backward(grad: Tensor, x: Tensor, min_val: Number, max_val: Number) -> Tensor:
    return torch.where(_unless(x, (x <= min_val) | (x >= max_val)), grad, 0.0)


#: as eager's kernels have it: of float32, in float64 too
_SIXTH = 0.1666666716337204


@decomposition(aten.hardsigmoid.default, promote=OPMATH, floats_only=True)
def hardsigmoid(x: Tensor) -> Tensor:
    return _sixth(torch.clamp(x + 3, 0, 6))


def _sixth(x: Tensor) -> Tensor:
    """x / 6 as eager's kernels do it: those off the CPU multiply."""
    return x / 6 if x.device.type == "cpu" else x * _SIXTH


@decomposition(aten.hardsigmoid_backward.default, promote=OPMATH)
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3.0) & (x < 3.0), grad * _SIXTH, 0.0)


@decomposition(aten.hardswish.default, promote=OPMATH, floats_only=True)
def hardswish(x: Tensor) -> Tensor:
    return _sixth(x * torch.clamp(x + 3, 0, 6))


@decomposition(aten.hardswish_backward.default, promote=OPMATH)
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(_unless(x, x < 3), grad, grad * (x / 3 + 0.5)))


@decomposition(aten.hardshrink.default, floats_only=True)
def hardshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), torch.full((), 0, dtype=x.dtype, device=x.device), x)


@decomposition(aten.hardshrink_backward.default)
def hardshrink_backward(grad: Tensor, x: Tensor, lambd: Number) -> Tensor:
    passes = _unless(x, (x >= -lambd) & (x <= lambd))
    return torch.where(passes, grad, torch.full((), 0, dtype=grad.dtype, device=grad.device))


@decomposition(aten.softshrink.default)
def softshrink(x: Tensor, lambd: Number = 0.5) -> Tensor:
    wide = _as_compared(x)
    edge = torch.full((), lambd, dtype=wide.dtype, device=x.device)
    inside = wide * 0.0  # keeps NaN
    return cast(torch.where(wide > edge, wide - edge, torch.where(wide < -edge, wide + edge, inside)), x.dtype)


@decomposition(aten.softshrink_backward.default)
def softshrink_backward(grad: Tensor, x: Tensor, lambd: Number) -> Tensor:
    passes = _unless(x, (x >= -lambd) & (x <= lambd))
    return torch.where(passes, grad, torch.full((), 0, dtype=grad.dtype, device=grad.device))


@decomposition(aten.glu.default, promote=OPMATH, floats_only=True)
def glu(x: Tensor, dim: int = -1) -> Tensor:
    half = x.shape[dim] // 2
    if x.shape[dim] % 2:
        return NotImplemented  # eager raises
    return torch.narrow(x, dim, 0, half) * torch.sigmoid(torch.narrow(x, dim, half, half))


@decomposition(aten.glu_backward.default, promote=OPMATH)
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    half = x.shape[dim] // 2
    a, gate = torch.narrow(x, dim, 0, half), torch.sigmoid(torch.narrow(x, dim, half, half))
    return torch.cat([gate * grad, (1 - gate) * gate * grad * a], dim)
