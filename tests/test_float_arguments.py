"""Floats of the call that change and are parameters of operators: one compilation for all, where operators can do it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

Program = Callable[[Tensor, float], Tensor]
LABELS = torch.tensor([0, 2, -100, 1])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


@torch.library.custom_op("fxloom_tests::scaled", mutates_args=())
def scaled(x: Tensor, s: float) -> Tensor:
    assert type(s) is float
    return x * s


@scaled.register_fake
def _(x: Tensor, s: float) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.s, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "s", inputs[1])
)


@torch.library.custom_op("fxloom_tests::scale_into", mutates_args={"y"})
def scale_into(x: Tensor, y: Tensor, s: float) -> None:
    y.copy_(x * s)


@scale_into.register_fake
def _(x: Tensor, y: Tensor, s: float) -> None:
    return None


@torch.library.custom_op("fxloom_tests::tenths", mutates_args=())
def tenths(x: Tensor, s: float) -> Tensor:
    return x.new_ones(round(s * 10)) * s


@tenths.register_fake
def _(x: Tensor, s: float) -> Tensor:
    return x.new_empty(round(s * 10))


def raised(x: Tensor, p: float) -> Tensor:
    x **= p
    return x


PROGRAMS: dict[str, Program] = {
    "cross_entropy": lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p),
    "cross_entropy_sum": lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p, reduction="sum"),
    "cross_entropy_none": lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p, reduction="none"),
    "cross_entropy with weights": lambda x, p: F.cross_entropy(x, LABELS, torch.tensor([0.5, 1.0, 2.0]), label_smoothing=p),
    "cross_entropy with weights, none": lambda x, p: F.cross_entropy(
        x, LABELS, torch.tensor([0.5, 1.0, 2.0]), label_smoothing=p, reduction="none"
    ),
    "cross_entropy of pixels": lambda x, p: F.cross_entropy(x.t()[None], LABELS[None], torch.tensor([0.5, 1.0, 2.0]), label_smoothing=p),
    "margin_ranking_loss": lambda x, p: F.margin_ranking_loss(x[:, 0], x[:, 1], SIGNS, margin=p),
    "hinge_embedding_loss": lambda x, p: F.hinge_embedding_loss(x[:, 0], SIGNS, margin=p),
    "triplet_margin_loss": lambda x, p: F.triplet_margin_loss(x, x * 2, x + 1, margin=p, swap=True),
    "pad": lambda x, p: F.pad(x, (1, 2), value=p) * 2,
    "nan_to_num": lambda x, p: torch.nan_to_num(x.masked_fill(x > 0.5, torch.nan) / x.masked_fill(x < 0, 0), nan=p, posinf=p),
    "isclose": lambda x, p: torch.isclose(x, x * 1.2, rtol=p).to(x.dtype) + x,
    "logit": lambda x, p: torch.logit(x.sigmoid(), eps=p),
    "logit with ends that cross": lambda x, p: torch.logit(x.sigmoid(), eps=p + 0.55),
    "cosine_similarity of short rows": lambda x, p: F.cosine_similarity(x / 20, x.flip(0).exp(), eps=p) + F.cosine_similarity(x, x * 0, eps=p),
    "instance_norm": lambda x, p: F.instance_norm(x[None], eps=p),
    "cdist": lambda x, p: torch.cdist(x, x * 2 + 1, p=p + 1),
    "pdist": lambda x, p: torch.pdist(x, p=p + 1),
    "cosine_embedding_loss": lambda x, p: F.cosine_embedding_loss(x, x + 1, SIGNS, margin=p),
    "poisson_nll_loss": lambda x, p: F.poisson_nll_loss(x.abs(), x.detach().abs(), eps=p, log_input=False),
    "pairwise_distance": lambda x, p: F.pairwise_distance(x, x * 2, eps=p),
    "in place": lambda x, p: x.sigmoid().add(0).nan_to_num_(p).mul(2),
    "celu": lambda x, p: F.celu(x * 300, p),
    "rrelu outside of training": lambda x, p: F.rrelu(x, p, p + 0.1),
    "renorm": lambda x, p: x.renorm(2, 0, p),
    "pinv": lambda x, p: torch.linalg.pinv(x, rcond=p / 100),
    "a library's operator": lambda x, p: scaled(x, p) + scaled(x, s=p * 2),
    "a library's operator that writes": lambda x, p: (scale_into(x.detach(), y := torch.empty_like(x), p), y + x)[1],
    "power": lambda x, p: x.abs() ** (p * 3) + torch.pow(x.sigmoid(), p) + x.exp().pow(-p),
    "power of a number": lambda x, p: p**x + torch.pow(p + 1, x) + torch.float_power(p, x).float(),
    "power in place": lambda x, p: (x + 5).pow_(p + 0.7),
    "power by operator in place": lambda x, p: raised(x + 5, p),
    "power of bfloat16": lambda x, p: (x.abs().bfloat16() + 0.5) ** (p + 1),
    "xlogy": lambda x, p: torch.xlogy(x, p) + torch.xlogy(p, x.exp()),
    "local_response_norm": lambda x, p: F.local_response_norm(x[None], 3, alpha=p, beta=p, k=p),
    "normalize": lambda x, p: F.normalize(x, p=p + 1.3),
    "norm": lambda x, p: torch.norm(x, p + 1.3) + torch.linalg.vector_norm(x, p + 1.55),
    "renorm by another norm": lambda x, p: torch.renorm(x, p + 1.3, 0, 1.0),
    "dist": lambda x, p: torch.dist(x, x * 2 + 1, p + 1.3),
    "normal": lambda x, p: torch.normal(0.0, p, (4, 3)) + x,
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_that_changes_is_compiled_for_once(name: str, backend: str) -> None:
    if (name, backend) == ("normal", "inductor"):
        pytest.skip("draws numbers of its own, unless told otherwise")
    if (name, backend) == ("power of bfloat16", "inductor"):
        pytest.skip("rounds less often than eager")
    f = PROGRAMS[name]
    fxloom.reset()
    compiled = fxloom.compile(f, backend=backend, fullgraph=True)
    for p in (0.1, 0.2, 0.3, 0.4, 0.15):
        torch.manual_seed(1)
        x = torch.randn(4, 3, requires_grad=True)
        torch.manual_seed(2)
        expected = f(x, p)
        torch.manual_seed(2)
        got = compiled(x, p)
        torch.testing.assert_close(got, expected, equal_nan=True)
        torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (got, expected)], equal_nan=True)
    assert fxloom.stats().compiles == 2


RANDOM: dict[str, Program] = {
    "dropout": lambda x, p: F.dropout(x, p),
    "dropout in place": lambda x, p: F.dropout(x * 1, p, inplace=True),
    "a module's dropout": lambda x, p: torch.nn.Dropout(p)(x),
    "dropout of channels": lambda x, p: F.dropout1d(x[None], p) + F.dropout2d(x[None, None], p).sum(),
    "alpha_dropout": lambda x, p: F.alpha_dropout(x, p, True),
    "feature_alpha_dropout": lambda x, p: F.feature_alpha_dropout(x[None], p, True),
    "attention": lambda x, p: F.scaled_dot_product_attention(x[None, None], x[None, None] * 2, x[None, None], dropout_p=p),
    "rrelu": lambda x, p: F.rrelu(x, p, p + 0.1, training=True),
    "bernoulli": lambda x, p: torch.bernoulli(x.detach(), p) * x,
    "bernoulli_": lambda x, p: torch.empty(3).bernoulli_(p) * x,
    "bernoulli_ in another order": lambda x, p: torch.empty(3, 4).t().bernoulli_(p) * x,
    "exponential_": lambda x, p: torch.empty(3).exponential_(p) * x,
    "geometric_": lambda x, p: torch.empty(3).geometric_(p) * x,
    "log_normal_": lambda x, p: torch.empty(3).log_normal_(p, p) * x,
    "two draws": lambda x, p: (torch.zeros(3).exponential_(p) - torch.zeros(3).exponential_(p)) * x,
    "a draw that nothing uses": lambda x, p: (torch.zeros(3).exponential_(p), x * 2)[1],
    "alpha_dropout outside of training": lambda x, p: F.alpha_dropout(x, p, False) * 2,
    "complex normal_": lambda x, p: torch.view_as_real(torch.empty(4, 3, dtype=torch.complex64).normal_(p, 2.0)).sum(-1) * x,
    "complex normal": lambda x, p: torch.normal(p, 1.0, (4, 3), dtype=torch.complex64).imag * x,
    "normal_ of halves": lambda x, p: torch.empty(4, 3, dtype=torch.float16).normal_(p, 1.3) * x,
    "normal of means": lambda x, p: torch.normal(x.detach(), p) * x,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", RANDOM)
def test_numbers_drawn_with_a_float_that_changes_are_eagers(name: str, backend: str) -> None:
    f = RANDOM[name]
    fxloom.reset()
    compiled = fxloom.compile(f, backend=backend, fullgraph=True)
    x = torch.randn(4, 3, requires_grad=True)
    for p in (0.1, 0.2, 0.3, 0.7, 0.15):
        results = []
        for run in (f, compiled):
            torch.manual_seed(2)
            made = run(x, p)
            results.append((made, torch.autograd.grad(made.sum(), x)[0], torch.rand(1)))
        torch.testing.assert_close(results[1], results[0])
    assert fxloom.stats().compiles == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("tracked", [False, True])
def test_running_statistics_of_samples_move_once(tracked: bool, backend: str) -> None:
    fxloom.reset()
    ours, eagers = (torch.nn.InstanceNorm1d(3, track_running_stats=True, affine=True).train(not tracked) for _ in range(2))
    compiled = fxloom.compile(ours, backend=backend, fullgraph=True)
    for momentum in (0.1, 0.2, 0.3, 0.45):
        x = torch.randn(2, 3, 5)
        found = []
        for module, run in ((ours, compiled), (eagers, eagers)):
            module.momentum = momentum
            given = x.clone().requires_grad_()
            made = run(given)
            made.square().sum().backward()
            found.append([made, given.grad, *module.state_dict().values(), *(p.grad for p in module.parameters())])
        torch.testing.assert_close(*found)
    assert fxloom.stats().compiles <= 2


@pytest.mark.parametrize("name", ["dropout", "bernoulli", "alpha_dropout", "native_dropout"])
def test_as_many_are_kept_in_kernels_of_our_own(name: str) -> None:
    fxloom.reset()
    program = {**RANDOM, "native_dropout": lambda x, p: torch.native_dropout(x, p, True)[0]}[name]
    compiled = fxloom.compile(program, backend="inductor", fullgraph=True)
    assert not compiled(torch.ones(200, 200), 1.0).any() or name in ("bernoulli", "alpha_dropout")
    for p in (0.1, 0.5, 0.8):
        x = torch.full((200, 200), 2.0)
        share = {value.item(): count.item() / x.numel() for value, count in zip(*compiled(x, p).unique(return_counts=True), strict=True)}
        assert len(share) == 2 and min(abs(part - p) for part in share.values()) < 0.02, share
    assert not fxloom.stats().fallbacks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
def test_the_derivative_of_a_loss_of_nan_is_nan(loss: Program, backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x, p: loss(x, torch.zeros(3), reduction="sum", **{"beta" if loss is F.smooth_l1_loss else "delta": p}), backend=backend)
    for p in (0.3, 0.4, 0.5):
        x = torch.tensor([float("nan"), 1.0, 0.1], requires_grad=True)
        (grad,) = torch.autograd.grad(compiled(x, p), x)
        assert grad.isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.0, 1.0, 2.0, 3.0, -1.0, -2.0])
def test_powers_with_ways_of_their_own(exponent: float) -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x, p: x**p, backend="aot_eager", fullgraph=True)
    for p in (0.3, 1.7, exponent, 2.6):
        x = torch.tensor([0.0, -0.0, 2.0, -2.0, float("inf"), -float("inf"), float("nan")], requires_grad=True)
        torch.testing.assert_close(compiled(x, p), x**p, equal_nan=True)
        got, expected = (torch.autograd.grad((run(x, p)).sum(), x)[0] for run in (compiled, torch.pow))
        torch.testing.assert_close(got, expected, equal_nan=True)


def test_the_ends_of_a_probability_are_compiled_for_apart() -> None:
    fxloom.reset()
    compiled = fxloom.compile(RANDOM["dropout"], backend="aot_eager", fullgraph=True)
    x = torch.ones(50)
    for p in (0.5, 0.3, 0.0, 1.0, 0.4, 0.0, 1.0, 0.2):
        torch.manual_seed(2)
        expected = F.dropout(x, p)
        torch.manual_seed(2)
        got = compiled(x, p)
        assert torch.equal(got, expected) and (got is x) == (p == 0.0)
    assert fxloom.stats().compiles == 4
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        compiled(x, 1.5)


def test_a_fake_kernel_gets_the_float_that_its_sizes_are_made_of() -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x, s: tenths(x, s) * 2, backend="aot_eager", fullgraph=True, dynamic=True)
    for s in (0.3, 0.5, 0.7, 0.4):
        torch.testing.assert_close(compiled(torch.ones(2), s), tenths(torch.ones(2), s) * 2)
    assert fxloom.stats().compiles == 1


def test_no_second_derivative_of_an_operator_that_runs_again() -> None:
    fxloom.reset()
    x = torch.rand(4, 3, requires_grad=True)
    run = fxloom.compile(lambda x, p: torch.cdist(x, x + 1, p=p), backend="eager", dynamic=True)
    (grad,) = torch.autograd.grad(run(x, 1.5).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        grad.sum().backward()


def cast(x: Tensor, p: float) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.dropout(x @ x.t(), p)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x, p: F.dropout(x.t(), p), torch.rand(4, 3)),
        (lambda x, p: F.dropout(x, p), torch.rand(2, 4, 3, 5).to(memory_format=torch.channels_last)),
        (lambda x, p: F.dropout(x[:, ::2], p), torch.rand(4, 6)),
        (cast, torch.rand(4, 3)),
    ],
    ids=["transposed", "channels_last", "gaps", "autocast"],
)
def test_numbers_are_drawn_in_the_order_of_memory(f: Program, x: Tensor, backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(f, backend=backend, fullgraph=True)
    for p in (0.1, 0.2, 0.3, 0.4):
        torch.manual_seed(3)
        expected = f(x, p)
        torch.manual_seed(3)
        got = compiled(x, p)
        assert torch.equal(got, expected) and got.stride() == expected.stride() and got.dtype == expected.dtype
    assert fxloom.stats().compiles == 2


def test_functions_that_are_transformed_call_no_scalar_overloads() -> None:
    """torch transforms no operators of others that have derivatives: such a float is compiled for."""

    def f(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
        gradient = torch.func.grad(lambda y: torch.cdist(y, y + 1, p + 1).sum())(x)
        return gradient, torch.func.vmap(lambda y: F.pairwise_distance(y, y + 1, eps=p))(x[None])

    compiled = fxloom.compile(f, backend="eager", fullgraph=True)
    for p in (0.1, 0.2, 0.3, 0.4):
        x = torch.rand(4, 3)
        torch.testing.assert_close(compiled(x, p), f(x, p))
