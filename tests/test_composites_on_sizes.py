"""Torch's functions in C++ that take tensors apart, on symbolic sizes: eager's results, for any size where we have a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom
from fxloom_interfaces.sources import LocalSource
from fxloom_shapes import SymbolEnv, TraceContext
from fxloom_shapes.fake.symbolize import DimPolicy, symbolize

Program = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fxloom.reset()


FOR_ANY_SIZE: dict[str, Program] = {
    "kron": lambda x: torch.kron(x, x[:1]),
    "kron_of_ranks": lambda x: torch.kron(x, x[0]),
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
    "take_along_dim_broadcast": lambda x: torch.take_along_dim(x, x[:1].argsort(1), 1),
    "take_along_dim_flat": lambda x: torch.take_along_dim(x, x.argmax()[None]),
    "gradient": lambda x: torch.gradient(x)[0],
    "gradient_spaced": lambda x: torch.gradient(x, spacing=0.5, dim=1)[0],
    "norm": lambda x: torch.linalg.norm(x, -2),
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x, 2, keepdim=True),
    "nuclear_norm": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "nbytes": lambda x: x * x.nbytes,
}
BY_SIZE: dict[str, Program] = {
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.t(), x]),
    "cov": torch.cov,
    "block_diag": lambda x: torch.block_diag(x, x),
    "cumprod": lambda x: x.cumprod(1),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [*FOR_ANY_SIZE, *BY_SIZE])
def test_results_and_gradients_are_eagers(name: str, grad: bool) -> None:
    f = {**FOR_ANY_SIZE, **BY_SIZE}[name]
    compiled = fxloom.compile(f, backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    for size in (3, 4, 5, 6):
        x = torch.randn(size, size + 1, requires_grad=grad)
        expected, got = f(x), compiled(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
        if grad:
            torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (got, expected)], rtol=1e-4, atol=1e-4)
    if name in FOR_ANY_SIZE:
        assert fxloom.stats().compiles == 2


@pytest.mark.parametrize("name", [*FOR_ANY_SIZE, *BY_SIZE, "interpolate"])
def test_a_mode_of_its_own_serves_them(name: str) -> None:
    programs = {**FOR_ANY_SIZE, **BY_SIZE, "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2.0)}
    env, x = SymbolEnv(), torch.randn(4, 5)
    context = TraceContext(env=env)
    symbolize(env, x, LocalSource("x"), {0: DimPolicy(), 1: DimPolicy()})
    with context.activate(), context.fake_mode:
        fake = programs[name](context.fake_mode.from_tensor(x))
        assert tuple(map(int, fake.shape)) == tuple(programs[name](x).shape)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.n = x.shape[0]
        return x * x.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.n


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.expand(ctx.shape)


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n: Any) -> Tensor:
        ctx.n = n
        return x * n

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.n, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: Scale.apply(x),
        lambda x: Sum.apply(x),
        lambda x: Times.apply(x, x.shape[0]),
        lambda x: Times.apply(x, 1 / x.shape[0]),
        lambda x: Times.apply(x, x.shape[0] * 2) + x.shape[0] * 2,
    ],
)
def test_custom_functions_use_sizes(f: Program, backend: str) -> None:
    compiled = fxloom.compile(f, backend=backend, dynamic=True, fullgraph=True)
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 2, requires_grad=True)
        expected, got = f(x), compiled(x)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (got, expected)])
    assert fxloom.stats().compiles == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x, a: torch.addmm(x, x, x, alpha=a),
        lambda x, a: torch.addmm(x, x, x, beta=a, alpha=1 / x.shape[0]),
        lambda x, a: torch.baddbmm(x[None], x[None], x[None], alpha=a),
        lambda x, a: torch.addbmm(x, x[None], x[None], alpha=a),
    ],
)
def test_factors_of_products_may_change(f: Callable[[Tensor, float], Tensor]) -> None:
    compiled = fxloom.compile(f, backend="inductor")
    for size, factor in ((3, 0.5), (4, 0.25), (5, 0.75), (6, 0.125)):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x, factor), f(x, factor))
    assert fxloom.stats().compiles == 2
