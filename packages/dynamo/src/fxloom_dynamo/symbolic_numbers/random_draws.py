"""Rules for random functions with a symbolic number (a dropout rate, a mean) where torch takes a plain one.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are. Invariant: what is drawn is what
eager's kernels draw, in their order. Where eager decides by the number (0 and 1 draw nothing), the number is asked, so that 0 and
1 are compiled for apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import Rule, rule
from fxloom_interfaces import symbolic_math
from fxloom_shapes.symbols.numbers import SYMBOLIC


@rule(torch.normal)
def normal(mean: Any, std: Any, size: Any = None, *, generator: Any = None, out: Any = None, **options: Any) -> Any:
    if isinstance(mean, Tensor) or isinstance(std, Tensor) or size is None or generator is not None or out is not None or not std >= 0:
        return NotImplemented
    return torch.empty(size, **options).normal_(mean, std)


def _kept(input: Tensor, shape: Sequence[Any] | None, p: Any) -> Tensor:
    """1 where an element is kept, 0 where it is dropped. shape: None for the input's own; numbers are drawn in the order of memory."""
    made = torch.empty_like(input.detach()) if shape is None else torch.empty(shape, dtype=input.dtype, device=input.device)
    if made.is_contiguous():
        return torch.bernoulli(made, 1 - p)
    order = sorted(range(made.dim()), key=made.stride, reverse=True)
    return torch.bernoulli(made.permute(order), 1 - p).permute(sorted(range(made.dim()), key=order.__getitem__))


def _scaled(input: Tensor, noise: Tensor, inplace: Any) -> Tensor:
    return input.mul_(noise) if inplace else input.mul(noise)


def _drop(input: Tensor, p: Any, training: Any, inplace: Any, kept: Callable[[Tensor], Tensor]) -> Any:
    """What eager's operators make of p: no numbers are drawn for 0 and 1. kept: of `_kept`."""
    if type(p) is torch.SymFloat and not p.node.has_hint():
        if training or inplace:
            return NotImplemented
        for condition in (p >= 0.0, p <= 1.0):
            symbolic_math.check(condition, "dropout probability has to be between 0 and 1, but got {}", "ValueError", p)
        return input
    if p < 0.0 or p > 1.0 or (inplace and not training):
        return NotImplemented
    if not training:
        return input
    if p == 1.0:
        return _scaled(input, torch.zeros((), dtype=input.dtype, device=input.device), inplace)
    if type(p) not in SYMBOLIC or not input.is_floating_point() or any(type(extent) is int and extent == 0 for extent in input.shape):
        return NotImplemented
    return input if p == 0.0 else _scaled(input, kept(input) / (1 - p), inplace)


def _kept_on_gpu(input: Tensor, p: Any) -> Tensor:
    """As the fused kernel there draws it."""
    return torch.native_dropout(input.detach(), p, True)[1].to(input.dtype)


@rule(F.dropout, any_size=True)
def dropout(input: Tensor, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    """Nothing is dropped outside of training."""
    fused = input.device.type != "cpu" and not inplace
    return _drop(input, p, training, inplace, lambda x: _kept_on_gpu(x, p) if fused else _kept(x, None, p))


@rule(torch.dropout, any_size=True)
def dropout_operator(input: Tensor, p: Any, train: Any) -> Any:
    return dropout(input, p, train)


@rule(torch.dropout_)
def dropout_in_place(input: Tensor, p: Any, train: Any) -> Any:
    return dropout(input, p, train, True)


def _per_channel(input: Tensor) -> list[Any]:
    return [*input.shape[:2], *[1] * (input.dim() - 2)]


def _feature_dropout(inplace: bool) -> Rule:
    def drop(input: Tensor, p: Any, train: Any) -> Any:
        if input.dim() < 2:
            return NotImplemented
        return _drop(input, p, train, inplace, lambda x: _kept(x, _per_channel(x), p))

    return drop


rule(torch.feature_dropout)(_feature_dropout(False))
rule(torch.feature_dropout_)(_feature_dropout(True))


def _alpha_dropout(of_channels: bool, inplace: bool) -> Rule:
    """What is dropped becomes what SELU gives for minus infinity; then mean and variance are what they were."""

    def drop(input: Tensor, p: Any, train: Any) -> Any:
        if type(p) not in SYMBOLIC or not p.node.has_hint() or not 0.0 <= p < 1.0 or of_channels and input.dim() < 2:
            return NotImplemented
        if not train or p == 0.0:
            return input
        if not input.is_floating_point() or any(type(extent) is int and extent == 0 for extent in input.shape):
            return NotImplemented
        noise = _kept(input, _per_channel(input) if of_channels else None, p)
        a = 1.0 / symbolic_math.UNARY_FUNCTIONS["sqrt"]((_SELU_END * _SELU_END * p + 1) * (1 - p))
        shift = noise.add(-1).mul(_SELU_END * a).add(_SELU_END * a * p)
        return _scaled(input, noise.mul(a), inplace).add_(shift)

    return drop


#: minus what SELU gives for minus infinity
_SELU_END = 1.7580993408473766
for _of_channels, _name in ((False, "alpha_dropout"), (True, "feature_alpha_dropout")):
    rule(getattr(torch, _name))(_alpha_dropout(_of_channels, False))
    rule(getattr(torch, f"{_name}_"))(_alpha_dropout(_of_channels, True))


@rule(torch.rrelu)
def rrelu(input: Tensor, lower: Any = 1.0 / 8, upper: Any = 1.0 / 3, training: Any = False, *, generator: Any = None) -> Any:
    if generator is not None or not lower <= upper:
        return NotImplemented
    if not training:
        return F.leaky_relu(input, (lower + upper) / 2)
    noise = torch.empty_like(input)
    torch.ops.aten.rrelu_with_noise(input.detach(), noise, lower, upper, True)
    return input * noise


def _is_scaled_exactly(drawn: Tensor) -> bool:
    """Whether scaling what is drawn is what the kernel does; others round in between, or have parts that are drawn apart."""
    return drawn.dtype in (torch.float32, torch.float64)


@rule(torch.Tensor.uniform_)
def uniform_(self: Tensor, from_: Any = 0.0, to: Any = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not _is_scaled_exactly(self) or not from_ <= to:
        return NotImplemented
    return self.uniform_().mul_(to - from_).add_(from_)


@rule(torch.Tensor.normal_)
def normal_(self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not _is_scaled_exactly(self) or not std >= 0:
        return NotImplemented
    return self.normal_().mul_(std).add_(mean)
