"""What a region does to the autograd state of tensors that existed before: the caller's tensors change as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxloom

BACKENDS = ["aot_eager", "inductor"]


def leaf() -> Tensor:
    return torch.randn(3, requires_grad=True)


def state(*tensors: Tensor) -> list[Any]:
    return [(t.requires_grad, t.is_leaf, t.detach().clone(), None if not t.is_leaf else t.grad) for t in tensors]


def detached(y: Tensor, w: Tensor) -> Any:
    y.detach_()
    return (y * w).sum()


def detached_by_function(y: Tensor, w: Tensor) -> Any:
    torch.detach_(y)
    return (y * w).sum(), y


def detached_then_written(y: Tensor, w: Tensor) -> Any:
    y.detach_()
    y.mul_(w)
    return y.sum()


def written_then_detached(y: Tensor, w: Tensor) -> Any:
    y.mul_(w)
    total = y.sum()
    y.detach_()
    return total


def no_longer_required(y: Tensor, w: Tensor) -> Any:
    w.requires_grad_(False)
    return (y * w).sum()


PROGRAMS: list[Callable[..., Any]] = [
    detached, detached_by_function, detached_then_written, written_then_detached, no_longer_required,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [lambda: leaf() * 2, leaf, lambda: torch.ones(3)], ids=["history", "leaf", "plain"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inputs_change_as_in_eager(program: Callable[..., Any], make: Callable[[], Tensor], backend: str) -> None:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        torch.manual_seed(0)
        y, w = make(), leaf()
        try:
            out = run(y, w)
            total = out[0] if isinstance(out, tuple) else out
            if total.requires_grad:
                total.backward()
            seen.append(state(total, y, w))
        except RuntimeError as error:  # a leaf is written
            seen.append(str(error)[:40])
    if isinstance(seen[0], str):
        assert seen[1] == seen[0]
    else:
        torch.testing.assert_close(seen[1], seen[0])


def test_detaching_a_view_is_the_error_of_eager() -> None:
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        fxloom.compile(lambda x: x.detach_() + 1, backend="aot_eager")((leaf() * 2)[:2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_truncated_backpropagation_through_time(backend: str) -> None:
    def train(compile: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        cell = nn.RNNCell(2, 3)

        def step(x: Tensor, h: Tensor) -> Any:
            h.detach_()
            h = cell(x, h)
            return h, h.square().sum()

        run, h, losses = compile(step), torch.zeros(1, 3), []
        for _ in range(4):
            h, loss = run(torch.ones(1, 2), h)
            loss.backward()
            losses.append(loss.detach())
        return [losses, [parameter.grad for parameter in cell.parameters()]]

    torch.testing.assert_close(train(lambda fn: fxloom.compile(fn, backend=backend)), train(lambda fn: fn))
