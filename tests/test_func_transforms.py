"""`torch.func` inside a compiled region: one graph; values, gradients through it, strides and random state as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func
from torch.utils import _pytree as pytree

import fxloom

BACKENDS = ["eager", "aot_eager", "inductor"]


class Cosine(torch.autograd.Function):
    """Has a derivative of its own."""

    @staticmethod
    def forward(x):
        return torch.cos(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return torch.full_like(grad, 0.25)


def column_twice(x):
    y = torch.zeros_like(x)
    y[:, 1] += x[:, 0].abs()
    y[:, 1] += x[:, 0].abs() * 3
    return y.sum()


LINEAR = torch.nn.Linear(3, 2)
WEIGHTS = {name: value.detach() for name, value in LINEAR.named_parameters()}


def without_gradients(x):
    with torch.no_grad():
        return func.grad(lambda a: a.sin().sum())(x)


def partly_without(x):
    def inner(a):
        with torch.no_grad():
            rest = a.sum()
        return (a.sin() * a).sum() + rest

    return func.grad(inner)(x)


def caught(x):
    try:
        return func.grad(lambda a: a * 2)(x)
    except RuntimeError as error:
        return x * len(str(error))


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad of writes to columns": lambda x: func.grad(column_twice)(x),
    "grad of grad": lambda x: func.grad(lambda a: func.grad(lambda b: (b**3).sum())(a).sum())(x),
    "value, several arguments, aux": lambda x: func.grad_and_value(lambda a, b: ((a * b).sum(), a.cos()), argnums=(0, 1), has_aux=True)(x, x * 2),
    "custom backward": lambda x: func.grad(lambda t: Cosine.apply(t).sum())(x),
    "vmap": lambda x: func.vmap(lambda a: (a.sin() * 2).sum() + x.sum())(x),
    "vmap over chosen dims": lambda x: func.vmap(lambda a, b: a * b, in_dims=(1, None), out_dims=1)(x, 3.0),
    "gradients of samples": lambda x: func.vmap(
        func.grad(lambda p, a: func.functional_call(LINEAR, p, (a,)).square().sum()), in_dims=(None, 0)
    )(WEIGHTS, x),
    "functional call": lambda x: func.functional_call(LINEAR, WEIGHTS, (x,)),
    "jvp": lambda x: func.jvp(lambda b: b.sin() * 2, (x,), (torch.ones_like(x),)),
    "vjp": lambda x: func.vjp(lambda b: b.sin() * 2, x)[1](x)[0],
    "jacrev": lambda x: func.jacrev(lambda b: b.sin() * 2)(x),
    "jacfwd": lambda x: func.jacfwd(lambda b: b.sin() * 2)(x),
    "hessian": lambda x: func.hessian(lambda b: (b.sin() * b).sum())(x),
    "keywords": lambda x: func.grad(lambda a, *, scale: (a.sin() * scale).sum())(x, scale=x * 3),
    "gradients off outside": without_gradients,
    "gradients off inside": partly_without,
    "random numbers": lambda x: func.grad(lambda a: torch.nn.functional.dropout(a, 0.5).sum())(x),
    "closure that requires grad": lambda x: (func.grad(lambda a: (a.sin() * x).sum())(x.detach()) * x).sum(),
    "an error of the transform": caught,
}


def outcome(program: Callable[..., Any], requires_grad: bool) -> Any:
    x = (torch.arange(6.0).reshape(2, 3) - 2.5).requires_grad_(requires_grad)
    torch.manual_seed(0)
    result = program(x)
    leaves = pytree.tree_leaves(result)
    wanted = [leaf.sum() for leaf in leaves if leaf.requires_grad]
    gradient = torch.autograd.grad(wanted, [x], allow_unused=True) if wanted and requires_grad else None
    about = [(leaf.requires_grad, leaf.stride(), leaf.dtype) for leaf in leaves]
    return [result, gradient, torch.get_rng_state()], about


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_as_in_eager(backend: str, name: str, requires_grad: bool) -> None:
    program = PROGRAMS[name]
    fxloom.reset()
    options = {"eager_numbers": True} if backend == "inductor" else None
    compiled = fxloom.compile(program, backend=backend, fullgraph=name != "an error of the transform", options=options)
    mine, theirs = outcome(compiled, requires_grad), outcome(program, requires_grad)
    torch.testing.assert_close(mine[0], theirs[0])
    assert mine[1] == theirs[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_transformed_function_outlives_the_graph(backend: str) -> None:
    def program(x):
        derivative = func.grad(lambda a: (a.sin() * x).sum())
        return derivative(x), derivative

    compiled = fxloom.compile(program, backend=backend)
    x = torch.linspace(0, 1, 4)
    value, derivative = compiled(x)
    torch.testing.assert_close(value, x.cos() * x)
    torch.testing.assert_close(derivative(x * 2), (x * 2).cos() * x)


@pytest.mark.parametrize(("note", "breaks"), [(lambda a: 1, False), (lambda a: a.detach(), True)])
def test_a_function_that_does_more(note, breaks: bool) -> None:
    seen: list[object] = []

    def program(x):
        def inner(a):
            seen.append(note(a))
            return a.sin().sum()

        return func.grad(inner)(x)

    compiled = fxloom.compile(program, backend="aot_eager")
    before = fxloom.stats().graph_breaks
    x = torch.ones(3)
    for calls in (1, 2):
        torch.testing.assert_close(compiled(x), x.cos())
        assert len(seen) == calls
    assert (fxloom.stats().graph_breaks > before) == breaks


def test_the_class_of_a_class_is_its_metaclass() -> None:
    assert fxloom.compile(lambda x, cls: (x + 1, cls.__class__), backend="eager")(torch.ones(1), dict)[1] is type
