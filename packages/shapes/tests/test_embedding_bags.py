"""Bags of embeddings: what eager's CPU kernels give beside the bags, whose shapes torch's Meta kernels say otherwise."""

from __future__ import annotations

import itertools

import pytest
import torch

from fxloom_shapes import FakeMode
from fxloom_shapes.propagation.propagate import propagate

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("op", [aten._embedding_bag.default, aten._embedding_bag_forward_only.default], ids=str)
def test_what_comes_beside_bags(op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    rows = torch.randn(10, 4).to(dtype)
    for table, how, padding, last, weighted, index in itertools.product(
        (rows, rows[:, ::2], rows.t().contiguous().t()), (0, 1, 2), (-1, 4), (False, True), (False, True), (torch.int64, torch.int32)
    ):
        if weighted and how:
            continue
        indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9], dtype=index), torch.tensor([0, 4, 4, 6], dtype=index)
        weights = torch.rand(8).to(dtype) if weighted else None
        args = (table, indices, offsets, False, how, False, weights, last, padding)
        mode = FakeMode()
        fakes = propagate(op, tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args), {}, mode)
        for fake, real in zip(fakes, op(*args), strict=True):
            assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype), (how, padding, last, weighted)
