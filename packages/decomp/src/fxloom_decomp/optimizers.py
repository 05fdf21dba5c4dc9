"""Fused optimizers: one step for lists of parameters, their gradients and states.

In: lists of equal length, a tensor of one number for each step count (already counted up), numbers. Out: the new parameters,
gradients and states, in the order of the arguments. Gradients change only where they were scaled. With a `found_inf` that is not 0
nothing changes. Numbers that depend on a step count are computed in float64, as eager's kernels do; the update in the type of the
parameters, half ones in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten
Rate = float | Tensor
Tensors = list[Tensor]


def _rate(lr: Rate) -> Rate:
    return cast(lr, torch.float64) if isinstance(lr, Tensor) else lr


def _in(number: Any, x: Tensor) -> Any:
    """A number that is a tensor, in the type of `x`: wider, it would be computed with at every element."""
    return cast(number, x.dtype) if isinstance(number, Tensor) else number


def _unscaled(grad: Tensor, grad_scale: Tensor | None) -> Tensor:
    return grad if grad_scale is None else grad / _in(torch.reshape(grad_scale, ()), grad)


def _kept(new: Tensor, old: Tensor, found_inf: Tensor | None) -> Tensor:
    """The new value in the type of the old one, which stays where the gradients were not finite."""
    new = cast(new, old.dtype)
    return new if found_inf is None else torch.where(torch.reshape(found_inf, ()) == 1, old, new)


def _floats(*lists: Tensors) -> bool:
    return all(x.dtype.is_floating_point for xs in lists for x in xs)


def _adam(
    params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, largest: Tensors, steps: Tensors, *,
    lr: Rate, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None, decoupled: bool,
) -> Any:  # fmt: skip
    if not _floats(params, grads, averages, squares, largest):
        return NotImplemented
    rate = _rate(lr)
    results: tuple[Tensors, ...] = ([], [], [], [], [])
    for number, (param, grad, average, square, step) in enumerate(zip(params, grads, averages, squares, steps, strict=True)):
        count = cast(step, torch.float64)
        step_size = rate / (1 - torch.pow(beta1, count))
        root = torch.sqrt(1 - torch.pow(beta2, count))
        x, given, mean, second = widen(param), _unscaled(widen(grad), grad_scale), widen(average), widen(square)
        g = -given if maximize else given
        if weight_decay and decoupled:
            x = x - _in(rate * weight_decay, x) * x
        elif weight_decay:
            g = g + x * weight_decay
        mean = torch.lerp(mean, g, 1 - beta1)
        second = second * beta2 + g * g * (1 - beta2)
        top = torch.maximum(widen(largest[number]), second) if amsgrad else second
        x = x - _in(step_size, x) * mean / (torch.sqrt(top) / _in(root, x) + eps)
        news = [(x, param), (given, grad), (mean, average), (second, square)] + ([(top, largest[number])] if amsgrad else [])
        for place, (new, old) in enumerate(news):
            results[place].append(old if place == 1 and grad_scale is None else _kept(new, old, found_inf))
    if not amsgrad:
        results[4].extend(largest)
    return results


@decomposition(aten._fused_adam.default, aten._fused_adam.tensor_lr)
def fused_adam(*args: Tensors, **options: Any) -> Any:
    return _adam(*args, **options, decoupled=False)


@decomposition(aten._fused_adamw.default, aten._fused_adamw.tensor_lr)
def fused_adamw(*args: Tensors, **options: Any) -> Any:
    return _adam(*args, **options, decoupled=True)


@decomposition(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def fused_sgd(
    params: Tensors, grads: Tensors, buffers: Tensors, *,
    weight_decay: float, momentum: float, lr: Rate, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> Any:  # fmt: skip
    if not _floats(params, grads, buffers):
        return NotImplemented
    rate = _rate(lr)
    results: tuple[Tensors, Tensors, Tensors] = ([], [], [])
    for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
        x, given = widen(param), _unscaled(widen(grad), grad_scale)
        g = -given if maximize else given
        if weight_decay:
            g = g + x * weight_decay
        if momentum:
            velocity = g if is_first_step else widen(buffers[number]) * momentum + g * (1 - dampening)
            g = g + velocity * momentum if nesterov else velocity
            results[2].append(_kept(velocity, buffers[number], found_inf))
        moved = x - _in(rate, x) * g if isinstance(rate, Tensor) else torch.add(x, g, alpha=-rate)  # as eager: a sum rounded once
        results[0].append(_kept(moved, param, found_inf))
        results[1].append(grad if grad_scale is None else _kept(given, grad, found_inf))
    if not momentum:
        results[2].extend(buffers)
    return results


def _adagrad(
    params: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, *,
    lr: Rate, lr_decay: float, weight_decay: float, eps: float, maximize: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> Any:  # fmt: skip
    if not _floats(params, grads, sums):
        return NotImplemented
    rate = _rate(lr)
    results: tuple[Tensors, Tensors, Tensors] = ([], [], [])
    for param, grad, total, step in zip(params, grads, sums, steps, strict=True):
        x, given, gathered = widen(param), _unscaled(widen(grad), grad_scale), widen(total)
        step_size = rate / (1 + (cast(step, torch.float64) - 1) * lr_decay)
        g = -given if maximize else given
        if weight_decay:
            g = g + x * weight_decay
        gathered = gathered + g * g
        results[0].append(_kept(x - _in(step_size, x) * g / (torch.sqrt(gathered) + eps), param, found_inf))
        results[1].append(grad if grad_scale is None else _kept(given, grad, found_inf))
        results[2].append(_kept(gathered, total, found_inf))
    return results


@decomposition(aten._fused_adagrad.tensor_lr)
def fused_adagrad_tensor_lr(*args: Tensors, **options: Any) -> Any:
    return _adagrad(*args, **options)


@decomposition(aten._fused_adagrad.default)
def fused_adagrad(*args: Tensors, **options: Any) -> Any:
    made = _adagrad(*args, **options)
    return made if made is NotImplemented else (*made, list(args[3]))
