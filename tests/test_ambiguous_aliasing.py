"""`reshape`, `contiguous` and their kind, where it is known only at run time whether they copy or give a view.

Pure uses stay in one graph. Where it shows (a write to one side, both sides seen from outside, strides of a result) the call
runs by itself: values, strides and sharing are eager's for every size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
LENGTHS = (3, 8, 1, 2, 0)
BACKENDS = ("aot_eager", "inductor")
Program = Callable[[Tensor, Tensor], Any]


def writes_the_reshaped(x: Tensor, n: Tensor) -> Tensor:
    y = x[:, : n.item()].reshape(-1)
    y.add_(1)
    return x * 1


def writes_the_contiguous(x: Tensor, n: Tensor) -> Tensor:
    y = x[:, : n.item()].contiguous()
    y.add_(1)
    return x * 1


def writes_the_transposed(x: Tensor, n: Tensor) -> Tensor:
    y = x[: n.item()].t().contiguous()
    y.add_(1)
    return x * 1


def writes_the_flattened(x: Tensor, n: Tensor) -> Tensor:
    y = x[:, : n.item()].flatten()
    y.mul_(2).add_(1)
    return x * 1


def writes_the_raveled(x: Tensor, n: Tensor) -> Tensor:
    y = x[:, : n.item()].ravel()
    y.add_(1)
    return x * 1


def writes_the_original(x: Tensor, n: Tensor) -> Tensor:
    y = x[:, : n.item()].reshape(-1)
    x.add_(1)
    return y * 1


def writes_an_intermediate(x: Tensor, n: Tensor) -> Tensor:
    z = x * 2
    y = z[:, : n.item()].reshape(-1)
    z.add_(1)
    return y * 1


def writes_the_copy_of_a_copy(x: Tensor, n: Tensor) -> Tensor:
    z = x * 2
    y = z[:, : n.item()].contiguous()[:, : n.item()].reshape(-1)
    y.add_(1)
    return z.sum()


def writes_the_second_of_two(x: Tensor, n: Tensor) -> Tensor:
    part = (x * 2)[:, : n.item()]
    first, second = part.contiguous(), part.contiguous()
    second.add_(1)
    return first * 1


def returns_what_may_be_the_input(x: Tensor, n: Tensor) -> Tensor:
    return x[:, : n.item()].reshape(-1)


def returns_both(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    return z, z[:, : n.item()].contiguous()


def returns_strides_of_the_hidden(x: Tensor, n: Tensor) -> Tensor:
    return (x * 2)[:, : n.item()].reshape(-1)


SHOWS: dict[str, Program] = {
    program.__name__: program
    for program in (
        writes_the_reshaped, writes_the_contiguous, writes_the_transposed, writes_the_flattened, writes_the_raveled,
        writes_the_original, writes_an_intermediate, writes_the_copy_of_a_copy, writes_the_second_of_two,
        returns_what_may_be_the_input, returns_both, returns_strides_of_the_hidden,
    )
}  # fmt: skip

PURE: dict[str, Program] = {
    "summed": lambda x, n: x[:, : n.item()].reshape(-1).sum(),
    "computed_with": lambda x, n: x[:, : n.item()].contiguous() * 2 + 1,
    "transposed": lambda x, n: (x[:, : n.item()].t().contiguous() * 2).relu(),
    "written_where_nothing_else_looks": lambda x, n: (x * 2)[:, : n.item()].reshape(-1).add_(1).sum(),
    "an_explicit_copy_written": lambda x, n: (x[:, : n.item()].clone().add_(1), x)[0],
    "made_before_and_dead": lambda x, n: (x[:, : n.item()].reshape(-1).sum(), x * 2),
}


def what_is_seen(program: Program, x: Tensor, n: int) -> list[Any]:
    """Values, strides and sharing of the results, and the input afterwards."""
    results = program(x, torch.tensor(n))
    flat = list(results) if isinstance(results, tuple) else [results]
    places = [x, *flat]
    same = [a.data_ptr() == b.data_ptr() for a in places for b in places if a.numel() and b.numel()]
    strides = [[step for step, extent in zip(y.stride(), y.shape, strict=True) if extent > 1] for y in flat if y.numel()]
    return [[value.tolist() for value in places], strides, same]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHOWS)
def test_where_it_shows_the_call_runs_by_itself(name: str, backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(SHOWS[name], backend=backend, options=OPTIONS)
    for length in LENGTHS:
        x, y = torch.arange(16.0).view(2, 8), torch.arange(16.0).view(2, 8)
        assert what_is_seen(compiled, y, length) == what_is_seen(SHOWS[name], x, length), length
    assert fxloom.stats().graph_breaks >= 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PURE)
def test_pure_uses_stay_in_one_graph(name: str, backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(PURE[name], backend=backend, fullgraph=True, options=OPTIONS)
    for length in LENGTHS:
        x, y = torch.arange(16.0).view(2, 8), torch.arange(16.0).view(2, 8)
        assert what_is_seen(compiled, y, length) == what_is_seen(PURE[name], x, length), length
    assert fxloom.stats().graphs == 1 and fxloom.stats().graph_breaks == 0


def of_a_length(x: Tensor, n: Tensor) -> Tensor:
    length = n.item()
    torch._check(length >= 0)
    torch._check(length < 8)
    return x[:, :length].reshape(-1)


def test_in_one_graph_by_demand_the_guess_is_checked(counters_at_zero: None) -> None:
    compiled = fxloom.compile(of_a_length, backend="aot_eager", fullgraph=True, options=OPTIONS)
    for length in (3, 2, 5):
        assert torch.equal(compiled(torch.ones(2, 8), torch.tensor(length)), torch.ones(2 * length))
    with pytest.raises(RuntimeError, match=r"n\.item\(\) != 1 does not hold"):
        compiled(torch.ones(2, 8), torch.tensor(1))  # a view of the input in eager
    assert fxloom.stats().graphs == 1


MARKED: dict[str, Callable[[Tensor], Tensor]] = {
    "reshaped": lambda x: (x.t().reshape(-1).add_(1), x * 1)[1],
    "contiguous": lambda x: (x.t().contiguous().add_(1), x * 1)[1],
    "first_column": lambda x: (x[:, :1].reshape(-1).add_(1), x * 1)[1],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MARKED)
def test_of_sizes_that_nothing_looks_at(name: str, backend: str) -> None:
    compiled = fxloom.compile(MARKED[name], backend=backend)
    for size in ((3, 4), (2, 3), (1, 5), (5, 1), (1, 1), (0, 3)):
        x, y = torch.zeros(size), torch.zeros(size)
        fxloom.mark_unbacked(y, (0, 1))
        assert torch.equal(compiled(y), MARKED[name](x)) and torch.equal(x, y), size
