"""A sample of what `benchmarks/fuzz.py` runs at large, and the faults that it found."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmark_modules import load
from torch import Tensor

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")


@pytest.mark.filterwarnings("ignore")  # eager warns of the same
def test_a_sample_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    fuzz = load("fuzz")
    options = argparse.Namespace(backend="inductor", device="cpu", interpret=False, show=False, minimise=False)
    records = [fuzz.check_seed(str(seed), options) for seed in range(8)]
    assert [(record.seed, record.text) for record in records if record.kind not in ("equal", "left out")] == []
    assert sum(record.kind == "equal" for record in records) >= 6
    assert sum(record.kernels for record in records) > 10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_positions_of_extremes_of_halves(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.argmax(-1), x.argmin(0), x.argmax(), *x.max(1), *x.min(-1)

    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    for given in (x, torch.where(x > 1, float("nan"), x), x.round()):
        for got, expected in zip(fxloom.compile(program)(given), program(given), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert not fxloom.stats().fallbacks


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_kept_of_inputs_with_gaps_is_a_copy_without(dynamic: bool | None, backend: str) -> None:
    """A backward kernel that reads the copy as if it had the input's strides reads beyond it."""

    def program(x: Tensor) -> Tensor:
        return x.softmax(-1, dtype=torch.float64)

    run = fxloom.compile(program, dynamic=dynamic, backend=backend)
    for size in (1030, 600):
        x = torch.randn(size * 2, generator=torch.Generator().manual_seed(0))[::2].requires_grad_()
        weight = torch.linspace(-1, 1, size, dtype=torch.float64)
        got, expected = (torch.autograd.grad(fn(x), x, weight)[0] for fn in (run, program))
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dim", [0, None])
@pytest.mark.parametrize("order", [2, 3, 0.5, -1, 1, float("inf"), 0])
def test_the_norm_of_one_number_does_not_overflow(order: float, dim: int | None) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, order, dim)

    several = [torch.tensor([[3e38, -2e38, 1e-30, 0.0]])] if dim == 0 else []
    for values in (*several, torch.tensor([[-3e38]])):
        assert torch.equal(fxloom.compile(program)(values), program(values))


@pytest.mark.cpu_only("other devices' kernels keep the strides")
@pytest.mark.parametrize("dynamic", [None, True])
def test_logarithms_of_sigmoids_are_contiguous(dynamic: bool | None) -> None:
    x = torch.randn(3, 5).T
    assert fxloom.compile(lambda x: F.logsigmoid(x), dynamic=dynamic)(x).stride() == F.logsigmoid(x).stride() == (3, 1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_padding_cuts_off_has_to_be_there(backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        return F.pad(x[1:-1], (-1, 1))

    run = fxloom.compile(program, dynamic=True, backend=backend)
    for size in (33, 5, 3):
        assert torch.equal(run(torch.ones(size)), program(torch.ones(size)))
    for fn in (program, run):
        with pytest.raises(RuntimeError, match="length must be non-negative"):
            fn(torch.ones(2))


@pytest.mark.parametrize("indices", [torch.tensor(0), torch.tensor([0, 1]), torch.zeros(0, dtype=torch.int64)], ids=["0-d", "two", "none"])
@pytest.mark.parametrize("width", [0, 1, 3])
def test_gradients_of_embeddings_of_any_width(width: int, indices: Tensor) -> None:
    def program(table: Tensor) -> Tensor:
        return F.embedding(indices, table)

    table = torch.ones(2, width).requires_grad_()
    weight = torch.full((*indices.shape, width), 2.0)
    got, expected = (torch.autograd.grad(fn(table), table, weight)[0] for fn in (fxloom.compile(program), program))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dim", [0, None])
def test_elements_of_sums_are_converted_first(dim: int | None) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(dim, dtype=torch.float16), x.sum(dim, dtype=torch.int32), x.sum(dim, dtype=torch.float32)

    for x in (torch.tensor([[70000, 1], [-70000, 2], [5, 6]]), torch.tensor([[70000.0, 1.5], [-70000.0, 2.5], [5.0, -0.5]])):
        for got, expected in zip(fxloom.compile(program)(x), program(x), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)
