"""`torch.autograd.grad` inside a compiled region: one graph where all history was made inside, else a break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

BACKENDS = ["eager", "aot_eager", "inductor"]


def penalty(x, w):
    """A gradient penalty: differentiated again outside."""
    y = (x @ w).tanh().sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return gradient.square().sum() + y


def plain(x, w):
    y = (x @ w).tanh()
    return torch.autograd.grad(y, [x, w], torch.ones_like(y))


def of_something_made_inside(x, w):
    h = x * 2
    return torch.autograd.grad((h @ w).sin().sum(), h)[0] + h.detach()


def of_a_new_leaf(x, w):
    z = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        y = (z * z @ w.detach()).sum()
    return torch.autograd.grad(y, z)[0]


def unused(x, w):
    gradients = torch.autograd.grad(x.sin().sum(), [x, w], allow_unused=True)
    assert gradients[1] is None
    return gradients[0]


def caught(x, w):
    try:
        return torch.autograd.grad(x.sin().sum(), [w])[0]
    except RuntimeError:
        return x * 2


PROGRAMS: list[Callable[..., Any]] = [penalty, plain, of_something_made_inside, of_a_new_leaf, unused, caught]


def outcome(program: Callable[..., Any], history: bool = False) -> Any:
    x, w = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(), torch.linspace(0, 1, 6).reshape(3, 2).requires_grad_()
    result = program(x * 1 if history else x, w * 1 if history else w)
    parts = result if isinstance(result, tuple) else (result,)
    wanted = [part.sum() for part in parts if part.requires_grad]
    return result, torch.autograd.grad(wanted, [x, w], allow_unused=True) if wanted else None, [p.stride() for p in parts]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_as_in_eager(backend: str, program: Callable[..., Any]) -> None:
    fxloom.reset()
    compiled = fxloom.compile(program, backend=backend, fullgraph=program is not caught)
    mine, theirs = outcome(compiled), outcome(program)
    torch.testing.assert_close(mine[:2], theirs[:2])
    assert mine[2] == theirs[2]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_with_history_from_before(backend: str, program: Callable[..., Any]) -> None:
    fxloom.reset()
    compiled = fxloom.compile(program, backend=backend)
    mine, theirs = outcome(compiled, True), outcome(program, True)
    torch.testing.assert_close(mine[:2], theirs[:2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_it_freed_stays_freed(backend: str) -> None:
    def program(x):
        y = x.exp().sum()
        return torch.autograd.grad(y, x)[0], y

    x = torch.ones(3, requires_grad=True)
    for run in (program, fxloom.compile(program, backend=backend)):
        _, y = run(x)
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_run(backend: str) -> None:
    seen: list[int] = []
    compiled = fxloom.compile(lambda x: torch.autograd.grad(x.sin().sum(), x)[0], backend=backend)
    x = torch.ones(3, requires_grad=True)
    plainly = compiled(x)
    x.register_hook(lambda gradient: seen.append(1) or gradient * 2)
    torch.testing.assert_close(compiled(x), plainly * 2)
    assert seen == [1]


def hooked(x, w):
    h = x * 2
    y = (h @ w).sin().sum()
    h.register_hook(lambda gradient: gradient * 3)
    return y * 2


def retained(x, w):
    h = x * 2
    y = (h @ w).sin().sum()
    h.retain_grad()
    y.backward(retain_graph=True)
    return h.grad + y


@pytest.mark.parametrize("program", [hooked, retained], ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_intermediates_are_seen(backend: str, program: Callable[..., Any]) -> None:
    """The graph ends where the intermediate is made, so that what is made of it goes through it backward."""
    fxloom.reset()
    mine, theirs = outcome(fxloom.compile(program, backend=backend)), outcome(program)
    torch.testing.assert_close(mine[:2], theirs[:2])
