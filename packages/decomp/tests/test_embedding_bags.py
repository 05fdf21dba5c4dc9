"""Gradients of bags of embeddings beside eager's kernels: each way to reduce, weights, padding, empty bags, offsets of two lengths."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from test_against_eager import Compare

aten = torch.ops.aten


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients(dtype: torch.dtype, index: torch.dtype) -> None:
    torch.manual_seed(0)
    indices = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9], dtype=index)
    table = torch.randn(10, 5).to(dtype).requires_grad_()
    weights = torch.rand(8).to(dtype).requires_grad_()
    mode = Compare()
    for how, padding, last, weighted in itertools.product(("sum", "mean", "max"), (None, 4), (False, True), (False, True)):
        if weighted and how != "sum":
            continue
        offsets = torch.tensor([0, 4, 4, *([6, 8] if last else [6])], dtype=index)
        with mode:
            result = F.embedding_bag(
                indices, table, offsets, mode=how, padding_idx=padding, include_last_offset=last, per_sample_weights=weights if weighted else None
            )
            torch.autograd.backward([result], [torch.randn_like(result)])
    assert not mode.faults + mode.failures
    assert mode.checked[aten._embedding_bag_backward.default] >= 12
    assert mode.checked[aten._embedding_bag_per_sample_weights_backward.default] >= 2
