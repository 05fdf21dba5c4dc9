"""Constructors for which a Size is a shape, and every other sequence the values."""

from __future__ import annotations

import pytest
import torch

import fxloom


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_size_is_a_shape(dynamic: bool | None, backend: str) -> None:
    def f(x: torch.Tensor) -> list[torch.Size]:
        made = [x.new(torch.Size([])), x.new(()), x.new([]), x.new(2, 3), x.new(x.shape), x.new(x.shape[1:]), x.new((1, 2))]
        return [y.shape for y in made]

    compiled = fxloom.compile(f, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (2, 3, 5):
        x = torch.rand(rows, 4)
        assert compiled(x) == f(x)


def test_a_distribution_of_no_batch_draws() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Exponential(torch.tensor(2.0)).sample() * x

    torch.manual_seed(1)
    got = fxloom.compile(f, backend="aot_eager")(torch.ones(()))
    torch.manual_seed(1)
    torch.testing.assert_close(got, f(torch.ones(())))
