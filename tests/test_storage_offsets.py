"""Where a tensor begins in its storage: what looks at it, or depends on it, is compiled anew for another place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

#: program, graphs made for three places under `aot_eager`
PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "unasked": (lambda x: x * 2, 1),
    "multiplied": (lambda x: x * x.storage_offset(), 3),
    "returned": (lambda x: (x.storage_offset(), x + 1), 3),
    "branch": (lambda x: x + 1 if x.storage_offset() else x - 1, 3),
    "of a view": (lambda x: x[1:].storage_offset() * x, 3),
    "strided there": (lambda x: x.as_strided(x.shape, x.stride(), x.storage_offset()) + 1, 3),
    "strided": (lambda x: x.as_strided((2, 2), (4, 1)) + 1, 3),
    "strided, returned": (lambda x: x.as_strided((2, 2), (4, 1)), 3),
    "strided, written": (lambda x: x.as_strided((2, 2), (4, 1)).add_(1), 3),
    "scattered": (lambda x: torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (4, 1), x.storage_offset()), 3),
    "transposed in place": (lambda x: x.t_() * 2, 3),
    "of one made inside": (lambda x: (x + 1)[1:].storage_offset() * x, 1),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(("program", "graphs"), PROGRAMS.values(), ids=PROGRAMS)
def test_views_at_other_places(program: Callable[[Tensor], Any], graphs: int, backend: str) -> None:
    run = fxloom.compile(program, backend=backend)
    for first in (0, 1, 2, 0):
        base, other = torch.arange(24.0).reshape(6, 4), torch.arange(24.0).reshape(6, 4)
        x, y = base[first : first + 4], other[first : first + 4]
        torch.testing.assert_close(run(x), program(y), rtol=0, atol=0)
        assert torch.equal(base, other)
        assert (x.shape, x.stride(), x.storage_offset()) == (y.shape, y.stride(), y.storage_offset())
    assert fxloom.stats().compiles <= graphs
    assert backend == "eager" or fxloom.stats().compiles == graphs
    assert fxloom.stats().graph_breaks == 0


def test_whether_an_input_is_a_view_is_left_to_the_program() -> None:
    def program(x: Tensor) -> tuple[bool, Tensor]:
        return x._is_view(), x + 1

    run = fxloom.compile(program, backend="eager")
    for x in (torch.ones(3), torch.ones(6)[:3], torch.ones(3)):
        assert run(x)[0] == program(x)[0]
    assert fxloom.stats().graph_breaks == 1
