"""Operators that are called, not generated, see the strides that they see in eager, also of axes of one element; so do gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import fxloom

seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []


@torch.library.custom_op("strides_of_calls::look", mutates_args=())
def look(x: Tensor) -> Tensor:
    """Some kernels refuse operands by their strides (attention: alignment of a query of length 1)."""
    seen.append((tuple(x.shape), x.stride()))
    return x.clone()


@look.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    seen.clear()
    fxloom.reset()
    yield
    fxloom.reset()


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "one query": lambda x: look((x[:, 0] * 2).unsqueeze(1).reshape(2, 1, 4, 8).permute(0, 2, 1, 3)),
    "of a sum": lambda x: look(x.sum(1, keepdim=True).view(2, 1, 4, 8).transpose(1, 2)),
    "of a matrix product": lambda x: look((x[:, :1] @ torch.ones(32, 32)).view(2, 1, 4, 8).transpose(1, 2)),
    "turned": lambda x: look((x[:, :1] + 1).transpose(1, 2)),
    "no element": lambda x: look((x[:, :0] + 1).view(2, 0, 4, 8).transpose(1, 2)),
    "an input": lambda x: look(x[:, :1].transpose(1, 2)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_calls_see_eagers_strides(program: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 5, 32)
    program(x)
    compiled = fxloom.compile(program, fullgraph=True)
    compiled(x)
    expected, found = seen
    assert found == expected
    assert fxloom.stats().fallbacks.total() == 1


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp", "inductor"])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (torch.diag, (10,)),
        (torch.diag_embed, (5, 5)),
        (torch.diagflat, (2, 2)),
        (lambda x: torch.zeros(4, 4).diagonal_scatter(x), (4,)),
        (lambda x: torch.fft.hfft(x, dim=1), (5, 6, 7)),
        (lambda x: torch.fft.irfft2(x, dim=(0, -1)), (5, 6, 7)),
    ],
    ids=["diag", "diag_embed", "diagflat", "diagonal_scatter", "hfft", "irfft2"],
)
def test_gradients_with_gaps(function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], backend: str) -> None:
    """Gradients that are part of a larger tensor, not all of it, have eager's strides."""
    x = torch.randn(shape, requires_grad=True)
    expected = function(x)
    upstream = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, x, upstream)
    (found,) = torch.autograd.grad(fxloom.compile(function, backend=backend)(x), x, upstream)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)
