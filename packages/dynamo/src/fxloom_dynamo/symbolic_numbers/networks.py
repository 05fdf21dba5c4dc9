"""Rules for attention and recurrent layers with unbacked lengths, or with a symbolic scale or dropout.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are: attention by its formula, a recurrent
layer as one operator for any length; NotImplemented where a combination of arguments is not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import Rule, rule
from fxloom_ops.recurrent import KINDS, RECURRENT
from fxloom_shapes.symbols.numbers import SYMBOLIC


def _has_unbacked_size(*tensors: Tensor) -> bool:
    """Whether some size is unbacked."""
    extents: list[Any] = [extent for tensor in tensors for extent in tensor.shape]
    return any(type(extent) is not int and not extent.node.has_hint() for extent in extents)


@rule(F.scaled_dot_product_attention, any_size=True)
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False, *,
    scale: Any = None, enable_gqa: Any = False,
) -> Any:  # fmt: skip
    if _has_unbacked_size(query, key, value):
        return NotImplemented if enable_gqa else _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if type(dropout_p) is torch.SymFloat and dropout_p > 0.0:
        if enable_gqa or query.device.type != "cpu":
            return NotImplemented
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if type(scale) not in SYMBOLIC:
        return NotImplemented
    scaled = query * (scale * query.shape[-1] ** 0.5)
    return F.scaled_dot_product_attention(scaled, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout_p: Any, is_causal: Any, scale: Any) -> Any:
    """softmax(q @ k.T * scale + mask) @ v. Which kernel is the fastest torch decides by lengths, which are not known."""
    if mask is not None and is_causal:
        return NotImplemented
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)
        mask = rows[:, None] >= torch.arange(key.shape[-2], device=query.device)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None:  # of nothing but what is masked out: 0
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    if type(dropout_p) in SYMBOLIC or dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return weights.to(value.dtype) @ value


def _stack(
    kind: str, output: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], options: tuple[bool, int, bool], layers: int,
    dropout: Any,
) -> list[Tensor]:  # fmt: skip
    """Layer upon layer, with dropout between them."""
    lasts = []
    own, rows = len(weights) // layers, states[0].shape[0] // layers
    for layer in range(layers):
        first = [state.narrow(0, layer * rows, rows) for state in states]
        output, *last = RECURRENT(kind, output, first, list(weights[layer * own : (layer + 1) * own]), *options)
        lasts.append(last)
        if layer < layers - 1:
            output = torch.dropout(output, dropout, True)
    return [output, *(torch.cat(parts) for parts in zip(*lasts, strict=True))]


def _recurrent(kind: str) -> Rule:
    def layer(
        input: Tensor, states: Any, weights: Any, biases: Any, layers: Any = None, dropout: Any = 0.0, train: Any = False,
        bidirectional: Any = False, batch_first: Any = False,
    ) -> Any:  # fmt: skip
        """One operator for any length; of packed sequences, dropout on a GPU (which has numbers of its own) and autocast torch's."""
        state = list(states) if isinstance(states, (list, tuple)) else [states]
        given = [input, *state, *(weights if isinstance(weights, (list, tuple)) else [])]
        if type(layers) is not int or input.dim() != 3 or torch.is_autocast_enabled(input.device.type):
            return NotImplemented
        drops = layers > 1 and train and dropout != 0
        if drops and input.device.type != "cpu":
            return NotImplemented
        if any(tensor.dtype != input.dtype or tensor.device != input.device for tensor in given) or not input.is_floating_point():
            return NotImplemented
        steps = input.transpose(0, 1) if batch_first else input
        if drops:
            made = _stack(kind, steps, state, list(weights), (bool(biases), 1, bool(bidirectional)), layers, dropout)
        else:
            made = RECURRENT(kind, steps, state, list(weights), bool(biases), layers, bool(bidirectional))
        output, *last = made
        return (output.transpose(0, 1) if batch_first else output, *last)

    return layer


for _kind in KINDS:
    rule(getattr(torch, _kind), always=True)(_recurrent(_kind))
