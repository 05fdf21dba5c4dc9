"""Results of one graph that are computed from each other: whoever looks at one's gradient sees what comes from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_programs import Compile, leaf, raising, same

import fxloom

BACKENDS = ["aot_eager", "inductor"]


def chain(x: Tensor, w: Tensor) -> Any:
    a = x * w
    b = a.sin()
    c = (b * a * w).exp()
    return a, b, c


def hooks(compile: Compile) -> Any:
    """One changes the gradient that flows on; each runs once."""
    x, w, seen = leaf(3), leaf(3), []
    a, b, c = compile(chain)(x, w)
    a.register_hook(lambda g: seen.append(("a", g.clone())))
    b.register_hook(lambda g: g * 2)
    (c.sum() + a.square().sum()).backward()
    return seen, x.grad, w.grad


def retained(compile: Compile) -> Any:
    x, w = leaf(3), leaf(3)
    a, b, c = compile(chain)(x, w)
    a.retain_grad()
    b.retain_grad()
    c.sum().backward()
    return a.grad, b.grad, c.grad_fn is not None, x.grad, w.grad


def asked_for(compile: Compile) -> Any:
    x, w = leaf(3), leaf(3)
    a, b, c = compile(chain)(x, w)
    whole = torch.autograd.grad(c.sum(), [a, b, w], retain_graph=True)
    return whole, torch.autograd.grad(c.sum(), [b, x], retain_graph=True), torch.autograd.grad(b.sum(), a)


def apart(compile: Compile) -> Any:
    x, w = leaf(3), leaf(3)
    a, b, c = compile(chain)(x, w)
    c.sum().backward()
    try:
        a.sum().backward()
    except RuntimeError as error:
        return str(error)[:30], x.grad
    raise AssertionError("the history of `a` was freed with that of `c`")


def upwards(compile: Compile) -> Any:
    """What comes before is differentiated first, and kept for what comes after."""
    x, w = leaf(3), leaf(3)
    a, b, c = compile(chain)(x, w)
    a.sum().backward(retain_graph=True)
    first = x.grad.clone()
    c.sum().backward()
    return first, x.grad, w.grad


def loss_and_logits(compile: Compile) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 5))

    def step(x: Tensor, y: Tensor) -> Any:
        logits = model(x)
        return F.cross_entropy(logits, y), logits

    loss, logits = compile(step)(torch.randn(3, 4), torch.tensor([0, 1, 4]))
    logits.retain_grad()
    loss.backward()
    return loss, logits, logits.grad, [p.grad for p in model.parameters()]


class NoisyGradient(torch.autograd.Function):
    """Its backward pass draws random numbers, which is an effect: it belongs to the stage that differentiates it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.rand_like(gradient)


def draws_in_backward(compile: Compile) -> Any:
    """As attention on a GPU, whose backward operators torch calls random, between a cache and a loss."""
    x, w = leaf(3), leaf(3)

    def program(x: Tensor, w: Tensor) -> Any:
        cache = x * w
        state = NoisyGradient.apply(cache)
        return cache, (state * w).sum(), state

    cache, loss, state = compile(program)(x, w)
    torch.manual_seed(1)
    alone = torch.autograd.grad(cache.sum(), [x, w], retain_graph=True)
    (loss + state.sum() + cache.sum()).backward()
    return alone, x.grad is not None, w.grad is not None, state


def view_of_an_input(compile: Compile) -> Any:
    x, seen = leaf(2, 3), []

    def program(x: Tensor) -> Any:
        row = x[0]
        return row, (row * row * x[1]).sum()

    row, total = compile(program)(x)
    row.register_hook(lambda g: seen.append(g.clone()))
    return torch.autograd.grad(total, row, retain_graph=True), total.backward(), seen, x.grad


def view_of_a_result(compile: Compile) -> Any:
    x, seen = leaf(2, 3), []

    def program(x: Tensor) -> Any:
        y = x.exp()
        row = y[0]
        return y, row, (row * y[1]).sum()

    y, row, total = compile(program)(x)
    row.register_hook(lambda g: seen.append(("row", g.clone())))
    y.register_hook(lambda g: seen.append(("y", g.clone())))
    (total + y.sum() + row.sum()).backward()
    return seen, x.grad


def written_input(compile: Compile) -> Any:
    x, w, seen = leaf(3), leaf(3), []
    y = x * 1

    def program(y: Tensor, w: Tensor) -> Any:
        y.mul_(w)
        return y.sin()

    z = compile(program)(y, w)
    y.register_hook(lambda g: seen.append(g.clone()))
    grads = torch.autograd.grad(z.sum(), y, retain_graph=True)
    (z.sum() + y.sum()).backward()
    return grads, seen, x.grad, w.grad, y, z


def input_before_and_after_it_is_written(compile: Compile) -> Any:
    """The later result is made of the input as it came, and of what it became."""
    x, seen = leaf(3, 3), []
    y = x * 1

    def program(y: Tensor) -> Any:
        total = y.sum(0)
        y.mul_(0.5)
        return total.cos() + y.sum(), y

    z, y = compile(program)(y)
    y.register_hook(lambda g: seen.append(g.clone()))
    first = torch.autograd.grad(z.sum(), x, retain_graph=True)[0]
    (z.sum() + y.square().sum()).backward()
    return first, seen, x.grad


def one_operator_makes_two(compile: Compile) -> Any:
    """Of the results of one operator one is shown; the other leads past it."""
    x, seen = leaf(4, 3), []

    def program(x: Tensor) -> Any:
        values, _ = (x * 2).sort(0)
        a, b = values.split(2)
        return a, (a * b).sum()

    a, total = compile(program)(x)
    a.register_hook(lambda g: seen.append(g.clone()))
    total.backward()
    return seen, x.grad


def layers(compile: Compile) -> Any:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def program(x: Tensor) -> Any:
        hidden = [x]
        for layer in model:
            hidden.append(layer(hidden[-1]).tanh() + hidden[-1])
        return (*hidden[1:], hidden[-1].square().mean())

    x, seen = leaf(2, 4), []
    *hidden, loss = compile(program)(x)
    for number, tensor in enumerate(hidden):
        tensor.register_hook(lambda g, number=number: seen.append((number, g.clone())))  # type: ignore[misc]
    (loss + hidden[1].sum()).backward()
    return seen, x.grad, [p.grad for p in model.parameters()]


def picture(x: Tensor, w: Tensor) -> Any:
    """The loss is made of the result, and of values that come before it."""
    mean, spread = (x @ w).tanh().chunk(2, -1)
    made = (mean @ w[:2]).sigmoid()
    return made, (made * x).sum() + (mean * spread.exp()).sum()


def past_the_result(compile: Compile) -> Any:
    x, w, seen = leaf(3, 4), leaf(4, 4), []
    made, loss = compile(picture)(x, w)
    asked = [
        torch.autograd.grad(loss, [made, w], retain_graph=True),
        torch.autograd.grad(made.sum(), [x, w], retain_graph=True),
        torch.autograd.grad([loss, made], [x], [torch.tensor(2.0), torch.ones(3, 4)], retain_graph=True),
    ]
    made.retain_grad()
    made.register_hook(lambda g: seen.append(g.clone()))
    made.register_hook(lambda g: g * 2)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        made.sum().backward()
    return asked, seen, made.grad, x.grad, w.grad


def first_the_result(compile: Compile) -> Any:
    """What made it is freed, and the loss needs that."""
    x, w = leaf(3, 4), leaf(4, 4)
    made, loss = compile(picture)(x, w)
    made.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return x.grad, w.grad


def beside_what_the_loss_needs(compile: Compile) -> Any:
    """A part of an earlier stage that the loss does not go through can still be differentiated."""
    x, w = leaf(3, 4), leaf(4, 4)

    def program(x: Tensor, w: Tensor) -> Any:
        h = x.exp()
        made = (h @ w).sin()
        return made, h.cos(), h.square().sum() + w.sum(), made.sum() * 2 + h.sum()

    made, other, _, loss = compile(program)(x, w)
    torch.autograd.grad(loss, [w], retain_graph=True)
    loss.backward()
    first = x.grad.clone()
    return first, raising(lambda: other.sum().backward()), w.grad


def caches(compile: Compile) -> Any:
    """As keys and values of layers, that are given beside the logits and the loss."""
    torch.manual_seed(0)
    layers = [[leaf(4, 4) for _ in range(3)] for _ in range(3)]

    def program(x: Tensor) -> Any:
        kept = []
        for q, k, v in layers:
            n = F.layer_norm(x, (4,))
            key, value = n @ k, n @ v
            kept += [key, value]
            x = x + F.scaled_dot_product_attention((n @ q)[None], key[None], value[None])[0]
        return (*kept, x, x.square().mean())

    x, seen = leaf(5, 4), []
    *kept, logits, loss = compile(program)(x)
    asked = torch.autograd.grad(loss, [kept[1], kept[4], x], retain_graph=True)
    kept[2].register_hook(lambda g: seen.append(g.clone()))
    (loss + kept[3].sum() + logits.sum()).backward()
    return asked, seen, x.grad, [[w.grad for w in layer] for layer in layers]


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.sign() + 3 * gradient  # not linear: it has to get the whole gradient at once


def needs_the_whole_gradient(compile: Compile) -> Any:
    x, w = leaf(3, 4), leaf(4, 4)

    def program(x: Tensor, w: Tensor) -> Any:
        h = Tripled.apply(x.sin())
        made = h @ w
        return made, made.square().sum() - h.exp().sum()

    _, loss = compile(program)(x, w)
    loss.backward()
    return x.grad, w.grad


def shared_weight(compile: Compile) -> Any:
    """A leaf that is reached through the result and past it."""
    w, x, seen = leaf(3, 3), torch.randn(2, 3), []

    def program(x: Tensor, w: Tensor) -> Any:
        h = F.dropout((x @ w).relu(), 0.5)
        return h, (h @ w.t()).square().sum()

    torch.manual_seed(3)
    h, loss = compile(program)(x, w)
    h.register_hook(lambda g: seen.append(g.clone()))
    loss.backward()
    return seen, w.grad


def shared_weight_before_attention(compile: Compile) -> Any:
    """As above; the operators behind the result can't do without a gradient, so they must not be run for nothing."""
    w, x, seen = leaf(8, 8), torch.randn(1, 2, 5, 8), []

    def program(x: Tensor, w: Tensor) -> Any:
        q = x @ w
        h = F.scaled_dot_product_attention(q, q.sin(), q.cos())
        g = F.scaled_dot_product_attention(h, h @ w, h)
        return h, g, (g @ w.t()).square().sum() + (h @ w).exp().mean()

    h, g, loss = compile(program)(x, w)
    h.register_hook(lambda gradient: seen.append(gradient.clone()))
    g.register_hook(lambda gradient: gradient * 2)
    loss.backward()
    return seen, w.grad


def infinite(compile: Compile) -> Any:
    """What is not asked for is not there: no zero times infinity."""
    w = torch.tensor([0.0, 1.0], requires_grad=True)
    h, total = compile(lambda w: ((h := w.sqrt()), (h.detach() + w).sum() + h.detach().sum()))(w)
    total.backward()
    return w.grad


PROGRAMS = [
    hooks, retained, asked_for, apart, upwards, loss_and_logits, view_of_an_input, view_of_a_result, written_input,
    input_before_and_after_it_is_written,
    one_operator_makes_two, layers, shared_weight, shared_weight_before_attention, draws_in_backward,
    infinite, past_the_result, first_the_result, beside_what_the_loss_needs, caches, needs_the_whole_gradient,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Callable[[Compile], Any], backend: str) -> None:
    fxloom.reset()
    seen = []
    options = {"eager_numbers": True} if backend == "inductor" else None
    for compile in (lambda fn: fxloom.compile(fn, backend=backend, fullgraph=True, options=options), lambda fn: fn):
        torch.manual_seed(0)
        seen.append(program(compile))
    same(seen[0], seen[1], program.__name__, 1e-5)
    assert fxloom.stats().graphs == 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 + 0 / x  # NaN where it is run for nothing


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_custom_function_between_is_not_given_zeros(backend: str) -> None:
    def program(x: Tensor) -> Any:
        h = Doubled.apply(x)
        return h, (h * 3).sum() + x.sum()

    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        x = torch.ones(3, requires_grad=True)
        h, total = run(x)
        h.register_hook(torch.zeros_like)
        seen.append((torch.autograd.grad(total, h, retain_graph=True), total.backward(), x.grad))
    torch.testing.assert_close(seen[1], seen[0])


def test_each_stage_keeps_what_it_needs_and_lets_it_go() -> None:
    compiled = fxloom.compile(lambda x: ((h := x.exp().sin()), h.cos().exp().sum()), backend="aot_eager", fullgraph=True)
    x = torch.ones(1000, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or len(kept) - 1, lambda n: kept[n]):
        h, total = compiled(x)
    assert h.grad_fn.next_functions[-1][0].variable is x
    assert total.grad_fn.next_functions[-1][0] is h.grad_fn
    total.backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(x.exp().sin().cos().exp().sum(), x)[0])


WITH_CONSTANTS: dict[str, Callable[[Tensor], Any]] = {
    "factor": lambda v: v * torch.tensor([1.0, 2.0, 3.0]),
    "list of places": lambda v: v[[0, 0]],
    "targets": lambda v: torch.nn.functional.cross_entropy(v, torch.tensor([0, 1, 2])),
    "mask": lambda v: v.masked_fill(torch.tensor([True, False, True]), 0.0),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_a_result_made_of_another_and_a_constant(name: str, backend: str) -> None:
    def program(x: Tensor) -> Any:
        v = x.sin()
        return v, WITH_CONSTANTS[name](v)

    seen = []
    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        x = torch.arange(9.0).view(3, 3).requires_grad_()
        v, made = run(x)
        (v.sum() + made.sum()).backward()
        seen.append((v, made, x.grad))
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_overwritten_has_no_gradient_where_only_another_result_is_used(backend: str) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        a = x * 1
        y.copy_(a.mean().expand(y.shape))
        return a, a.sum() * 3

    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        x, leaf = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        run(x, leaf * 1)[1].backward()
        assert leaf.grad is None
        assert x.grad is not None and x.grad.tolist() == [3.0, 3.0, 3.0]
