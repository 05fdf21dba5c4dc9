"""Programs of the kinds that public bug reports name, with variations: eager's values, gradients, aliasing and mutation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.cos(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, 0.25)


class WritesItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        out = a * 2
        out += b
        out[0].mul_(3)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (a,) = ctx.saved_tensors
        return gradient * 2 + a * 0, gradient


def windows(step: int, size: int) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        x.unfold(1, size, step).mul_(-1)
        return x.sum(), x[0]

    return program


def accumulate(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1] += x[:, 0].abs()
    y[:, 1] += x[:, 0].abs() * 3
    y[0].add_(x[1], alpha=2)
    return y.sum()


def expanded_cell(x: Tensor) -> Any:
    row = x[1].expand(3)
    row[-1] = 7
    return row + 0, x.sum()


def dtype_view(x: Tensor, y: Tensor) -> Any:
    x.view(torch.float32).copy_(y)
    x.view(torch.int32)[0, 0] = 0
    return x * 2


def tail_of_written_base(base: Tensor, tail: Tensor) -> Any:
    base.mul_(2)
    return tail[0], tail.t()


def both_written(base: Tensor, tail: Tensor) -> Any:
    tail.add_(1)
    base[4:].mul_(tail[1:2])
    return base[2], tail.sum()


def based() -> tuple[Tensor, Tensor]:
    base = torch.arange(20.0).view(5, 4)
    return base, base[2:]


def leaf(*size: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(size).numel()).view(size).requires_grad_()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "gapped_windows": (windows(4, 2), lambda: (torch.arange(1.0, 31.0).view(3, 10),)),
    "gapped_windows_of_three": (windows(5, 3), lambda: (torch.arange(1.0, 46.0).view(3, 15),)),
    "touching_windows": (windows(2, 2), lambda: (torch.arange(1.0, 31.0).view(3, 10),)),
    "tail_of_written_base": (tail_of_written_base, based),
    "base_and_tail_written": (both_written, based),
    "view_of_same_dtype": (dtype_view, lambda: (torch.zeros(3, 5), torch.arange(15.0).view(3, 5))),
    "expanded_cell": (expanded_cell, lambda: (torch.tensor([1.0, 2.0, 3.0]),)),
    "grad_of_columns_written_twice": (lambda x: torch.func.grad(accumulate)(x), lambda: (torch.randn(3, 3),)),
    "grad_and_value": (lambda x: torch.func.grad_and_value(accumulate)(x), lambda: (torch.randn(3, 3),)),
    "grad_with_own_backward": (lambda x: torch.func.grad(lambda t: OwnGradient.apply(t).sum())(x), lambda: (torch.randn(5),)),
    "own_backward": (lambda x: OwnGradient.apply(x * 2).sum(), lambda: (leaf(5),)),
    "function_that_writes_its_result": (
        lambda a, b: WritesItsResult.apply(a.exp(), b) * 5,
        lambda: (leaf(3), leaf(3)),
    ),
    "sizes_from_two_tensors": (
        lambda x, a, b: torch.split(x, [i + j for i, j in zip(a.tolist(), b.tolist(), strict=True)]),
        lambda: (torch.arange(20.0), torch.tensor([2, 5, 3]), torch.tensor([3, 4, 3])),
    ),
}


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for item in value for t in tensors(item)] if value is not None else []


def outcome(fn: Callable[..., Any], make: Callable[[], tuple[Tensor, ...]]) -> tuple[list[Tensor], list[Any], list[bool]]:
    """Results and inputs afterwards, gradients, and which results share memory with which inputs."""
    torch.manual_seed(0)
    inputs = make()
    results = tensors(fn(*inputs))
    memory = [result.untyped_storage()._cdata == given.untyped_storage()._cdata for result in results for given in inputs]
    wanted = [result.sum() for result in results if result.requires_grad]
    gradients: list[Any] = []
    if wanted:
        gradients = list(torch.autograd.grad(sum(wanted), [i for i in inputs if i.requires_grad], allow_unused=True))
    return [copy.copy(t.detach()) for t in (*results, *inputs)], gradients, memory


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_does_what_eager_does(name: str, backend: str) -> None:
    program, make = PROGRAMS[name]
    expected, got = outcome(program, make), outcome(fxloom.compile(program, backend=backend), make)
    for one, other in zip((*expected[0], *expected[1]), (*got[0], *got[1]), strict=True):
        torch.testing.assert_close(other, one)
        assert other.stride() == one.stride()
    assert got[2] == expected[2]
    assert fxloom.stats().graphs >= 1


class PlacedRows(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))
        self.linears = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], x.shape[1] + 1, x.shape[2])
        h[:, 1:] = x
        for norm, linear in zip(self.norms, self.linears, strict=True):
            h = h + linear(norm(h))
        return h


def pieces(x: Tensor) -> Tensor:
    a, b, c = torch.split(x, [2, 3, 5], dim=1)
    return torch.cat([p.reshape(x.shape[0], -1).relu() for p in (a, b, c)], 1) + 1


@pytest.mark.parametrize("dynamic", [True, None])
def test_rows_placed_into_a_wider_buffer_train_at_any_size(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = PlacedRows(16)
    compiled = fxloom.compile(model, dynamic=dynamic, fullgraph=True)
    for size in ((2, 5), (3, 7), (4, 2)):
        x = torch.randn(*size, 16)
        gradients = []
        for run in (model, compiled):
            model.zero_grad()
            run(x).square().mean().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert fxloom.stats().graphs == (1 if dynamic else 2)


def test_pieces_reshaped_and_joined_at_any_size() -> None:
    compiled = fxloom.compile(pieces, dynamic=True, fullgraph=True)
    for x in (torch.arange(-30.0, 30.0).view(2, 10, 3), torch.arange(-45.0, 45.0).view(3, 10, 3)):
        torch.testing.assert_close(compiled(x), pieces(x))
    assert fxloom.stats().graphs == 1
