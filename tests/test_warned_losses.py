"""A loss of torch's that has warned once is evaluated from then on; with sizes that only running tells it is one call all the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxloom


def of_parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(x[x > 0], y[x > 0])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_of_parts_after_a_warning(backend: str) -> None:
    fxloom.reset()
    with pytest.warns(UserWarning, match="Using a target size"):
        fxloom.compile(lambda a, b: F.mse_loss(a, b), backend="eager")(torch.randn(2, 1), torch.randn(2, 3))
    run = fxloom.compile(of_parts, backend=backend, fullgraph=True, dynamic=True)
    for rows in (6, 9):
        x, y = torch.randn(rows, 5), torch.rand(rows, 5)
        torch.testing.assert_close(run(x, y), of_parts(x, y))
