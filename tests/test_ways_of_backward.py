"""Ways in which a backward pass over a compiled graph is asked for, and complaints of eager's that it has to make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxloom

BACKENDS = ["aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxloom.reset()


def both(ask: Callable[[Any], Any], program: Any, backend: str) -> list[Any]:
    seen = []
    for run in (program, fxloom.compile(program, backend=backend)):
        torch.manual_seed(0)
        try:
            seen.append(ask(run))
        except RuntimeError as error:
            seen.append(str(error)[:60])
    return seen


def agree(seen: list[Any]) -> None:
    if isinstance(seen[0], str):
        assert seen[1] == seen[0]
    else:
        torch.testing.assert_close(seen[1], seen[0])


# ---- many gradients at once -----------------------------------------------------------------------------------------


def curve(x: Tensor) -> Tensor:
    return (x * x.sin()).exp()


def two(x: Tensor) -> Any:
    y = x * x.sin()
    return y, y.exp().sum() * x


def batched(run: Any) -> Any:
    x = torch.randn(3, requires_grad=True)
    return torch.autograd.grad(run(x), x, torch.randn(4, 3), is_grads_batched=True)


def batched_by_one(run: Any) -> Any:
    x = torch.randn(3, requires_grad=True)
    return torch.autograd.grad(run(x), x, torch.randn(1, 3), is_grads_batched=True)


def batched_of_two(run: Any) -> Any:
    x = torch.randn(3, requires_grad=True)
    first, second = run(x)
    some = torch.autograd.grad(second, [x, first], torch.randn(4, 3), is_grads_batched=True, retain_graph=True)
    return some, torch.autograd.grad([first, second], x, [torch.randn(2, 3), torch.randn(2, 3)], is_grads_batched=True)


def vectorized(run: Any) -> Any:
    return torch.autograd.functional.jacobian(run, torch.randn(3), vectorize=True)


def reverse(run: Any) -> Any:
    return torch.func.jacrev(run)(torch.randn(3))


def mapped(run: Any) -> Any:
    return torch.func.vmap(run)(torch.randn(4, 3))


def forward_mode(run: Any) -> Any:
    return torch.func.jacfwd(run)(torch.randn(3))


def mapped_gradient(run: Any) -> Any:
    return torch.func.vmap(torch.func.grad(lambda x: run(x).sum()))(torch.randn(4, 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "ask", [batched, batched_by_one, vectorized, reverse, mapped, forward_mode, mapped_gradient], ids=lambda ask: ask.__name__
)
def test_many_gradients_at_once(ask: Callable[[Any], Any], backend: str) -> None:
    agree(both(ask, curve, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_gradients_of_two_results(backend: str) -> None:
    agree(both(batched_of_two, two, backend))


# ---- autocast -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inside", [False, True], ids=["forward outside", "forward inside"])
def test_backward_under_autocast(inside: bool, backend: str) -> None:
    """torch asks not to; who does gets products in lower precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.randn(4, 8)
    grads = []
    for run in (model, fxloom.compile(model, backend=backend)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            loss = (run(x).float() * torch.linspace(0, 1, 8)).sum()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if inside and backend == "inductor" else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(grads[1], grads[0], **tolerance)


# ---- a second time --------------------------------------------------------------------------------------------------

ONCE: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum": lambda x: x + 1,
    "a product": lambda x: x * 2,
    "a view": lambda x: x.view(3, 1),
    "joined": lambda x: torch.cat([x, x]),
    "a mean": lambda x: x.mean(),
    "an exponential": lambda x: x.exp(),
    "negated": lambda x: 3 - x,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ONCE)
def test_a_second_time(name: str, backend: str) -> None:
    def ask(run: Any) -> Any:
        x = torch.ones(3, requires_grad=True)
        total = run(x).sum()
        total.backward()
        total.backward()
        return x.grad

    agree(both(ask, ONCE[name], backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_retained_for_one_is_retained_for_all(backend: str) -> None:
    def ask(run: Any) -> Any:
        x = torch.ones(3, requires_grad=True)
        a, b, c = run(x)
        a.sum().backward(retain_graph=True)
        c.sum().backward()
        b.sum().backward()
        return x.grad

    def program(x: Tensor) -> Any:
        e = x.exp()
        return e.sin(), e.cos(), x.tan()

    agree(both(ask, program, backend))


# ---- written since --------------------------------------------------------------------------------------------------


def cosine(x: Tensor, y: Tensor) -> Any:
    return x.cos(), y * 2


def kept_result(x: Tensor, y: Tensor) -> Any:
    return x.exp(), x.sigmoid() * y


def part_of_a_result(x: Tensor, y: Tensor) -> Any:
    z = x.tanh()
    return z[0], y * z.sum()


def written_within(x: Tensor, y: Tensor) -> Any:
    x.mul_(y)
    return x.cos(), x * 1


def not_needed(x: Tensor, y: Tensor) -> Any:
    return x + y, y.sin()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("target", ["x", "y", "first", "second"])
@pytest.mark.parametrize(
    "program", [cosine, kept_result, part_of_a_result, written_within, not_needed], ids=lambda program: program.__name__
)
def test_what_was_saved_is_written(program: Any, target: str, which: int, backend: str) -> None:
    def ask(run: Any) -> Any:
        leaf, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
        x = leaf * 1
        first, second = run(x, y)
        with torch.no_grad():
            {"x": x, "y": y, "first": first, "second": second}[target].add_(1)
        (first, second)[which].sum().backward()
        return leaf.grad

    agree(both(ask, program, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_written_within_after_it_was_saved(backend: str) -> None:
    def program(x: Tensor) -> Any:
        y = x.cos()
        x.relu_()
        return y

    def ask(run: Any) -> Any:
        leaf = torch.randn(3, requires_grad=True)
        run(leaf * 1).sum().backward()
        return leaf.grad

    agree(both(ask, program, backend))


def test_watching_holds_no_memory() -> None:
    """Eager saves its input; the graph keeps only which elements gradients pass."""
    x = torch.randn(1000, requires_grad=True)
    y = x * 1
    compiled = fxloom.compile(lambda y: y.clamp(0, 1), backend="inductor")
    compiled(y)
    z = compiled(y)
    del y
    storages = [call.untyped_storage().nbytes() for call in (watch._counter for watch in z.grad_fn.call.watches)]
    assert storages == [0]


# ---- values that a derivative looks at ------------------------------------------------------------------------------

DECOMPOSED: dict[str, Callable[[Tensor], Any]] = {
    "eigenvalues": lambda x: torch.linalg.eig(x)[0].abs().sum(),
    "lengths of eigenvectors": lambda x: torch.linalg.eig(x)[1].abs().sum(),
    "phases of eigenvectors": lambda x: torch.linalg.eig(x)[1].real.sum(),
    "phases of eigenvectors that are a result": lambda x: torch.linalg.eig(x)[1],
    "phases of singular vectors": lambda x: torch.linalg.svd(torch.complex(x, x.t() * 2))[0].real.sum(),
    "singular values": lambda x: torch.linalg.svd(torch.complex(x, x.t() * 2))[1].sum(),
    "directions of symmetric ones": lambda x: torch.linalg.eigh(x + x.t())[1].square().cos().sum(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_derivative_that_depends_on_phases_is_refused(name: str, backend: str) -> None:
    def ask(run: Any) -> Any:
        x = torch.randn(3, 3, requires_grad=True)
        run(x).real.sum().backward()
        return x.grad

    seen = both(ask, DECOMPOSED[name], backend)
    assert isinstance(seen[0], str) == name.startswith("phases")
    if isinstance(seen[0], str):
        assert seen[1] == seen[0]
    else:
        torch.testing.assert_close(seen[1], seen[0], rtol=1e-3, atol=1e-4)


# ---- what is freed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_only_one_result_needs_goes_with_its_backward_pass(backend: str) -> None:
    import gc
    import weakref

    def program(x: Tensor) -> Any:
        a, b = (x * 2).exp(), (x * 3).exp()
        return (a.sin() * a).sum(), (b.sin() * b).sum()

    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(1000, requires_grad=True)
    compiled(x)[0].backward()
    saved: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        first, second = compiled(x)
    first.backward()
    gc.collect()
    alive = sum(ref() is not None for ref in saved)
    assert alive <= 1 + (len(saved) - 1) // 2 if backend == "aot_eager" else alive <= len(saved)
    x.grad = None
    second.backward()
    wanted = torch.autograd.grad(program(x)[1], x)[0]
    torch.testing.assert_close(x.grad, wanted)
