"""New values of inputs are written over the old ones, without a second copy, wherever nobody could tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import fxloom
from fxloom_interfaces import telemetry


def run(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, list[str]]:
    """(results, lines of the wrapper in which an input's memory is taken over), after comparing with eager, inputs included."""
    copies = [torch.empty_strided(x.size(), x.stride()).copy_(x) for x in inputs]
    before = [x._version for x in copies]
    versions = [x._version for x in inputs]
    wrappers: list[str] = []

    def keep(event: Any) -> None:
        if isinstance(event, telemetry.ArtifactWritten) and event.name == "output_code.py":
            wrappers.append(event.text)

    with telemetry.listen(keep, artifacts=True):
        results = fxloom.compile(function, fullgraph=True)(*inputs)
    expected = function(*copies)
    for got, wanted in zip(tree_leaves((results, inputs)), tree_leaves((expected, copies)), strict=True):
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)  # sums may be taken in another order
            assert got.stride() == wanted.stride()
    for x, copy, version, old in zip(inputs, copies, versions, before, strict=True):
        assert (x._version > version) == (copy._version > old)
    lines = [line.strip() for text in wrappers for line in text.splitlines() if " = arg" in line and "reuses memory" in line]
    return results, lines


def test_a_state_is_updated_in_place() -> None:
    def step(p: Tensor, g: Tensor, m: Tensor) -> None:
        m.mul_(0.5).add_(g)
        p.sub_(m, alpha=0.25)

    _, lines = run(step, torch.randn(5, 6), torch.randn(5, 6), torch.randn(5, 6))
    assert len(lines) == 2


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.t(), lambda x: x[:, :1]], ids=["rows", "columns", "with gaps"])
def test_layouts(layout: Callable[[Tensor], Tensor]) -> None:
    x = layout(torch.arange(20.0).reshape(4, 5))
    run(lambda x: x.mul_(3).add_(1), x)


def test_a_number_is_counted_up_in_place() -> None:
    _, lines = run(lambda x: x.add_(1), torch.tensor(3.0))
    assert len(lines) == 1


def filled(x: Tensor) -> None:
    x.fill_(2.5)


def read_before(x: Tensor, y: Tensor) -> Tensor:
    total = (x * y).sum()
    x.add_(total)
    return total


def old_value_returned(x: Tensor) -> Tensor:
    old = x.clone()
    x.add_(1)
    return old


def new_value_returned_apart(x: Tensor) -> Tensor:
    x.add_(1)
    return x + 0


def old_value_read_elsewhere(x: Tensor, y: Tensor) -> Tensor:
    """What reads the old value may run after the new one is there."""
    kept = torch.mm(x, y)
    x.add_(1)
    return kept + torch.mm(x, y)


def read_at_another_place(x: Tensor) -> None:
    x.copy_(x.flip(0) + x)


def transposed_onto_itself(x: Tensor) -> None:
    x.copy_(x.t().clone())


def folded(x: Tensor) -> None:
    x.sub_(x.mean(0))


def exchanged(x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def written_by_a_library(x: Tensor, y: Tensor) -> None:
    x.copy_(torch.mm(x, y))


def views_written(x: Tensor) -> None:
    x[1:].add_(1)
    x[:, 0].mul_(2)


def returned_itself(x: Tensor) -> Tensor:
    return x.mul_(2)


ONE = [filled, old_value_returned, new_value_returned_apart, read_at_another_place, transposed_onto_itself, folded, views_written, returned_itself]
TWO = [read_before, old_value_read_elsewhere, exchanged, written_by_a_library]


@pytest.mark.parametrize("function", [*ONE, *TWO], ids=lambda f: f.__name__)
def test_nobody_sees_an_old_value_too_late(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 40, 40).unbind()
    inputs = (x,) if function in ONE else (x.clone(), y.clone())
    run(function, *(value.clone() for value in inputs))


def test_one_tensor_given_twice() -> None:
    def step(x: Tensor, y: Tensor) -> None:
        x.add_(y)
        y.mul_(2)

    x = torch.randn(4)
    copy = x.clone()
    fxloom.compile(step)(x, x)
    step(copy, copy)
    assert torch.equal(x, copy)


def test_inputs_are_as_they_were_where_the_program_raises() -> None:
    """Eager raises before it writes; what comes behind the write in our program must not raise."""

    def raises_first(x: Tensor, table: Tensor, i: Tensor) -> None:
        rows = table[i]
        x.add_(1)
        x.add_(rows)

    def raises_last(x: Tensor, table: Tensor, i: Tensor) -> Tensor:
        total = torch.linalg.cholesky(table)
        x.add_(1)
        return total

    x = torch.zeros(2, 3)
    compiled = fxloom.compile(raises_first)
    compiled(x, torch.ones(5, 3), torch.tensor([0, 4]))
    assert torch.equal(x, torch.full((2, 3), 2.0))
    with pytest.raises(IndexError):
        compiled(x, torch.ones(5, 3), torch.tensor([0, 5]))
    assert torch.equal(x, torch.full((2, 3), 2.0))
    compiled = fxloom.compile(raises_last)
    compiled(x, torch.eye(3), torch.tensor(0))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(x, -torch.eye(3), torch.tensor(0))
    assert torch.equal(x, torch.full((2, 3), 3.0))


def test_gradients_of_what_was_overwritten() -> None:
    """A buffer that changes beside a differentiated computation, as running statistics."""

    def step(w: Tensor, x: Tensor, running: Tensor) -> Tensor:
        y = w * x + running
        running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return (y * y).sum()

    results = []
    for function in (step, fxloom.compile(step, fullgraph=True)):
        torch.manual_seed(0)
        w, x, running = torch.randn(3, requires_grad=True), torch.randn(4, 3), torch.randn(3)
        function(w, x, running).backward()
        results.append((w.grad, running))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        x, y = torch.ones(3), torch.ones(3)
        fxloom.compile(lambda x: x.add_(1), fullgraph=True)(x)
        assert torch.equal(x, y + 1)
