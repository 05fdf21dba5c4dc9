"""`torch.utils.checkpoint` inside a compiled region: one graph, gradients and random state as in eager, nothing of it kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import fxloom
from fxloom.demo.memory import kept_bytes

BACKENDS = ["eager", "aot_eager", "inductor"]
Checkpoint = Callable[..., Any]


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))


PROGRAMS: dict[str, Callable[[Checkpoint, torch.nn.Module, torch.Tensor], torch.Tensor]] = {
    "dropout inside": lambda ck, net, x: ck(net, x * 2).sin().sum(),
    "nested": lambda ck, net, x: ck(lambda a: ck(lambda b: net(b).cos(), a * 3).sin(), x * 2).sum(),
    "tuples": lambda ck, net, x: sum(t.sum() for t in ck(lambda a, b: (net(a) * b, a.exp()), x * 2, x.cos())),
    "two in a row": lambda ck, net, x: ck(net, ck(net, x * 1.0)).sum(),
    "an input without gradient": lambda ck, net, x: ck(lambda a, b: (a.sin() * b).exp(), x * 2, x.detach()).sum(),
    "its result used twice": lambda ck, net, x: (lambda y: (y.sin() * y).sum())(ck(lambda a: net(a).tanh(), x * 1.0)),
}


def train(program: Callable[[torch.Tensor], torch.Tensor], net: torch.nn.Module) -> list[Any]:
    net.zero_grad()
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    torch.manual_seed(3)
    out = program(x)
    states = [torch.get_rng_state()]
    out.backward()
    states.append(torch.get_rng_state())
    return [out.detach(), x.grad, [parameter.grad for parameter in net.parameters()], states]


def compiled(program: Callable[..., Any], backend: str, **kwargs: Any) -> Callable[..., Any]:
    options = {"eager_numbers": True} if backend == "inductor" else None
    fxloom.reset()
    return fxloom.compile(program, backend=backend, options=options, **kwargs)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_trains_as_in_eager_in_one_graph(backend: str, name: str, reentrant: bool) -> None:
    if reentrant and name == "nested":
        pytest.skip("eager warns about the inner one, so it is a break")
    net = model()

    def program(x: torch.Tensor) -> torch.Tensor:
        return PROGRAMS[name](lambda f, *args: checkpoint(f, *args, use_reentrant=reentrant), net, x)

    expected = train(program, net)
    torch.testing.assert_close(train(compiled(program, backend, fullgraph=True), net), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keywords_and_what_the_function_closes_over(backend: str) -> None:
    net = model()

    def program(x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        return checkpoint(lambda a, *, scale, shift: a.sin() * scale + shift + h, x * 3, scale=3.0, shift=x, use_reentrant=False).sum()

    expected = train(program, net)
    torch.testing.assert_close(train(compiled(program, backend, fullgraph=True), net), expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sequential(backend: str, reentrant: bool) -> None:
    net = model()

    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(net, 2, x * 1.0, use_reentrant=reentrant).sum()

    expected = train(program, net)
    torch.testing.assert_close(train(compiled(program, backend, fullgraph=True), net), expected)


def counting(x: torch.Tensor) -> torch.Tensor:
    calls: list[int] = []

    def function(a: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return a.sin().exp()

    return checkpoint(function, x * 2, use_reentrant=False).sum() * len(calls)


def without_state(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(
        lambda a: torch.nn.functional.dropout(a.sin(), 0.5).exp(), x * 2, use_reentrant=False, preserve_rng_state=False
    ).sum()


NORM = torch.nn.BatchNorm1d(4)


def normalizing(x: torch.Tensor) -> torch.Tensor:
    return (checkpoint(NORM, x * 2, use_reentrant=False) * NORM.running_mean).sum()


def asking(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda a: a.sin() * (2 if torch.is_grad_enabled() else 3), x * 2, use_reentrant=True).sum()


@pytest.mark.parametrize("program", [counting, without_state, normalizing, asking], ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_happens_twice_in_eager_is_a_break(backend: str, program: Callable[..., Any]) -> None:
    NORM.reset_running_stats()
    expected = [*train(program, NORM), NORM.running_mean.clone(), int(NORM.num_batches_tracked)]
    NORM.reset_running_stats()
    broken = compiled(program, backend)
    breaks = fxloom.stats().graph_breaks
    torch.testing.assert_close([*train(broken, NORM), NORM.running_mean.clone(), int(NORM.num_batches_tracked)], expected)
    assert fxloom.stats().graph_breaks > breaks


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_keeps_no_more_than_eager_does(backend: str) -> None:
    """Without the checkpoint the chain keeps many values."""
    net = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())])
    x = torch.randn(256, 64, requires_grad=True)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return net(x * 2).sum()

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(net, x * 2, use_reentrant=False).sum()

    fast = compiled(checkpointed, backend)
    fast(x).backward()
    kept = kept_bytes(net, lambda: fast(x))
    assert kept <= 256 * 64 * 4 + 64
    assert kept < kept_bytes(net, lambda: plain(x)) / 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_reentrant_refuses_autograd_grad_as_in_eager(backend: str) -> None:
    x = torch.ones(3, requires_grad=True)
    program = compiled(lambda x: checkpoint(torch.sin, x * 2, use_reentrant=True).sum(), backend)
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        torch.autograd.grad(program(x), x)
