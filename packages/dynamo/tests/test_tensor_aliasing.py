"""Which inputs are one tensor, or share memory, is part of what a graph was made for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxloom_dynamo import optimize


class Counting:
    """Backend "eager" that counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        self.graphs += 1
        return gm.forward


def distinct() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4), torch.ones(4)


def one() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.ones(4)
    return x, x


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.ones(6)
    return base[:4], base[2:]


def whole_and_view() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.ones(4)
    return base, base.view(4)


KINDS = [distinct, one, overlapping, whole_and_view]


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return y + 1


def asks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + (1 if x is y else 2)


@pytest.mark.parametrize("function", [writes, asks])
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_later_call_may_alias_in_another_way(function: Any, first: Any, second: Any) -> None:
    backend = Counting()
    compiled = optimize(backend)(function)
    for make in (first, second, first):
        ours, eager = make(), make()
        assert torch.equal(compiled(*ours), function(*eager))
        assert torch.equal(ours[0], eager[0])
        assert torch.equal(ours[1], eager[1])
    assert backend.graphs >= (2 if {first, second} == {distinct, one} else 1)


def test_views_of_one_batch_share_a_graph_where_nothing_is_written() -> None:
    backend = Counting()
    compiled = optimize(backend)(lambda x, y: x * y)
    batch = torch.randn(6, 3)
    for left, right in ((0, 1), (2, 3), (4, 5)):
        assert torch.equal(compiled(batch[left], batch[right]), batch[left] * batch[right])
    assert torch.equal(compiled(torch.ones(3), torch.ones(3)), torch.ones(3))
    assert backend.graphs == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.set_(torch.ones(2)) * 2,
        lambda x: (x.requires_grad_() * 2).sum(),
        lambda x: x.detach().requires_grad_(False) + 1,
    ],
)
def test_changes_of_the_tensor_itself_happen_to_the_callers_tensor(function: Any) -> None:
    ours, eager = torch.zeros(3), torch.zeros(3)
    got, want = optimize(Counting())(function)(ours), function(eager)
    assert torch.equal(got, want)
    assert (got.requires_grad, ours.requires_grad, ours.shape) == (want.requires_grad, eager.requires_grad, eager.shape)


def test_capture_leaves_autocast_as_it_is() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    x = torch.randn(4, 4)
    compiled = optimize(Counting())(f)
    for _ in range(3):
        assert torch.equal(compiled(x), f(x))
    # entering gives the count after entering: 1 when none was left open or closed too often
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * x.storage_offset(),
        lambda x: x[1:].storage_offset() + x,
        lambda x: x.as_strided((2, 2), (4, 1)) * 2,
        lambda x: torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (4, 1), x.storage_offset()),
        lambda x: (x + 1) * x._is_view(),
    ],
)
def test_a_place_in_the_storage_that_was_asked_for(fn: Any) -> None:
    base = torch.arange(24.0).reshape(6, 4)
    compiled = optimize("eager")(fn)
    for x in (base[0:4], base[1:5], base[2:6].clone(), base[1:5]):
        assert torch.equal(compiled(x), fn(x))


def test_swapped_tensors() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.utils.swap_tensors(a, b)
        return a * 2, b + 1

    a, b = torch.ones(2), torch.zeros(3)
    first, second = optimize("eager")(fn)(a, b)
    assert first.tolist() == [0, 0, 0] and second.tolist() == [2, 2]
    assert a.shape == (3,) and b.shape == (2,)
