"""Numbers that change where they are no sizes of an input's own: strides alone, shapes that are passed or kept over a break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fxloom

SIZES = (3, 5, 7, 4, 9, 2, 11, 12)
BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inner", [(), (4,)], ids=["rows", "planes"])
def test_a_stride_that_changes_alone_is_compiled_for_once(inner: tuple[int, ...], backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x: (x * 2, x.t() if x.dim() == 2 else x.transpose(0, 1), x.stride()), backend=backend)
    for n in SIZES:
        x = torch.randn(3, n, *inner)[:, :2]
        doubled, turned, strides = compiled(x)
        assert torch.equal(doubled, x * 2) and doubled.stride() == (x * 2).stride()
        assert turned.stride() == x.transpose(0, 1).stride() and torch.equal(turned, x.transpose(0, 1))
        assert strides == x.stride()
    assert fxloom.stats().compiles <= 3  # the buffer of two columns has no gaps


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shape_that_is_passed_is_compiled_for_as_a_tuple_is(backend: str, dynamic: bool | None, counters_at_zero: None) -> None:
    def fn(x: Tensor, size: torch.Size) -> tuple[Tensor, torch.Size, int]:
        return x.view(size) * 1, size, size.numel() + len(size)

    compiled = fxloom.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for n in SIZES:
        x, size = torch.randn(2 * n), torch.Size((n, 2))
        viewed, same, count = compiled(x, size)
        assert torch.equal(viewed, x.view(size)) and same == size and type(same) is torch.Size and count == 2 * n + 2
    assert fxloom.stats().compiles == (1 if dynamic else 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shape_kept_over_a_break_is_compiled_for_once(backend: str, counters_at_zero: None) -> None:
    def fn(x: Tensor) -> Tensor:
        size = x.shape
        y = x * 2
        fxloom.graph_break()
        return y.sum() * size[0]

    compiled = fxloom.compile(fn, backend=backend)
    for n in SIZES:
        x = torch.ones(n, 2)
        assert torch.equal(compiled(x), fn(x))
    assert fxloom.stats().compiles == 4  # each part once for the first size and once for all


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_of_sizes_by_as_tensor_is_compiled_for_once(backend: str, dynamic: bool | None, counters_at_zero: None) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x / torch.as_tensor(x.shape[0], dtype=torch.float), torch.as_tensor([x.shape[0], 2 * x.shape[0]])

    compiled = fxloom.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for n in SIZES:
        x = torch.ones(n, 2)
        for got, expected in zip(compiled(x), fn(x), strict=True):
            torch.testing.assert_close(got, expected)
    assert fxloom.stats().compiles == (1 if dynamic else 2)


@pytest.mark.parametrize("inner", [(), (4,)])
def test_with_dynamic_a_stride_that_changes_alone_is_no_reason_to_compile_again(inner: tuple[int, ...], counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x: x * 2 + x.stride(0), backend="inductor", dynamic=True)
    for width in (3, 5, 7, 4):
        x = torch.randn(3, width, *inner)[:, :2]
        assert torch.equal(compiled(x), x * 2 + x.stride(0))
    assert fxloom.stats().compiles == 1
