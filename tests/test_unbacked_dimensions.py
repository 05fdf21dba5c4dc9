"""`mark_unbacked`: one graph serves all sizes, 0 and 1 among them; what can't be so is checked at run time or named.

Programs are compiled once and run, with gradients, at ordinary sizes and at 0 and 1. An operator that has to know more takes
for granted what holds of ordinary sizes, and the graph checks that; one whose result depends on the size raises at the line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxloom
from fxloom.exc import ConstraintViolated

pytestmark = pytest.mark.filterwarnings("ignore:(var|std)\\(\\). degrees of freedom is <= 0")

MATRICES = ((4, 3), (2, 2), (7, 1), (1, 5), (1, 1), (0, 3))
SEQUENCES = ((2, 4, 8), (3, 6, 8), (1, 5, 8), (2, 1, 8), (1, 1, 8))
Program = Callable[[Tensor], Any]

torch.manual_seed(0)
ENCODER = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True)
CONVOLUTION = nn.Conv1d(8, 4, 3, padding=1)
LINEAR = nn.Linear(8, 4)


def heads(x: Tensor) -> Tensor:
    split = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
    return (split @ torch.ones(4, 4)).transpose(1, 2).reshape(x.shape[0], x.shape[1], 8) * 1


OF_MATRICES: dict[str, Program] = {
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "standard_deviation": lambda x: x.std(0),
    "variance": lambda x: x.var(0),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "index": lambda x: x[:, None, torch.arange(x.shape[1])],
    "roll": lambda x: x.roll(1, 0) * x,
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(0),
    "product": lambda x: (x.t() @ x).softmax(-1),
    "products": lambda x: x[None] @ x.t()[None],
}
OF_SEQUENCES: dict[str, Program] = {
    "linear": LINEAR,
    "convolution": lambda x: CONVOLUTION(x.transpose(1, 2)),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "attention_module": lambda x: ATTENTION(x, x, x, need_weights=False)[0],
    "encoder_layer": ENCODER,
    "heads": heads,
    "flattened": lambda x: x.permute(1, 0, 2).reshape(-1, 8) @ torch.ones(8, 8),
    "cross_entropy": lambda x: F.cross_entropy(x.view(-1, 8), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long)),
    "einsum": lambda x: torch.einsum("bsd,btd->bst", x, x),
    "products_of_heads": lambda x: x[:, None] @ x[:, None].transpose(-1, -2),
    "pad": lambda x: F.pad(x, (0, 0, 1, 1)),
    "stack": lambda x: torch.stack([x, x], 1).flatten(0, 1) * 1,
}
CASES = [(name, MATRICES) for name in OF_MATRICES] + [(name, SEQUENCES) for name in OF_SEQUENCES]


def marked(x: Tensor) -> Tensor:
    fxloom.mark_unbacked(x, (0, 1))
    return x


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("name", "sizes"), CASES, ids=[name for name, _ in CASES])
def test_one_graph_for_all_sizes(name: str, sizes: tuple[tuple[int, ...], ...], backend: str, counters_at_zero: None) -> None:
    program = (OF_MATRICES | OF_SEQUENCES)[name]
    compiled = fxloom.compile(program, backend=backend)
    dtype = torch.float64 if name in OF_MATRICES else torch.float32  # layer norm of two numbers magnifies rounding
    for size in sizes:
        x = torch.randn(size, dtype=dtype, requires_grad=True)
        expected, found = program(x), compiled(marked(x))
        torch.testing.assert_close(found, expected, equal_nan=True)
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients, equal_nan=True)
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1, 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_number_of_pieces_is_checked_when_the_graph_runs(backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x: x.chunk(2)[1] * 1, backend=backend)
    for size in ((4, 3), (3, 2), (2, 1)):
        x = torch.randn(size)
        assert torch.equal(compiled(marked(x)), x.chunk(2)[1])
    with pytest.raises(RuntimeError, match="treats sizes like 0 and 1 apart.*test_unbacked_dimensions.py"):
        compiled(marked(torch.randn(1, 3)))  # one piece in eager
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1, 0)


def test_what_depends_on_the_size_names_the_line() -> None:
    compiled = fxloom.compile(lambda x: len(x.split(1)), backend="aot_eager")
    with pytest.raises(ConstraintViolated, match=r"size\(0\) is marked dynamic.*test_unbacked_dimensions.py:\d+ in"):
        compiled(marked(torch.randn(4, 3)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("high", [None, 5])
def test_a_size_out_of_the_promised_range(high: int | None, backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x: x + 1 if x.shape[0] >= 2 else x - 1, backend=backend)

    def run(size: int) -> Tensor:
        x = torch.zeros(size)
        fxloom.mark_unbacked(x, 0, min=2, max=high)
        return compiled(x)

    assert run(4).tolist() == [1.0] * 4
    for size in (1, 0) if high is None else (1, 0, 9):
        with pytest.raises(ConstraintViolated, match=rf"size\(0\) == {size}, out of the promised range \[2, {high or 'inf'}\]"):
            run(size)
    assert run(3).tolist() == [1.0] * 3
    assert fxloom.stats().compiles == 1
