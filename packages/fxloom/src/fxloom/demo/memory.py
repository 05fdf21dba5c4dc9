"""What training keeps in memory, for benchmarks and tests.

In: a module and a function that runs a forward pass. Out: the bytes that autograd keeps for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def kept_bytes(model: nn.Module, run: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass beside parameters and buffers; every memory once.

    run: one forward pass to the loss, whose backward pass is then run.
    """
    lives_on = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in lives_on:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run().backward()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
