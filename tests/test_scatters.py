"""Programs that write where data says, end to end: values, gradients, writes in place, sizes that change, nothing left to eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom

Tensors = tuple[torch.Tensor, ...]


def index(high: int, *size: int) -> torch.Tensor:
    return torch.randint(0, high, size)


def normal(*size: int) -> torch.Tensor:
    return torch.randn(*size)


def weight(*size: int) -> torch.Tensor:
    return torch.randn(*size, requires_grad=True)


def write_items(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[i] = s
    x[i, 0] += 1
    return x


#: program, and its arguments for two numbers of rows, columns and indices
PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int, int, int], Tensors]]] = {
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s.sin()), lambda n, m, k: (weight(n, m), index(n, k, m), weight(k, m))),
    "scatter_add_": (lambda x, i, s: x.scatter_add_(1, i, s.sin()), lambda n, m, k: (normal(n, m), index(m, n, k), normal(n, k))),
    "index_add_ of a view": (lambda x, i, s: x[:, 1:].index_add_(0, i, s), lambda n, m, k: (normal(n, m), index(n, k), normal(k, m - 1))),
    "written items": (write_items, lambda n, m, k: (normal(n, m), torch.randperm(n)[:k], normal(k, m))),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=1), lambda n, m, k: (weight(n, m), index(n, k, 2))),
    "embedding by frequency": (
        lambda w, i: F.embedding(i, w, scale_grad_by_freq=True),
        lambda n, m, k: (weight(n, m), index(n, k, 2)),
    ),
    "bags of embeddings": (
        lambda w, i, o: F.embedding_bag(i, w, o, mode="sum") * F.embedding_bag(i, w, o, mode="mean", padding_idx=1),
        lambda n, m, k: (weight(n, m), index(n, 4 * k), torch.arange(0, 4 * k, 4)),
    ),
    "largest of bags, weights of samples": (
        lambda w, i, s: F.embedding_bag(i, w, mode="max") + F.embedding_bag(i, w, per_sample_weights=s, mode="sum"),
        lambda n, m, k: (weight(n, m), index(n, k, 3), weight(k, 3)),
    ),
    "gather": (lambda w, i: w.gather(1, i), lambda n, m, k: (weight(n, m), index(m, n, k))),
    "index": (lambda w, i: w[i] + w[:, i % 2].sum(), lambda n, m, k: (weight(n, m), index(n, k))),
    "index_select": (lambda w, i: w.index_select(1, i), lambda n, m, k: (weight(n, m), index(m, k))),
    "put": (lambda w, i, s: w.put(i, s, True), lambda n, m, k: (weight(n, m), index(n * m, k), weight(k))),
    "take": (lambda w, i: w.take(i), lambda n, m, k: (weight(n, m), index(n * m, k))),
    "scatter_reduce": (
        lambda w, i, s: w.scatter_reduce(0, i, s, "mean", include_self=False) + w.scatter_reduce(0, i, s, "amax"),
        lambda n, m, k: (weight(n, m), index(n, k, m), weight(k, m)),
    ),
    "index_fill, index_copy": (
        lambda w, i, s: w.index_fill(0, i, 2.0) + w.index_copy(0, i, s),
        lambda n, m, k: (weight(n, m), torch.randperm(n)[:k], weight(k, m)),
    ),
    "index_copy of a number": (
        lambda w, s: w.index_copy(0, torch.zeros(1, dtype=torch.int64), s) + 1,
        lambda n, m, k: (weight(1)[0].detach().requires_grad_(), weight(1)[0].detach().requires_grad_()),
    ),
    "masked_scatter": (lambda w, m, s: w.masked_scatter(m, s), lambda n, m, k: (weight(n, m), normal(n, m) > 0, weight(n * m))),
    "histogram": (
        lambda x, i: torch.zeros_like(x[:, 0], dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)),
        lambda n, m, k: (normal(n, m), index(n, 100 * k)),
    ),
}


def compare(function: Callable[..., torch.Tensor], compiled: Callable[..., torch.Tensor], inputs: Tensors) -> None:
    mine, eagers = ([t.detach().clone().requires_grad_(t.requires_grad) for t in inputs] for _ in range(2))
    got, want = compiled(*mine), function(*eagers)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    if want.requires_grad:
        factor = torch.randn_like(want)
        (got * factor).sum().backward()
        (want * factor).sum().backward()
    for a, b in zip(mine, eagers, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager_for_sizes_that_change(name: str) -> None:
    torch.manual_seed(0)
    function, make = PROGRAMS[name]
    fxloom.reset()
    compiled = fxloom.compile(function, dynamic=True, fullgraph=True)
    for sizes in ((5, 3, 4), (60, 70, 9), (500, 200, 400)):
        compare(function, compiled, make(*sizes))
    assert not fxloom.stats().fallbacks


def test_written_where_a_mask_holds() -> None:
    """How many rows these are is known in the backward pass only."""

    def function(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), rows).sin()

    fxloom.reset()
    compiled = fxloom.compile(function, fullgraph=True)
    for count in (3, 0, 5):
        compare(function, compiled, (weight(5, 4), torch.arange(5) < count, weight(4)))


def test_selected_by_a_mask_that_holds_nowhere() -> None:
    """Whose gradient reads from no elements."""

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, mask) * 2

    fxloom.reset()
    compiled = fxloom.compile(function, fullgraph=True)
    for count in (3, 0, 5):
        compare(function, compiled, (weight(5), torch.arange(5) < count))


def test_filled_with_a_value_that_is_trained() -> None:
    """Its gradient is a sum over the places, each counted once."""

    def function(x: torch.Tensor, places: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, places, value).sin()

    fxloom.reset()
    compiled = fxloom.compile(function, fullgraph=True)
    for places in ([0, 2], [1, 1], []):
        compare(function, compiled, (weight(4, 3), torch.tensor(places, dtype=torch.int64), torch.tensor(2.0, requires_grad=True)))
    assert not fxloom.stats().fallbacks


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_sums_on_the_cpu_never_vary() -> None:
    """So they are kernels where the program asks for that, too."""
    function: Any = lambda x, i, s: x.scatter_add(0, i, s)  # noqa: E731
    inputs = torch.zeros(3), index(3, 100_000), torch.randn(100_000)
    fxloom.reset()
    compiled = fxloom.compile(function)
    first = compiled(*inputs)
    assert all(torch.equal(compiled(*inputs), first) for _ in range(5))
    torch.testing.assert_close(first, function(inputs[0].double(), inputs[1], inputs[2].double()).float(), rtol=1e-4, atol=1e-3)
    assert not fxloom.stats().fallbacks


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x, i, s: x.scatter_add(0, i.unsqueeze(1), s), RuntimeError),
        (lambda x, i, s: x.gather(0, i.unsqueeze(1)), RuntimeError),
        (lambda x, i, s: x.index_add(0, i, s), RuntimeError),
        (lambda x, i, s: x[:, 0].index_add(0, i, s[:, 0]), IndexError),
        (lambda x, i, s: x.index_copy(0, i, s), IndexError),
        (lambda x, i, s: x.index_select(0, i), IndexError),
        (lambda x, i, s: x.masked_scatter(x != 0, s), RuntimeError),
    ],
)
def test_errors_are_of_eagers_type(function: Callable[..., torch.Tensor], error: type[Exception]) -> None:
    compiled = fxloom.compile(function)
    for bad in (-1, 5):
        inputs = (torch.ones(5, 3), torch.tensor([0, bad]), torch.ones(2, 3))
        for call in (function, compiled):
            with pytest.raises(error):
                call(*inputs)


def test_strides_of_one_element() -> None:
    """Which `index_put` keeps, as a copy does, and others don't."""

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Tensors:
        return x.index_put((i,), s), x.scatter(0, i, s), x.scatter_add(0, i, s), x.index_add(0, i, s), x.index_fill(0, i, 1)

    inputs = torch.zeros(4)[::4], torch.tensor([0]), torch.ones(1)
    for backend in ("inductor", "aot_eager"):
        got = fxloom.compile(function, backend=backend)(*inputs)
        assert [t.stride() for t in got] == [t.stride() for t in function(*inputs)]
