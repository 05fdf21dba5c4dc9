"""Results whose strides only differ where they don't matter are laid out as the dialect says: by as_strided of one contiguous axis."""

from __future__ import annotations

import pytest
import torch
from programs import compile_program


@pytest.mark.parametrize("size", [(1, 3), (3, 1), (1, 2, 3), (0, 3)], ids=str)
def test_strides_of_axes_of_one_element_are_the_programs(size: tuple[int, ...]) -> None:
    strides = [7 * step for step in torch.empty(size).stride()] if 0 in size else list(torch.empty(size).stride())
    strides[size.index(1) if 1 in size else 0] = 11
    x = torch.empty_strided(size, strides).fill_(2.0)
    rules = {torch.ops.aten.zeros_like.default: lambda y, **options: torch.ops.aten.full.default(list(y.shape), 0.0)}
    run, _ = compile_program(torch.zeros_like, [x], rules)  # verifies the graphs
    (got,) = run(x)
    assert (got.shape, got.stride()) == (x.shape, torch.zeros_like(x).stride())
    assert torch.equal(got, torch.zeros_like(x))
