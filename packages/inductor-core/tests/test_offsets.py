"""Kernels that differ in where they read or write alone are one kernel, which takes the places as sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from core_graphs import check

from fxloom_inductor_core import CompiledGraph
from fxloom_interfaces.program import Launch

WEIGHT = torch.randn(8, 8) / 3


def launches(graph: CompiledGraph) -> list[Launch]:
    return [step for step in graph.program.steps if isinstance(step, Launch)]


def unrolled(step: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], steps: int) -> Callable[..., torch.Tensor]:
    """A loop over `steps` steps, none of which can be fused with another."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        h = torch.ones(4, 8)
        for t in range(steps):
            h = torch.mm(step(h, x, t), weight)
        return h

    return program


@pytest.mark.parametrize(
    ("step", "shape", "sizes"),
    [
        (lambda h, x, t: torch.tanh(h + x[t]), (12, 4, 8), 1),
        (lambda h, x, t: torch.tanh(h + x[t]) * x[12], (13, 4, 8), 1),
        (lambda h, x, t: h * x[t], (12,), 1),
        (lambda h, x, t: h + x[:, t : t + 1] * x[:, 11 - t : 12 - t], (4, 12), 2),
        (lambda h, x, t: h - x[2 * t], (24, 4, 8), 1),
        (lambda h, x, t: (h[:, None] * x[t]).sum(1), (12, 4, 16, 8), 1),
        (lambda h, x, t: h + torch.cat([x[t, :2], x[t + 1, 2:]]), (13, 4, 8), 2),
    ],
    ids=["rows", "one place that moves", "numbers", "two ways", "every other", "fold", "masked"],
)
def test_steps_that_read_other_places_share_a_kernel(step: Callable[..., torch.Tensor], shape: tuple[int, ...], sizes: int) -> None:
    graph = check(unrolled(step, 12), torch.randn(shape), WEIGHT)
    found = launches(graph)
    assert len(found) >= 12
    many = max((step.kernel for step in found), key=[step.kernel for step in found].count)
    places = [step.sizes for step in found if step.kernel == many]
    assert len(places) >= 11  # a first or last step may be fused otherwise
    assert len(set(places)) == len(places)
    assert {len(place) for place in places} == {sizes}
    assert len(graph.program.kernels) <= 3


def test_few_kernels_keep_their_constants() -> None:
    graph = check(unrolled(lambda h, x, t: h + x[t], 3), torch.randn(3, 4, 8), WEIGHT)
    assert all(step.sizes == () for step in launches(graph))


def test_places_that_are_written() -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = [torch.mm(torch.tanh(x[t]), weight) for t in range(9)]
        return torch.stack([torch.mm(m, weight) * 2 for m in made])

    check(program, torch.randn(9, 4, 8), WEIGHT)
