"""`options={"numerics": ...}`: where results are rounded, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom
from fxloom_interfaces.errors import ConfigError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def exact(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fxloom.compile(fn, fullgraph=True, options={"numerics": "exact"})


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exact_is_bit_by_bit_eagers(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = F.gelu(x @ w).softmax(-1) * 0.3 + x.exp() / 7
        h = F.layer_norm(h, h.shape[-1:]) + h.cumsum(0).tanh() - torch.add(h, x, alpha=0.7)
        return h, h.sum(), h.std(-1), torch.where(h > 0, h, -h).amax(0), h.t().contiguous(), F.silu(h).mean(1)

    x, w = torch.randn(33, 65).to(dtype), torch.randn(65, 65).to(dtype)
    fxloom.reset()
    results = exact(program)(x, w)
    for result, eager in zip(results, program(x, w), strict=True):
        assert torch.equal(result, eager)
        assert result.stride() == eager.stride()
    assert sum(fxloom.stats().kernels.values()) > 0  # sums of two, choices and copies are kernels still
    assert not fxloom.stats().fallbacks


@pytest.mark.parametrize("function", [F.silu, F.mish, F.gelu, F.hardswish, F.softplus, F.logsigmoid, F.elu], ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_derivatives_of_activations_are_rounded_once(function: Callable[..., Any], dtype: torch.dtype) -> None:
    """Near their zeros too: torch defines some by operators that would round each step, and has kernels that don't."""

    def gradient(call: Callable[..., Any], wide: bool) -> torch.Tensor:
        x = torch.linspace(-6, 6, 4096).to(dtype).to(torch.float64 if wide else dtype).requires_grad_()
        return torch.autograd.grad(call(x), x, torch.ones_like(x))[0].double()

    truth = gradient(function, True)
    ours, eagers = [(gradient(call, False) - truth).abs() / (truth.abs() + 1e-3) for call in (fxloom.compile(function), function)]
    assert ours.max() <= 1.2 * eagers.max() and ours.mean() <= 1.2 * eagers.mean()


def test_exact_training_draws_and_rounds_as_eager_does() -> None:
    def step(model: torch.nn.Module, x: torch.Tensor, forward: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        loss = F.cross_entropy(forward(x), torch.arange(16) % 10)
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Dropout(0.3))
    model = torch.nn.Sequential(*layers, torch.nn.Linear(288, 10))
    x = torch.randn(16, 3, 8, 8)
    eager = step(model, x, model)
    results = step(model, x, exact(model))
    assert len(results) == 7
    for result, expected in zip(results, eager, strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_fast_rounds_once_between_operators(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + x) * y - x

    x, y = torch.randn(4096).to(dtype), torch.randn(4096).to(dtype)
    fxloom.reset()
    fast = fxloom.compile(program, fullgraph=True, options={"numerics": "fast"})
    default = fxloom.compile(program, fullgraph=True)
    once = program(x.float(), y.float()).to(dtype)
    assert not torch.equal(program(x, y), once)
    assert torch.equal(default(x, y), program(x, y))
    assert torch.equal(fast(x, y), once)
    assert sum(fxloom.stats().kernels.values()) == 2


def test_an_unknown_name_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="unknown numerics 'exakt'; did you mean 'exact'"):
        fxloom.compile(torch.sin, options={"numerics": "exakt"})


def test_halves_convert_as_in_eager() -> None:
    """All patterns to float32; and to float16 what lies on them, between them and beside the middles."""
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    wide = halves.float()
    fxloom.reset()
    assert torch.equal(fxloom.compile(lambda x: x.float())(halves).nan_to_num(1e9), wide.nan_to_num(1e9))
    middles = (wide[:-1].double() + wide[1:].double()).div(2).float()
    above, below = (torch.nextafter(middles, torch.tensor(end)) for end in (float("inf"), -float("inf")))
    values = torch.cat([wide, middles, above, below, torch.tensor([65519.99, 65520.0, 1e9, 2.0**-25, 2.0**-25 * 1.0001, -0.0])])
    for given in (values, values.double()):
        found, expected = fxloom.compile(lambda x: x.half())(given), given.half()
        same = (found.view(torch.int16) == expected.view(torch.int16)) | (found.isnan() & expected.isnan())
        assert bool(same.all())
    assert not fxloom.stats().fallbacks
