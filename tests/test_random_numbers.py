"""Random numbers in compiled programs: eager's with `aot_eager` and `eager_numbers`; with `inductor` functions of seeds.

The seeds come from the default generator, one for each random operator of a graph, drawn at once; so a seed repeats a run,
and the state moves on by a known amount. A number is the same wherever it is computed: in a kernel of any target, by the
operators of `fxloom_ops.philox`, and again in a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom

X = torch.randn(33, 17, generator=torch.Generator().manual_seed(0))

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of half a type": lambda x: F.dropout(x.bfloat16(), 0.3),
    "feature dropout": lambda x: F.dropout2d(x[None, :, :, None], 0.4),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "rand": lambda x: x + torch.rand(33, 17),
    "rand in float64": lambda x: x + torch.rand(33, 17, dtype=torch.float64),
    "rand in bfloat16": lambda x: torch.rand(33, 17, dtype=torch.bfloat16) + x.bfloat16(),
    "rand_like": torch.rand_like,
    "randn": lambda x: x * torch.randn(17),
    "randn in float64": lambda x: x * torch.randn(17, dtype=torch.float64),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(-3, 12, (40,)) + x[0, 0],
    "randint_like": lambda x: torch.randint_like(x, 9),
    "random_": lambda x: torch.empty(20, dtype=torch.int64).random_(3, 10),
    "random_ to": lambda x: torch.empty(20, dtype=torch.int32).random_(7),
    "random_ of all": lambda x: torch.empty(20, dtype=torch.int16).random_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.2),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-2, 5),
    "normal_": lambda x: torch.empty_like(x).normal_(1, 3),
    "normal of tensors": lambda x: torch.normal(x, x.exp()),
    "normal of means": lambda x: torch.normal(x, 2.0),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.3),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, tau=0.5),
    "two draws": lambda x: F.dropout(F.dropout(x, 0.2).relu(), 0.5),
}

#: drawn by eager's kernels whatever the backend: how many numbers they take depends on the numbers
SEQUENTIAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "randperm": lambda x: x[torch.randperm(33)],
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 3),
    "poisson": lambda x: torch.poisson(x.exp()),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxloom.reset()


def run(program: Callable[..., Any], *args: Any, seed: int = 5) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(seed)
    result = program(*args)
    return result, torch.get_rng_state()


def same(got: Any, wanted: Any) -> None:
    # kernels round a chain of operators in half a type once
    half = isinstance(got, torch.Tensor) and got.dtype is torch.bfloat16
    torch.testing.assert_close(got, wanted, rtol=2**-7 if half else 1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", [*PROGRAMS, *SEQUENTIAL])
@pytest.mark.parametrize("options", [None, {"eager_numbers": True}], ids=["aot_eager", "eager_numbers"])
def test_eagers_numbers_and_state(name: str, options: dict[str, Any] | None) -> None:
    program = {**PROGRAMS, **SEQUENTIAL}[name]
    backend = "aot_eager" if options is None else "inductor"
    compiled = fxloom.compile(program, backend=backend, options=options, fullgraph=True)
    wanted, state = run(program, X)
    got, state_then = run(compiled, X)
    same(got, wanted)
    assert torch.equal(state_then, state)


def _fill(x: torch.Tensor) -> torch.Tensor:
    return x.uniform_()


def _fill_parts(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:].uniform_()
    y[::2].bernoulli_(0.3)
    return y


def _fill_after_transposition(x: torch.Tensor) -> Any:
    rows = x.clone()
    rows[1:] *= 2
    rows.transpose_(0, 1)
    rows.exponential_()
    return rows, rows.t() * 2


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "rows": lambda: torch.zeros(4, 6),
    "columns": lambda: torch.zeros(6, 4).t(),
    "gaps": lambda: torch.zeros(4, 12)[:, ::2],
    "gaps between rows": lambda: torch.zeros(4, 20, 6)[:, 3],
    "columns with gaps": lambda: torch.zeros(6, 8)[:, ::2].t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", [_fill, _fill_parts, _fill_after_transposition])
def test_the_order_of_memory_is_the_order_of_the_draws(program: Callable[..., Any], layout: str) -> None:
    """Whatever layout the compiled code gave to the values before."""
    for backend, options in (("aot_eager", None), ("inductor", {"eager_numbers": True})):
        torch.manual_seed(3)
        want = program(LAYOUTS[layout]())
        state = torch.get_rng_state()
        torch.manual_seed(3)
        got = fxloom.compile(program, backend=backend, options=options)(LAYOUTS[layout]())
        torch.testing.assert_close(got, want, rtol=0, atol=0, check_stride=True)
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_of_seeds(name: str) -> None:
    """The same numbers in kernels and by operators; another call gives others, the same seed the same; no eager kernel."""
    compiled = fxloom.compile(PROGRAMS[name], fullgraph=True)
    first, state = run(compiled, X)
    assert not fxloom.stats().fallbacks
    second = compiled(X)
    assert not torch.equal(first, second)
    again, _ = run(compiled, X)
    assert torch.equal(first, again)
    fxloom.reset()
    by_operators, state_then = run(fxloom.compile(PROGRAMS[name], backend="aot_eager_decomp", fullgraph=True), X)
    same(first, by_operators)
    assert torch.equal(state, state_then)


def test_state_moves_by_one_seed_for_each_random_operator() -> None:
    compiled = fxloom.compile(lambda x: F.dropout(x, 0.2) + torch.rand_like(x) + torch.randn(17), fullgraph=True)
    _, state = run(compiled, X)
    torch.manual_seed(5)
    torch.empty(3, dtype=torch.int64).random_()
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_operators_draw_eagers_numbers(name: str) -> None:
    wanted, state = run(SEQUENTIAL[name], X)
    got, state_then = run(fxloom.compile(SEQUENTIAL[name], fullgraph=True), X)
    assert torch.equal(got, wanted)
    assert torch.equal(state, state_then)
    assert not fxloom.stats().fallbacks


@pytest.mark.parametrize("budget", [1.0, 0.0], ids=["kept", "drawn again"])
def test_backward_has_the_mask_of_forward(budget: float) -> None:
    compiled = fxloom.compile(lambda x: F.dropout(x.sin(), 0.5) * 3, options={"memory_budget": budget}, fullgraph=True)
    x = torch.full((50, 50), 0.7, requires_grad=True)
    torch.manual_seed(1)
    y = compiled(x)
    kept = y != 0
    assert 1000 < kept.sum() < 1500
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(kept, 6 * torch.tensor(0.7).cos(), 0.0))


def test_draws_are_fused_into_what_uses_them() -> None:
    compiled = fxloom.compile(lambda x: (F.dropout(x.relu() * 2, 0.5) + torch.randn_like(x)).sum(-1), fullgraph=True)
    compiled(X)
    assert fxloom.stats().kernels == {"cpp": 1}


def test_checkpointed_dropout_keeps_a_seed() -> None:
    from torch.utils.checkpoint import checkpoint

    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x.sin(), 0.5).cos(), 0.5).exp()

    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    compiled = fxloom.compile(lambda x: checkpoint(block, x, use_reentrant=False), fullgraph=True)
    x = torch.randn(64, 64, requires_grad=True)
    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = compiled(x)
    assert sorted(saved) == [1, 1, 64 * 64]  # two seeds, and the input
    y.sum().backward()
    fxloom.reset()
    plain = x.detach().clone().requires_grad_()
    torch.manual_seed(3)
    z = fxloom.compile(block)(plain)
    z.sum().backward()
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(x.grad, plain.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_distribution(dtype: torch.dtype) -> None:
    compiled = fxloom.compile(lambda: (torch.rand(200_000, dtype=dtype), torch.randn(200_000, dtype=dtype)), fullgraph=True)
    torch.manual_seed(0)
    uniform, normal = (value.double() for value in compiled())
    assert 0 <= uniform.min() and uniform.max() < 1
    step = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(dtype, 0.0)
    assert abs(uniform.mean() - 0.5 + step / 2) < 0.003
    assert abs(uniform.var() - 1 / 12) < 0.001
    assert abs(normal.mean()) < 0.01
    assert abs(normal.var() - 1) < 0.01
    assert abs((normal**4).mean() - 3) < 0.08
    # neighbours are independent
    assert abs(torch.corrcoef(torch.stack([uniform[1:], uniform[:-1]]))[0, 1]) < 0.01


def test_a_generator_of_the_programs_own_is_drawn_from_in_eager() -> None:
    generator = torch.Generator()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.bernoulli(x.sigmoid(), generator=generator) + torch.rand(33, 17, generator=generator)
        return y * torch.empty_like(x).normal_(generator=generator)

    for backend in ("aot_eager", "inductor"):
        fxloom.reset()
        generator.manual_seed(7)
        wanted, state = program(X), generator.get_state()
        generator.manual_seed(7)
        got = fxloom.compile(program, backend=backend)(X)
        same(got, wanted)
        assert torch.equal(generator.get_state(), state)
        assert fxloom.stats().graph_breaks >= 1


def test_seeding_within_the_region() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        a = x + torch.rand(17)
        torch.manual_seed(11)
        return a * 0 + torch.rand(17)

    torch.manual_seed(11)
    alone = fxloom.compile(lambda x: x * 0 + torch.rand(17))(X)
    fxloom.reset()
    torch.manual_seed(2)
    assert torch.equal(fxloom.compile(program)(X), alone)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("call", [
    lambda x, p: F.dropout(x, p), lambda x, p: torch.dropout(x, p, True), lambda x, p: F.dropout(x * 1, p, inplace=True),
    lambda x, p: F.dropout(x, 1.0), lambda x, p: F.dropout(x, p, False),
])  # fmt: skip
def test_dropping_everything_draws_nothing(call: Any, dynamic: bool, backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(call, backend=backend, dynamic=dynamic or None)
    for p in (0.0, 1.0, 0.5, 1.0):
        x = torch.ones(20, requires_grad=True)
        drawn = []
        for run in (call, compiled):
            torch.manual_seed(0)
            run(x, p).sum().backward()
            drawn.append(torch.get_rng_state())
        assert torch.equal(drawn[0], drawn[1]) or (backend == "inductor" and p == 0.5)
