"""Recurrent layers as operators of graphs: `fxloom::recurrent` and its derivative, for sequences of any length.

torch's own (`torch.lstm`, `gru`, `rnn_tanh`, `rnn_relu`) are taken apart step by step when they are traced, so that a graph would
be of one length. In: the input by step, sequence and feature, first states, flat weights. Out: the output and last states, by
the very functions of torch. The derivative runs the forward part once more, since what a kernel saves depends on which one
torch chooses. Not here: dropout between layers, packed sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_ops._torch_private import within_autograd

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_library = torch.library.Library("fxloom", "FRAGMENT")
_library.define(
    "recurrent(str kind, Tensor input, Tensor[] states, Tensor[] weights, bool biases, int layers, bool bidirectional) -> Tensor[]"
)
_library.define(
    "recurrent_backward(Tensor[] gradients, str kind, Tensor input, Tensor[] states, Tensor[] weights, bool biases, int layers, "
    "bool bidirectional) -> Tensor[]"
)


def _run(
    kind: str,
    input: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
    train: bool,
) -> list[Tensor]:
    function = getattr(torch, kind)
    state: Any = list(states) if kind == "lstm" else states[0]
    return list(function(input, state, list(weights), biases, layers, 0.0, train, bidirectional, False))


def _recurrent(kind: str, input: Tensor, states: Any, weights: Any, biases: bool, layers: int, bidirectional: bool) -> list[Tensor]:
    return [made.contiguous() for made in _run(kind, input, states, weights, biases, layers, bidirectional, train=False)]


def _recurrent_backward(
    gradients: Any, kind: str, input: Tensor, states: Any, weights: Any, biases: bool, layers: int, bidirectional: bool
) -> list[Tensor]:
    """Gradients of the input, the states and the weights."""
    with within_autograd(), torch.enable_grad():
        leaves = [given.detach().requires_grad_() for given in (input, *states, *weights)]
        count = 1 + len(states)
        made = _run(kind, leaves[0], leaves[1:count], leaves[count:], biases, layers, bidirectional, train=True)
        found = torch.autograd.grad(made, leaves, list(gradients), allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad.contiguous() for grad, leaf in zip(found, leaves, strict=True)]


def _recurrent_fake(kind: str, input: Tensor, states: Any, weights: Any, biases: bool, layers: int, bidirectional: bool) -> list[Tensor]:
    output = input.new_empty((input.shape[0], input.shape[1], states[0].shape[2] * (2 if bidirectional else 1)))
    return [output, *(state.new_empty(state.shape) for state in states)]


def _recurrent_backward_fake(gradients: Any, kind: str, input: Tensor, states: Any, weights: Any, *options: Any) -> list[Tensor]:
    return [given.new_empty(given.shape) for given in (input, *states, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.kind, input, states, weights, ctx.biases, ctx.layers, ctx.bidirectional = inputs
    ctx.states = len(states)
    ctx.save_for_backward(input, *states, *weights)


def _differentiate(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    input, *rest = ctx.saved_tensors
    states, weights = rest[: ctx.states], rest[ctx.states :]
    operator = torch.ops.fxloom.recurrent_backward
    found = operator(list(gradients), ctx.kind, input, states, weights, ctx.biases, ctx.layers, ctx.bidirectional)
    return None, found[0], found[1 : 1 + ctx.states], found[1 + ctx.states :], None, None, None


def _twice(ctx: Any, gradients: Any) -> Any:
    raise RuntimeError("the derivative of a recurrent layer in a graph can't be differentiated again; fxloom.disable the layer")


_library.impl("recurrent", _recurrent, "CompositeExplicitAutograd")
_library.impl("recurrent_backward", _recurrent_backward, "CompositeExplicitAutograd")
torch.library.register_fake("fxloom::recurrent", _recurrent_fake, lib=_library)
torch.library.register_fake("fxloom::recurrent_backward", _recurrent_backward_fake, lib=_library)
torch.library.register_autograd("fxloom::recurrent", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("fxloom::recurrent_backward", _twice, lib=_library)

RECURRENT = torch.ops.fxloom.recurrent.default
