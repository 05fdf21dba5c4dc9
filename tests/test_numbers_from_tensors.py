"""Numbers that the program reads out of tensors: kept in the graph with `fullgraph` alone; those in an index always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

BACKENDS = ("aot_eager", "inductor")

WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x * x.sum().item(),
    "tolist": lambda x: sum(x.long().tolist()),
    "mask": lambda x: x[x > 2] + 1,
    "nonzero": lambda x: torch.nonzero(x > 2) + 1,
    "unique": lambda x: torch.unique(x) + 1,
    "repeat_interleave": lambda x: torch.repeat_interleave(x, (x > 2).long() + 1) * 2,
    "ragged split": lambda x: [part.sum() for part in torch.split(x, [*(x[:2].long() + 1).tolist(), 3])],
    "arange": lambda x: torch.arange(x[4].long().item()) * 2.0,
}


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return found.dtype == wanted.dtype and found.stride() == wanted.stride() and torch.equal(found, wanted)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WHOLE)
def test_fullgraph_needs_no_options(name: str, backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(WHOLE[name], backend=backend, fullgraph=True)
    for x in (torch.tensor([0.0, 1, 2, 3, 4, 5]), torch.tensor([1.0, 0, 3, 3, 7, 0])):
        assert same(compiled(x), WHOLE[name](x))
    assert fxloom.stats().compiles == 1


def test_backends_that_may_trace_with_the_number_at_hand_keep_the_break() -> None:
    compiled = fxloom.compile(WHOLE["item"], backend=lambda gm, inputs: gm.forward, fullgraph=True)
    with pytest.raises(fxloom.exc.Unsupported, match="capture_scalar_outputs"):
        compiled(torch.ones(2))


def in_index(x: torch.Tensor, i: torch.Tensor) -> Any:
    x = x.clone()
    x[i, 1:] = 5
    x[..., i] += 1
    return x[..., i] * 2, x[i, None, ::2], x[[0, 1], i], x[i]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_without_axes_in_an_index(backend: str, dtype: torch.dtype) -> None:
    fxloom.reset()
    compiled = fxloom.compile(in_index, backend=backend)
    x = torch.randn(4, 4)
    for number in (0, 3, -1, -4):
        i = torch.tensor(number, dtype=dtype)
        assert same(compiled(x, i), in_index(x, i))
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 0 with size 4"):
        compiled(x, torch.tensor(4, dtype=dtype))
    counted = fxloom.stats()
    assert (counted.graphs, counted.graph_breaks, counted.compiles) == (1, 0, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_an_index_picks_is_a_view(backend: str) -> None:
    x = torch.arange(6.0)
    picked = fxloom.compile(lambda x: x[x.argmax()], backend=backend)(x)
    assert picked._base is x
    picked.add_(3)
    assert x.tolist() == [0, 1, 2, 3, 4, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_go_to_what_was_picked(backend: str) -> None:
    w = torch.randn(6, requires_grad=True)
    fxloom.compile(lambda w, i: w[i] * 2, backend=backend)(w, torch.tensor(-2)).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [0, 0, 0, 0, 2, 0]


@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
def test_a_complex_number_that_torch_takes_for_a_real_one() -> None:
    numpy = pytest.importorskip("numpy")
    x = torch.randn(4)
    for number in (numpy.complex64(1 + 2j), numpy.complex128(1 + 2j)):
        assert same(fxloom.compile(lambda x, n: x * n + 1, backend="aot_eager")(x, number), x * number + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_axes_before_a_picked_one_have_eagers_strides(backend: str) -> None:
    def program(x: torch.Tensor, i: Any) -> Any:
        return x[None, i], x[:, None, i], x[i, None], x[None, :, i, None]

    x = torch.arange(24.0).reshape(4, 6)
    for index in (torch.tensor(1), 2, 3):
        fxloom.reset()
        compiled = fxloom.compile(program, backend=backend, fullgraph=True, dynamic=True)
        assert same(compiled(x, index), program(x, index))
