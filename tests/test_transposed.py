"""Programs whose tensors are contiguous along different axes, end to end: one kernel each, values and strides of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fxloom

Program = Callable[..., torch.Tensor]


def normal(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


#: name -> (program, the sizes of its arguments for two numbers)
PROGRAMS: dict[str, tuple[Program, Callable[[int, int], list[tuple[int, ...]]]]] = {
    "copy": (lambda x: x.t().contiguous(), lambda n, m: [(n, m)]),
    "sum": (lambda x, y: x + y.t(), lambda n, m: [(n, m), (m, n)]),
    "batches": (lambda x, y: x.mT * 2 + y, lambda n, m: [(3, n, m), (m, n)]),
    "to channels last": (lambda x: x.relu().contiguous(memory_format=torch.channels_last), lambda n, m: [(2, n, m, 9)]),
    "from channels last": (lambda x: x.permute(0, 3, 1, 2).contiguous() + 1, lambda n, m: [(2, m, 9, n)]),
    "axes in reverse": (lambda x: x.permute(2, 1, 0).contiguous(), lambda n, m: [(n, 5, m)]),
    "concatenated": (lambda x, y: torch.cat([x.t(), y], 1), lambda n, m: [(n, m), (m, n)]),
    "every second": (lambda x: x[:, ::2].t().contiguous(), lambda n, m: [(n, m)]),
    "in place": (lambda x, y: x.clone().mul_(y.t()), lambda n, m: [(n, m), (m, n)]),
    "flipped": (lambda x, y: x.flip(0).t() - y, lambda n, m: [(n, m), (m, n)]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, dynamic: bool) -> None:
    program, sizes = PROGRAMS[name]
    fxloom.reset()
    compiled = fxloom.compile(program, fullgraph=True, dynamic=dynamic)
    for n, m in [(70, 130), (200, 67)] if dynamic else [(70, 130)]:
        arguments = [normal(*size) for size in sizes(n, m)]
        got, want = compiled(*arguments), program(*arguments)
        assert torch.equal(got, want) and got.stride() == want.stride()
    stats = fxloom.stats()
    assert sum(stats.kernels.values()) == 1 and not stats.library_calls and not stats.fallbacks
