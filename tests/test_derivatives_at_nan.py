"""Derivatives of activations where the argument is NaN or on an edge are those of eager's vector code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "elu of its result": lambda x: F.elu(x * 1, 0.5, inplace=True),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_derivatives(dtype: torch.dtype) -> None:
    values = torch.tensor([torch.nan, 0.1, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 20.0, torch.inf, -torch.inf], dtype=dtype)
    xs = [values.repeat(64).requires_grad_() for _ in ACTIVATIONS]  # whole vectors; what is left over is other code in eager

    def program(*xs: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(ACTIVATIONS.values(), xs, strict=True)]

    def derivatives(results: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(results, xs, [torch.ones_like(r) for r in results])

    fxloom.reset()
    got = derivatives(fxloom.compile(program, fullgraph=True)(*xs))
    assert not fxloom.stats().fallbacks
    for name, result, eager in zip(ACTIVATIONS, got, derivatives(program(*xs)), strict=True):
        torch.testing.assert_close(result, eager, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
