"""Outputs of one compiled graph that are differentiated apart: what eager allows, with its gradients, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom
from fxloom_aot.trace_result import NoBackwardGraph

BACKENDS = ["aot_eager", "inductor"]


def three(x):
    return x.sin(), x.sqrt(), (x.exp() * 2).exp()


def with_common_part(x):
    e = x.exp()
    return e.sin(), e.cos()


def each(outputs):
    for output in outputs:
        output.sum().backward()


CASES = {
    "one after the other": (three, lambda o: each([o[0], o[2]])),
    "only one, where another's derivative is infinite": (three, lambda o: each([o[0]])),
    "together": (three, lambda o: each([o[0] + o[2]])),
    "one twice": (three, lambda o: each([o[2], o[2]])),
    "one twice, retained": (three, lambda o: (o[2].sum().backward(retain_graph=True), each([o[2], o[0]]))),
    "with a common part": (with_common_part, each),
    "with a common part, retained": (with_common_part, lambda o: (o[0].sum().backward(retain_graph=True), each([o[1]]))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_apart_as_in_eager(backend: str, name: str) -> None:
    program, differentiate = CASES[name]
    results = []
    for run in (program, fxloom.compile(program, backend=backend, fullgraph=True)):
        x = torch.zeros(3, requires_grad=True)
        try:
            differentiate(run(x))
            results.append(x.grad)
        except RuntimeError as error:
            results.append(str(error)[:40])
    if isinstance(results[0], str):
        assert results[1] == results[0]
    else:
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend: str) -> None:
    compiled = fxloom.compile(three, backend=backend, dynamic=True)
    for size in (3, 5, 7):
        x = torch.linspace(0, 1, size, requires_grad=True)
        first, _, last = compiled(x)
        first.sum().backward()
        last.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() + 2 * x.detach().exp() * (2 * x.detach().exp()).exp())


def test_what_was_written_over_is_an_error_the_second_time_too() -> None:
    compiled = fxloom.compile(lambda x, y: (x * y, (x * 2).sin() * y), backend="aot_eager")
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    first, second = compiled(x, y)
    first.sum().backward()
    y.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        second.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_values_go_when_nobody_can_need_them(backend: str) -> None:
    """A loss takes with it what the values on the way to it have in common."""

    def program(x):
        hidden = (x * 2).exp()
        return (hidden.sin() * hidden).sum(), hidden

    compiled = fxloom.compile(program, backend=backend)
    x = torch.ones(1000, requires_grad=True)
    saved: list[weakref.ref] = []

    def pack(tensor):
        saved.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    compiled(x)[0].backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, hidden = compiled(x)
    hidden = hidden.detach().clone()
    loss.backward()
    gc.collect()
    assert saved
    assert sum(ref() is not None for ref in saved) <= 1  # x itself
    assert hidden.numel() == 1000


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_was_written_over_is_no_error_where_it_is_not_needed(backend: str) -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    a, b = fxloom.compile(lambda x, y: (x * 2, y.exp()), backend=backend)(x, y)
    with torch.no_grad():
        b.add_(1)  # exp keeps its result
    a.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_subset_of_many_outputs(backend: str) -> None:
    """More than there are backward graphs for: what is not reached has no gradient, and no zero times infinity."""

    def program(a, b, c, d):
        return (a * b).sqrt(), (a * c).sqrt(), (a * d).sqrt(), (b + 1).exp()

    fxloom.reset()
    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    for subset in [*range(1, 16), *range(1, 16)]:
        seen = []
        for run in (program, compiled):
            inputs = [torch.tensor([0.0, 1.0 + n], requires_grad=True) for n in range(4)]
            outputs = run(*inputs)
            sum(outputs[n].sum() for n in range(4) if subset >> n & 1).backward()
            seen.append([x.grad for x in inputs])
        torch.testing.assert_close(seen[1], seen[0], equal_nan=True)
    assert fxloom.stats().graphs == 1


def test_leaves_that_are_not_reached_where_no_backward_graph_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def declined(*args: Any) -> Any:
        raise NoBackwardGraph("no graph")

    monkeypatch.setattr("fxloom_aot.api.compile_graph._variant", declined)
    compiled = fxloom.compile(lambda a, b: (a.sin(), b.cos(), (a * b).exp()), backend="aot_eager")
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled(a, b)[1].sum().backward()
    assert a.grad is None
    torch.testing.assert_close(b.grad, -torch.ones(3).sin())


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_axes_of_one_element(backend: str) -> None:
    """They show too: of a clone of a diagonal, of a part of a batch, of a batch of one whose channels lie innermost."""

    def program(x, images):
        diagonal = x.movedim(0, -1).tensor_split(2)[1].diagonal()
        return diagonal.clone(), x[1:2].t().clone() * 2, torch.relu(images), images.mean(1, keepdim=True)

    x = torch.randn(3, 3)
    images = torch.randn(1, 4, 5, 6).to(memory_format=torch.channels_last)
    want = program(x, images)
    got = fxloom.compile(program, backend=backend, fullgraph=True)(x, images)
    torch.testing.assert_close(got, want, check_stride=True)


def test_a_gradient_that_depends_on_no_incoming_one_is_kept() -> None:
    """That of a rounded quotient is zero, which `amax` of NaNs makes NaN; it is added to what comes by way of another output."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        return total, torch.div(total, y.log().amax(-1), rounding_mode="trunc")

    def gradients(fn: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        x, y = torch.ones(4, 3, requires_grad=True), torch.tensor([0.9, 0.04, -1.9], requires_grad=True)
        return torch.autograd.grad(sum(out.sum() for out in fn(x, y)), [x, y])

    eager = gradients(program)
    assert eager[1].isnan().all() and not eager[0].isnan().any()
    for result, expected in zip(gradients(fxloom.compile(program, fullgraph=True)), eager, strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)
