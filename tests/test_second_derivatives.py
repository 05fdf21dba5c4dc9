"""Gradients of gradients through compiled functions: eager's values and `None`s, to any order, and eager's errors."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fxloom

BACKENDS = ["aot_eager", "inductor"]
#: of what compiles in a moment only; the others take `aot_eager`, whose way to the second derivative is the same


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxloom.reset()


def double(*shape: int, seed: int = 0, leaf: bool = True) -> Tensor:
    made = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(leaf)


def both(ask: Callable[[Any], Any], make: Callable[[], Any], backend: str) -> None:
    """`ask` sees the same of a program and of the compiled one; errors by how they begin."""
    seen = []
    for compiles in (False, True):
        program = make()
        run = fxloom.compile(program, backend=backend) if compiles else program
        try:
            seen.append(ask(run))
        except RuntimeError as error:
            seen.append(str(error)[:60])
    assert fxloom.stats().graphs
    if isinstance(seen[0], str) or isinstance(seen[1], str):
        assert seen[1] == seen[0]
        return
    theirs, ours = torch.utils._pytree.tree_leaves(seen[0]), torch.utils._pytree.tree_leaves(seen[1])
    assert [value is None for value in ours] == [value is None for value in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None:
            torch.testing.assert_close(mine, other, equal_nan=True)


# ---- programs ---------------------------------------------------------------------------------------------------------


def curve(x: Tensor, w: Tensor) -> Any:
    return torch.tanh(x @ w).sin()


def of_result(x: Tensor, w: Tensor) -> Any:
    y = (x @ w).exp()
    return y, (y * x.sum()).sum()


def several(x: Tensor, w: Tensor) -> Any:
    return x.sin() @ w, w.exp() * 2


def as_views(x: Tensor, w: Tensor) -> Any:
    y = (x * 2).exp() @ w
    return y[0], y.t()


def linear(x: Tensor, w: Tensor) -> Any:
    return x @ w * 3


def norm(x: Tensor, w: Tensor) -> Any:
    return F.gelu(F.layer_norm(x @ w, [3]))


def normal_batch(x: Tensor, w: Tensor) -> Any:
    return F.batch_norm(x @ w, None, None, training=True).softmax(-1)


def branches(x: Tensor, w: Tensor) -> Any:
    return F.relu(x @ w) * torch.where(x.sum() > 0, x.sum(), w.sum()).clamp(-1)


def checkpointed(x: Tensor, w: Tensor) -> Any:
    return checkpoint(lambda x, w: torch.tanh(x @ w).exp(), x, w, use_reentrant=False)


def in_place(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.mul_(2).tanh_()
    return y


def attention(x: Tensor, w: Tensor) -> Any:
    q, k = x @ w, x.sin() @ w
    return (q @ k.t()).softmax(-1) @ k


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def custom(x: Tensor, w: Tensor) -> Any:
    return Cube.apply(x.sin()) @ w


def hooked(x: Tensor, w: Tensor) -> Any:
    y = x * w
    y.register_hook(lambda grad: grad * 2)
    return y.sin()


def aliases(x: Tensor, w: Tensor) -> Any:
    return x, x.view(-1), (x * w).sin() * x, w.t()


def inner_derivative(x: Tensor, w: Tensor) -> Any:
    (first,) = torch.autograd.grad(torch.tanh(x @ w).sum(), x, create_graph=True)
    return first.square()


def without_grad(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        scale = x.exp()
    return (x * scale * w).sin()


def losses(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return F.mse_loss(y.sigmoid(), x.tanh()) + F.huber_loss(y, x.detach()) + F.cross_entropy(y, torch.tensor([0, 1, 2]))


def chosen(x: Tensor, w: Tensor) -> Any:
    values, places = x.topk(2)
    return (values * w.gather(1, places)).exp().sum() + x.sort().values.pow(3).sum() + w.max() ** 2


def attended(x: Tensor, w: Tensor) -> Any:
    q = (x @ w).view(1, 1, 3, 3)
    return F.scaled_dot_product_attention(q, q.sin(), x.view(1, 1, 3, 3), is_causal=True)


def writes_input(x: Tensor, w: Tensor) -> Any:
    x = x * 1
    return written_input(x, w)


def written_input(x: Tensor, w: Tensor) -> Any:
    x.mul_(w)
    return x.sin()


def written_through_a_view(x: Tensor, w: Tensor) -> Any:
    row = x[0]
    x.mul_(2)
    return row.sin() * w[0], x


def views_of_results(x: Tensor, w: Tensor) -> Any:
    y = x * w
    return y, y.exp().sum(), y.view(-1), y.t()[1:]


def written_results(x: Tensor, w: Tensor) -> Any:
    y = x * w
    before = y.exp()
    y += 1
    z = y.sin()
    z[0] = x[1]
    return y, (y * before).sum(), z, z.cos().sum(), y[0]


def filled_result(x: Tensor, w: Tensor) -> Any:
    y = torch.zeros_like(x)
    y[0] = w[0]
    y.view(-1)[3:6] = x[0]
    return y.t(), y.exp().sum(), y


def past_results(x: Tensor, w: Tensor) -> Any:
    """Later results are made of values that come before earlier ones, and are not returned."""
    h = (x @ w).sin()
    a, b = h.chunk(2, 0)
    y = (a * w[:2]).exp()
    z = y @ h.tanh()
    return y, z.cos(), (z.sum() * b).sum() + (a * y).sum()


PROGRAMS = [
    past_results, curve, of_result, several, as_views, linear, norm, normal_batch, branches, checkpointed, in_place, attention, custom, hooked, aliases,
    inner_derivative, without_grad, losses, chosen, attended, writes_input, views_of_results, written_results, filled_result,
]  # fmt: skip


def total(results: Any) -> Any:
    results = results if isinstance(results, tuple) else (results,)
    return sum((result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum() for result in results)


def inputs_of(kind: str) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves, and what the program gets."""
    x, w = double(3, 3), double(3, 3, seed=1)
    if kind == "history":  # and what is given is gone when the gradients are asked for
        return [x, w], [x * 1.5, w.sin()]
    if kind == "one":
        return [x], [x, w.detach()]
    return [x, w], [x, w]


def three_times(value: Any, ends: list[Tensor]) -> list[Tensor | None]:
    """Gradients for `ends` of `value`, of half the sum of their squares, and of the same of those."""
    seen: list[Tensor | None] = []
    for _ in range(3):
        grads = torch.autograd.grad(value, ends, create_graph=True, allow_unused=True)
        seen += [None if grad is None else grad.detach() for grad in grads]
        value = sum((grad.square() * 0.5).sum() for grad in grads if grad is not None)
    return seen


@pytest.mark.parametrize("kind", ["leaves", "history", "one"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_up_to_the_third_derivative(program: Any, backend: str, kind: str) -> None:
    def ask(run: Any) -> Any:
        leaves, given = inputs_of(kind)
        return three_times(total(run(*given)), leaves)

    both(ask, lambda: program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_nobody_keeps(backend: str) -> None:
    def ask(run: Any) -> Any:
        x, w = double(3, 3), double(3, 3, seed=1)
        loss = run(x, w)[1]
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return first.detach(), torch.autograd.grad(first.sum(), [x, w])

    both(ask, lambda: of_result, backend)


def test_what_an_earlier_stage_keeps_is_there() -> None:
    """What eager saves for the last result is made of a mask that the stage of the first one keeps."""

    def program(x: Tensor, w: Tensor) -> Any:
        h = F.dropout(x, 0.5)
        y = x * w
        y[0] = h[1]
        y.mul_(1.1)
        z = h + w.sin()
        return z, y.square().mean() + (z * w).mean()

    def ask(run: Any) -> Any:
        x, w = double(3, 3), double(3, 3, seed=1)
        torch.manual_seed(0)
        first = torch.autograd.grad(run(x, w)[1], [x, w], create_graph=True)
        return first, torch.autograd.grad(total(first), [x, w])

    both(ask, lambda: program, "aot_eager")


@pytest.mark.parametrize("number", [0, 1])
def test_one_of_several_results(number: int) -> None:
    def ask(run: Any) -> Any:
        x, w = double(3, 3), double(3, 3, seed=1)
        first = torch.autograd.grad(run(x, w)[number].sum(), [x, w], create_graph=True, allow_unused=True)
        return [
            None if grad is None else torch.autograd.grad(grad.sum(), [x, w], allow_unused=True, retain_graph=True) for grad in first
        ]

    both(ask, lambda: several, "aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [curve, of_result, as_views, lambda x, w: (x @ w).exp()])
def test_at_the_results(program: Any, backend: str) -> None:
    """Nodes save what they give: gradients of gradients come to the tensor that the caller has, its hooks, and what it is made of."""

    def ask(run: Any) -> Any:
        x, w = double(3, 3), double(3, 3, seed=1)
        results = run(x, w)
        results = results if isinstance(results, tuple) else (results,)
        seen: list[Any] = []
        results[0].register_hook(lambda grad: seen.append(grad.detach()))
        further = three_times(results[-1].square().sum(), [x, w, results[0]])
        return seen + further

    both(ask, lambda: program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [written_input, lambda x, w: (x.t_() @ w).tanh()])
def test_inputs_that_are_written(program: Any, backend: str) -> None:
    def ask(run: Any) -> Any:
        x, w = double(3, 3), double(3, 3, seed=1)
        given = x * 1
        result = run(given, w)
        value = total(result) + (given * 2).exp().sum()
        seen: list[Any] = []
        for _ in range(3):
            grads = torch.autograd.grad(value, [x, w], create_graph=True)
            seen += [grad.detach() for grad in grads]
            value = sum((grad.square() * 0.5).sum() for grad in grads)
        return seen

    both(ask, lambda: program, backend)


def test_what_is_written_under_a_view_is_refused() -> None:
    x, w = double(3, 3), double(3, 3, seed=1)
    result, _ = fxloom.compile(written_through_a_view, backend="aot_eager")(x * 1, w)
    (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    torch.testing.assert_close(first.detach()[0], 2 * (2 * x[0]).cos() * w[0])
    with pytest.raises(RuntimeError, match=r"differentiated twice.*backend='eager'"):
        first.sum().backward()


@pytest.mark.parametrize("keep", [True, False, None])
def test_what_is_freed(keep: bool | None) -> None:
    """A pass that frees leaves as much as eager's."""

    def ask(run: Any) -> Any:
        x, w = double(3), double(3, seed=1)
        (first,) = torch.autograd.grad(run(x, w).sum(), x, create_graph=True, retain_graph=keep)
        first.sum().backward(retain_graph=True)
        first.sum().backward()
        seen = [x.grad.clone(), w.grad.clone()]
        with pytest.raises(RuntimeError, match="second time"):
            first.sum().backward()
        return seen

    both(ask, lambda: lambda x, w: (x.sin() * w).exp(), "aot_eager")


@pytest.mark.parametrize("batched", [True, False])
def test_gradients_that_stand_for_many(batched: bool) -> None:
    def ask(run: Any) -> Any:
        x = double(3)
        eye = torch.eye(3, dtype=torch.float64)
        y = run(x)
        (rows,) = torch.autograd.grad(y, x, eye, create_graph=True, is_grads_batched=True)
        (second,) = torch.autograd.grad(rows[0], x, eye, is_grads_batched=batched, retain_graph=True) if batched else (None,)
        return rows.detach(), second, torch.autograd.grad(rows.square().sum(), x)

    both(ask, lambda: lambda x: x.sin() * x.exp().sum(), "aot_eager")


def test_inputs_that_are_gone() -> None:
    def ask(run: Any) -> Any:
        w, b = double(10, 3), double(3, seed=1)
        value = run(torch.cat([double(900, 5), double(900, 5, seed=2)], 1).detach(), w * 2, b)
        seen: list[Any] = []
        for _ in range(3):
            grads = torch.autograd.grad(value, [w, b], create_graph=True)
            seen += [grad.detach() for grad in grads]
            value = sum(grad.square().sum() for grad in grads)
        return seen

    both(ask, lambda: lambda x, w, b: F.softplus(x @ w + b).mean(), "aot_eager")


def gone(run: Any) -> Any:
    """The derivative of what is gone is what the graph for one derivative does not keep."""
    x, w, b = double(90, 5), double(5, 3, seed=1), double(3, seed=2)
    value = run(x.detach() * 1, w * 2, b)
    seen: list[Any] = []
    for _ in range(3):
        grads = torch.autograd.grad(value, [w, b], create_graph=True)
        seen += [grad.detach() for grad in grads]
        value = sum(grad.square().sum() for grad in grads)
    return seen


def softplus(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softplus(x @ w + b).mean()


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_all_kept_that_eager_keeps(backend: str) -> None:
    if backend == "inductor":
        with pytest.raises(RuntimeError, match=r"gone.*options=\{'double_backward': True\}"):
            gone(fxloom.compile(softplus, backend=backend))
        fxloom.reset()
    run = fxloom.compile(softplus, backend=backend, options={"double_backward": True})
    torch.testing.assert_close(gone(run), gone(softplus))
    for dynamic in (True, None):
        fxloom.reset()
        run = fxloom.compile(curve, backend=backend, options={"double_backward": True}, dynamic=dynamic)
        for rows in (3, 5, 8):
            x, w = double(rows, 3), double(3, 3, seed=1)
            ours, theirs = (
                torch.autograd.grad(torch.autograd.grad(f(x * 1, w).sum(), x, create_graph=True)[0].sum(), [x, w]) for f in (run, curve)
            )
            torch.testing.assert_close(ours, theirs)


# ---- what people do with them -----------------------------------------------------------------------------------------


def mlp(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, outputs)).double()


def grads_of(module: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_penalty(backend: str) -> None:
    def ask(run: Any) -> Any:
        x = double(5, 2)
        score = run(x)
        (slope,) = torch.autograd.grad(score, x, torch.ones_like(score), create_graph=True)
        (score.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        return x.grad, grads_of(run)

    both(ask, mlp, backend)


class Critic(nn.Module):
    """With all that draws, or counts, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm(self.first(x)), 0.2)
        x = F.dropout(F.relu(self.second(x.flatten(1)), inplace=True), 0.5, self.training)
        return self.last(x)


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_the_penalty_of_a_critic_in_training(backend: str) -> None:
    """With eager's random numbers where the backend has them, and each call with the draws and statistics that it had."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Critic().double()

    def ask(run: Any) -> Any:
        torch.manual_seed(1)
        x = double(5, 1, 4, 4)
        for _ in range(2):
            score = run(x)
            torch.rand(3)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            (score.mean() + (slope.flatten(1).norm(dim=1) - 1).square().mean()).backward()
            with torch.no_grad():
                for parameter in run.parameters():
                    parameter -= 0.01 * parameter.grad
        return x.grad, grads_of(run), [buffer.clone() for buffer in run.buffers()]

    if backend != "inductor":
        both(ask, make, backend)
        return
    grads, buffers = ask(fxloom.compile(make(), backend=backend))[1:]
    assert all(grad is not None for grad in grads) and int(buffers[2]) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_those_of_the_call(backend: str) -> None:
    run = fxloom.compile(lambda x: F.dropout(x, 0.5).pow(3), backend=backend)
    x = double(50)
    y = run(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    kept = (y != 0).double()
    torch.testing.assert_close(y, kept * (2 * x).pow(3))
    torch.testing.assert_close(first, kept * 24 * x.square())
    torch.testing.assert_close(second, kept * 48 * x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_physics_informed_net(backend: str) -> None:
    def ask(run: Any) -> Any:
        x, t = double(5, 1), double(5, 1, seed=1)
        u = run(torch.cat([x, t], 1))
        ones = torch.ones_like(u)
        u_x, u_t = torch.autograd.grad(u, [x, t], ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        (u_t + u * u_x - 0.1 * u_xx).square().mean().backward()
        return grads_of(run)

    both(ask, mlp, backend)


def test_forces_from_energies() -> None:
    def ask(run: Any) -> Any:
        positions = double(4, 2)
        energy = run(positions).sum()
        forces = -torch.autograd.grad(energy, positions, create_graph=True)[0]
        (energy.square() + forces.square().sum()).backward()
        return forces, grads_of(run)

    both(ask, mlp, "aot_eager")


def test_meta_learning() -> None:
    def ask(run: Any) -> Any:
        w, b = double(2, 1), double(1, seed=1)
        x, y = double(6, 2, seed=2, leaf=False), double(6, 1, seed=3, leaf=False)
        fast = [w, b]
        for _ in range(3):
            loss = run(x, y, *fast)
            fast = [value - 0.1 * grad for value, grad in zip(fast, torch.autograd.grad(loss, fast, create_graph=True), strict=True)]
        return torch.autograd.grad(run(x, y, *fast), [w, b])

    both(ask, lambda: lambda x, y, w, b: (torch.tanh(x @ w + b) - y).square().mean(), "aot_eager")


@pytest.mark.parametrize("vectorize", [False, True])
def test_functions_of_torch_autograd(vectorize: bool) -> None:
    def ask(run: Any) -> Any:
        functional = torch.autograd.functional
        x = double(3, leaf=False)
        v = double(3, seed=1, leaf=False)
        return [
            functional.hessian(run, x, vectorize=vectorize), functional.jacobian(run, x, vectorize=vectorize, create_graph=True).detach(),
            functional.jvp(run, x, v), functional.hvp(run, x, v), functional.vhp(run, x, v),
        ]  # fmt: skip

    both(ask, lambda: lambda x: (x.sin() * x.exp().sum()).sum(), "aot_eager")


def test_gradcheck_of_second_derivatives() -> None:
    run = fxloom.compile(curve, backend="aot_eager")
    assert torch.autograd.gradgradcheck(run, (double(3, 3), double(3, 3, seed=1)))


def test_numbers_that_change() -> None:
    run = fxloom.compile(lambda x, p: F.elu(x, alpha=p).exp() * p, backend="aot_eager")
    for p in (0.5, 0.25, 1.5, 2.5):
        x = double(5)
        (first,) = torch.autograd.grad(run(x, p).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        (theirs,) = torch.autograd.grad((F.elu(x, alpha=p).exp() * p).sum(), x, create_graph=True)
        torch.testing.assert_close(first, theirs)
        torch.testing.assert_close(second, torch.autograd.grad(theirs.sum(), x)[0])
    assert fxloom.stats().graphs < 4


def test_sizes_that_change() -> None:
    run = fxloom.compile(curve, backend="aot_eager", dynamic=True)
    for rows in (4, 7, 2):
        x, w = double(rows, 3), double(3, 3, seed=1)
        ours, theirs = (
            torch.autograd.grad(torch.autograd.grad(f(x, w).sum(), x, create_graph=True)[0].sum(), [x, w]) for f in (run, curve)
        )
        torch.testing.assert_close(ours, theirs)


def test_running_statistics_are_updated_once() -> None:
    def ask(run: Any) -> Any:
        x = double(6, 3)
        (first,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        first.square().sum().backward()
        return x.grad, run.running_mean.clone(), run.running_var.clone(), run.num_batches_tracked.clone(), run.weight.grad

    both(ask, lambda: nn.BatchNorm1d(3).double(), "aot_eager")


def test_autocast_of_the_forward_pass() -> None:
    def ask(run: Any) -> Any:
        x, w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_(), torch.eye(3).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x, w)
        (first,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
        return first.detach(), torch.autograd.grad(first.sum(), [x, w])

    both(ask, lambda: curve, "aot_eager")


# ---- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("program", [curve, lambda x, w: (x * 2 + w).exp(), lambda x, w: x * w])
def test_a_write(program: Any, when: str, place: int) -> None:
    """Before the first derivative is asked for, or between the two."""

    def ask(run: Any) -> Any:
        x, w = double(3, 3), double(3, 3, seed=1)
        y = run(x, w)
        written = [x, w, y][place]
        for now in ("before", "between"):
            if now == "between":
                first = torch.autograd.grad(y.sum(), [x, w], create_graph=True)
            if now == when:
                with torch.no_grad():
                    written.add_(1)
        return [grad.detach() for grad in first], torch.autograd.grad(sum(grad.square().sum() for grad in first), [x, w])

    both(ask, lambda: program, "aot_eager")


@pytest.mark.parametrize("place", ["bias", "weight", "input"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_that_autograd_does_not_count(backend: str, place: str) -> None:
    """What eager saved as a tensor of its own it doesn't read again: the value that was, or an error, never the new one."""
    program = lambda x, w, b: torch.where(x @ w + b > 0, (x @ w + b).exp(), (x @ w + b) * 0.1).sum()  # noqa: E731

    def ask(run: Any, writes: bool) -> Any:
        x, w, b = double(3, 3), double(3, 3, seed=1), double(3, seed=2)
        y = run(x, w, b)
        if writes:
            {"bias": b, "weight": w, "input": x}[place].data.mul_(-1.5)
        first = torch.autograd.grad(y, [x, w, b], create_graph=True)
        return [grad.detach() for grad in first], torch.autograd.grad(sum(grad.square().sum() for grad in first), [x, w, b])

    torch.testing.assert_close(ask(fxloom.compile(program, backend=backend), False), ask(program, False))
    try:
        mine = ask(fxloom.compile(program, backend=backend), True)
    except RuntimeError as error:
        assert "differentiated twice" in str(error)
    else:
        torch.testing.assert_close(mine, ask(program, True))


# ---- costs ------------------------------------------------------------------------------------------------------------


def test_nothing_more_is_kept_for_it() -> None:
    run = fxloom.compile(lambda x: x.tanh() * 2, backend="aot_eager")
    kept = []
    x = torch.randn(5000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):  # type: ignore[func-returns-value]
        with contextlib.suppress(Exception):
            y = run(x.add(1))
    assert sum(kept) == 5000
    storages = {y.untyped_storage().data_ptr()}
    assert y.grad_fn is not None and len(storages) == 1


@pytest.mark.parametrize("program", [curve, of_result])
def test_nothing_outlives_the_derivatives(program: Any) -> None:
    """Graphs of autograd that hold themselves by way of Python are found by no collector."""
    run = fxloom.compile(program, backend="aot_eager")
    counts = []
    for _ in range(3):
        x, w = double(3, 3), double(3, 3, seed=1)
        value = total(run(x * 1, w * 2))
        for _ in range(3):
            grads = torch.autograd.grad(value, [x, w], create_graph=True)
            value = sum(grad.square().sum() for grad in grads)
        value.backward()
        del x, w, value, grads
        gc.collect()
        counts.append(sum(type(one).__name__ in ("StageCall", "_InnerGraph", "Recording", "PackedTensor", "FakeTensor") for one in gc.get_objects()))
    assert counts[1] == counts[2]
