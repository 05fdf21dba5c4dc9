"""Ordinary operators on tensors whose sizes depend on values: one graph serves all sizes, of 0 and 1 too, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
Program = Callable[..., Any]


def mask(count: int) -> torch.Tensor:
    return (torch.arange(8) < count)[torch.randperm(8, generator=torch.Generator().manual_seed(count))]


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
W = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
ORDINARY, ALL = (3, 5, 2, 6), (3, 5, 2, 6, 0, 1, 8)
#: of `x[m]`, for all counts
ROWS: dict[str, Program] = {
    "manual attention": lambda x, m: (x[m] @ x[m].t()).softmax(-1) @ x[m],
    "squeeze of one column": lambda x, m: x[m][:, :1].squeeze(-1),
    "columns": lambda x, m: x.t()[:, m].sum(1),
    "product of columns": lambda x, m: x.t()[:, m] @ x[m],
    "softmax of columns": lambda x, m: x.t()[:, m].softmax(-1),
    "layer norm of columns": lambda x, m: F.layer_norm(x.t()[:, m].t(), (4,)),
    "linear": lambda x, m: F.linear(x[m], W, torch.ones(3)).relu(),
    "linear of an expanded one": lambda x, m: F.linear(x[m][None].expand(2, -1, -1), W),
    "mirrored": lambda x, m: x[m].flip(0) + x[m],
    "matrix of pairs": lambda x, m: torch.bmm(x[m][:, None], x[m][:, :, None]),
    "lower triangle": lambda x, m: (x[m] @ x[m].t()).tril(),
    "diagonal": lambda x, m: (x[m] @ x[m].t()).diagonal() * 2,
    "distances": lambda x, m: x[m][:, None] - x[m][None],
    "put back": lambda x, m: torch.zeros_like(x).index_put((m,), x[m] * 2),
    "loss of two": lambda x, m: F.mse_loss(x[m], x[m] * 2, reduction="sum"),
    "padded": lambda x, m: F.pad(x[m], (0, 0, 0, 8 - m.sum().item())),
    "repeated": lambda x, m: x.repeat_interleave(m.long() + 1, 0) * 2,
}
#: operators treat sizes 0 and 1 apart
ORDINARY_ROWS: dict[str, Program] = {
    "attention": lambda x, m: F.scaled_dot_product_attention(x[m][None], x[m][None], x[m][None]),
    "squeeze": lambda x, m: x[m].squeeze(),
    "cumsum": lambda x, m: x[m].cumsum(0),
    "std": lambda x, m: x[m].std(),
    "batch norm": lambda x, m: F.batch_norm(x[m], torch.zeros(4), torch.ones(4), training=True),
    "outer triangle": lambda x, m: torch.outer(x[m][:, 0], x[m][:, 1]).triu(1),
    "roll": lambda x, m: x[m].roll(1, 0),
    "logsumexp": lambda x, m: x[m].logsumexp(0),
    "einsum": lambda x, m: torch.einsum("ij,kj->ik", x[m], x[m]),
}
#: of no gradient
PLAIN: dict[str, tuple[Program, tuple[int, ...]]] = {
    "first row added": (lambda x, m: x[m] + x[m][:1], ALL),
    "counted": (lambda x, m: torch.ones(int(m.float().sum().item())), ALL),
    "arange": (lambda x, m: torch.arange(m.sum().item()) * 2, ALL),
    "linspace": (lambda x, m: torch.linspace(0, 1, m.sum().item()), (3, 5, 2)),
    "sequence mask": (lambda x, m: torch.arange(m.sum().item())[None] < torch.arange(8)[:, None], ALL),
    "truth value": (lambda x, m: x * m.any().item(), ALL),
    "truth value in a tensor": (lambda x, m: torch.where(torch.tensor((m.sum() > 3).item()), x, -x), ALL),
    "truth value returned": (lambda x, m: (x + 1, m.any().item()), ALL),
    "square": (lambda x, m: torch.zeros(m.sum().item() ** 2), ALL),
    "float quotient": (lambda x, m: x * (m.sum().float().item() // 2.0), ALL),
    "same places": (lambda x, m: m.nonzero().squeeze(-1) + torch.where(m)[0], ALL),
    "one number, read twice": (lambda x, m: x[: m.sum().item()] + x[8 - m.sum().item() :], ()),
}


def results(fn: Program, x: torch.Tensor, m: torch.Tensor, differentiated: bool) -> list[Any]:
    x = x.clone().requires_grad_(differentiated)
    out = fn(x, m)
    if differentiated:
        out.square().sum().backward()
    return [out, x.grad]


def same(got: Any, expected: Any) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
        if isinstance(other, torch.Tensor) and not {0, 1} & set(other.shape):
            assert one.stride() == other.stride()


CASES = [
    *[(f"{name}{' differentiated' * d}", fn, ALL, d) for name, fn in ROWS.items() for d in (False, True)],
    *[(f"{name}{' differentiated' * d}", fn, ORDINARY, d) for name, fn in ORDINARY_ROWS.items() for d in (False, True)],
    *[(name, fn, counts, False) for name, (fn, counts) in PLAIN.items()],
]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("fn", "counts", "differentiated"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_graph_serves_all_counts(fn: Program, counts: tuple[int, ...], differentiated: bool, backend: str) -> None:
    run = fxloom.compile(fn, backend=backend, fullgraph=True, options=OPTIONS)
    for count in counts:
        same(results(run, X, mask(count), differentiated), results(fn, X, mask(count), differentiated))
    assert fxloom.stats().compiles == (1 if counts else 0), fxloom.stats().recompile_reasons


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_size_that_operators_treat_apart_is_a_clear_error_in_one_graph_and_a_break_otherwise(backend: str) -> None:
    def program(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return x[m].squeeze() * 2

    run = fxloom.compile(program, backend=backend, fullgraph=True, options=OPTIONS)
    for count in (3, 0):
        same([run(X, mask(count))], [program(X, mask(count))])
    with pytest.raises(RuntimeError, match="!= 1 does not hold .*without fullgraph"):
        run(X, mask(1))
    fxloom.reset()
    run = fxloom.compile(program, backend=backend, options=OPTIONS)
    for count in ALL:
        same([run(X, mask(count))], [program(X, mask(count))])
    assert fxloom.stats().graph_breaks


def test_what_the_user_asks_is_never_taken_for_granted() -> None:
    def program(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x[m]
        return y + 1 if y.shape[0] == 1 else y - 1

    with pytest.raises(fxloom.exc.Unsupported, match="data_dependent"):
        fxloom.compile(program, backend="eager", fullgraph=True, options=OPTIONS)(X, mask(3))
    run = fxloom.compile(program, backend="eager", options=OPTIONS)
    for count in ALL:
        assert torch.equal(run(X, mask(count)), program(X, mask(count)))


def test_a_mask_that_was_written_to_counts_anew() -> None:
    def program(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = m.clone()
        before = x[m]
        m[0] = True
        m.view(2, 4)[1].fill_(False)
        return before, x[m]

    for backend in ("eager", "inductor"):
        run = fxloom.compile(program, backend=backend, fullgraph=True, options=OPTIONS)
        for count in ALL:
            same(run(X, mask(count)), program(X, mask(count)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["halved", "equal", "left"])
def test_sizes_of_inputs_that_are_asserted_to_be_numbers_out_of_tensors(name: str, backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(x.shape[0] == {"halved": 2 * k, "equal": k, "left": k + 3}[name])
        if name == "halved":
            return x.view(2, k) * 2
        return (x if name == "equal" else x[3:]) + torch.ones(k)

    run = fxloom.compile(program, backend=backend, fullgraph=True, options=OPTIONS)
    size = {"halved": lambda k: 2 * k, "equal": lambda k: k, "left": lambda k: k + 3}[name]
    for k in (3, 4, 5, 7):
        x = torch.randn(size(k))
        torch.testing.assert_close(run(x, torch.tensor(k)), program(x, torch.tensor(k)))
    assert fxloom.stats().compiles == 2
    with pytest.raises(RuntimeError):
        run(torch.randn(size(4)), torch.tensor(3))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_first_row_of_a_marked_dimension_is_broadcast(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + x[:1]

    run = fxloom.compile(program, backend=backend, fullgraph=True)
    for size in (5, 3, 1, 0, 9):
        x = torch.randn(size, 3)
        fxloom.mark_unbacked(x, 0)
        same([run(x)], [program(x)])
    assert fxloom.stats().compiles == 1


#: the program computes one thing twice; each answer has a symbol of its own
TWICE: dict[str, Program] = {
    "masked": lambda x, m: (x[x > 0].mean(), x[x > 0].numel()),
    "masked and added": lambda x, m: x[x > 0] + x[x > 0],
    "where": lambda x, m: (torch.where(x > 0)[0].float().mean(), torch.where(x > 0)[0].numel()),
    "unique": lambda x, m: (torch.unique(x).sum(), torch.unique(x).numel()),
    "float": lambda x, m: (x.round().sum().item(), x.round().sum().item() + 1, x * 2),
    "int": lambda x, m: (torch.zeros(m.sum().item()), m.sum().item() * 2),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", TWICE.values(), ids=TWICE)
def test_what_is_computed_twice_is_told_twice(fn: Program, backend: str) -> None:
    run = fxloom.compile(fn, backend=backend, fullgraph=True, options=OPTIONS)
    for count in ALL:
        torch.testing.assert_close(run(X[:count], mask(count)), fn(X[:count], mask(count)), equal_nan=True)
    assert fxloom.stats().graph_breaks == 0
