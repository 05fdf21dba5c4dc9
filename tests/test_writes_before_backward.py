"""Writes between a forward and its backward pass: gradients are eager's where eager doesn't read what is written, else its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fxloom

BACKENDS = ["aot_eager", "inductor"]


def scaled(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return torch.sigmoid(x * gain + bias)


def affine_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return F.relu((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1) * gain + bias)


def batch_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return F.relu(F.batch_norm(x, None, None, gain, bias, training=True))


def views_of_parameters(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return torch.sigmoid(x * gain.view(2, 2)[1].repeat(2) + bias.reshape(2, 2).t().reshape(4)).exp()


def products(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return F.gelu(x @ torch.outer(gain, gain + 1) + bias).tanh()


def two_results(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return (x * 2 + gain).exp(), torch.sigmoid(gain * bias + x)


def made_of_results(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    hidden = x * 2 + bias
    return hidden, (hidden + 1).exp() + gain, (hidden.sum(0) + gain).sigmoid()


def shown_logits(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    logits = x * gain + bias
    return logits, F.cross_entropy(logits, torch.arange(3))


def rolled(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return (x.roll(1, 0) + gain.expand(3, 4)).sin().exp()


def clamped(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
    return (torch.where(bias > 0, x, gain) - bias).clamp(-1, 1).exp()


PROGRAMS = [
    scaled, affine_norm, batch_norm, views_of_parameters, products, two_results, made_of_results, shown_logits, rolled, clamped,
]  # fmt: skip


def past_autograd(tensor: Tensor) -> None:
    tensor.data.add_(0.5)


def in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(0.5)


def by_optimizer(tensor: Tensor) -> None:
    if tensor.is_leaf and tensor.requires_grad:
        tensor.grad = torch.ones_like(tensor)
        torch.optim.SGD([tensor], lr=0.5).step()
        tensor.grad = None


def replaced(tensor: Tensor) -> None:
    tensor.data = tensor.detach() * 2 + 1


def inputs(trained: tuple[bool, ...]) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(3, 4), (4,), (4,)]
    made = [torch.randn(shape, generator=numbers) for shape in shapes]
    return [
        value if not needs else torch.nn.Parameter(value) if place else value.requires_grad_()
        for place, (value, needs) in enumerate(zip(made, trained, strict=True))
    ]


def gradients(run: Callable[..., Any], trained: tuple[bool, ...], place: int, write: Any, asked: int | None) -> Any:
    """Gradients after `write` to input `place`, or to result `place` - 3; those of result `asked`, or of all."""
    given = inputs(trained)
    found = run(*given)
    results = list(found) if isinstance(found, tuple) else [found]
    if write is not None:
        write([*given, *results][place])
    chosen = results if asked is None else [results[asked]]
    try:
        grads = torch.autograd.grad(
            [result for result in chosen if result.requires_grad], [value for value in given if value.requires_grad],
            [torch.ones_like(result) for result in chosen if result.requires_grad], allow_unused=True,
        )  # fmt: skip
    except RuntimeError as error:
        return str(error)[:80]
    return grads


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trained", [(True, True, True), (True, False, False), (False, True, False)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_write_between_forward_and_backward(program: Any, trained: tuple[bool, ...], backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    found = program(*inputs(trained))
    count = len(found) if isinstance(found, tuple) else 1
    for asked in [None, *range(count)] if count > 1 else [None]:
        untouched = gradients(program, trained, 0, None, asked)
        for place in range(3 + count):
            for write in (past_autograd, in_place, by_optimizer, replaced):
                theirs = gradients(program, trained, place, write, asked)
                if write in (past_autograd, replaced) and not same(theirs, untouched):
                    continue  # eager's backward pass reads what was written unseen
                ours = gradients(compiled, trained, place, write, asked)
                assert same(ours, theirs), (asked, place, write.__name__, ours, theirs)
    assert fxloom.stats().graphs == 1


def same(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    return all(
        (x is None) == (y is None) and (x is None or torch.allclose(x, y, rtol=1e-4, atol=1e-5)) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", [past_autograd, in_place])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_checkpointed_function_reads_what_its_inputs_then_are(place: int, write: Any, backend: str) -> None:
    def program(x: Tensor, gain: Tensor, bias: Tensor) -> Any:
        return checkpoint(lambda x: torch.sigmoid(x * gain + bias).exp(), x * 1, use_reentrant=False)

    fxloom.reset()
    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    theirs, ours = (gradients(run, (True, True, True), place, write, None) for run in (program, compiled))
    assert same(ours, theirs), (ours, theirs)
