"""Tensors on another GPU than the current one: kernels, draws, templates and replays go where the tensors are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(autouse=True)
def current_device_stays() -> Iterator[None]:
    torch.cuda.set_device(0)
    fxloom.reset()
    yield
    assert torch.cuda.current_device() == 0
    fxloom.reset()


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: (x.sin() * 2, x + 1),
    "reduction": lambda x: x.softmax(-1).sum(0),
    "library": lambda x: F.gelu(x @ x) + x,
    "index": lambda x: x[torch.arange(4, device=x.device) % 3].cumsum(1),
    "made": lambda x: x + torch.ones(x.shape[-1], device=x.device),
    "scatter": lambda x: torch.zeros_like(x).index_add(0, torch.arange(8, device=x.device) // 2, x[:8]),
}


@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"mode": "max-autotune"}], ids=["default", "replayed", "tuned"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, options: dict[str, Any]) -> None:
    program = PROGRAMS[name]
    compiled = fxloom.compile(program, fullgraph=True, **options)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).to(device)
        for _ in range(4):
            found = compiled(x)
            torch.testing.assert_close(found, program(x))
    assert not fxloom.stats().fallbacks


def test_training() -> None:
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models = [model.to("cuda:1") for model in models]
    compiled = fxloom.compile(models[0], fullgraph=True)
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-2) for model in models]
    for step in range(4):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).to("cuda:1")
        losses = []
        for run, optimizer in zip((compiled, models[1]), optimizers, strict=True):
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(list(models[0].parameters()), list(models[1].parameters()))


def test_two_devices_in_one_graph() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        moved = (x * 2).to(y.device)
        return moved.sin() + y.exp(), (x + 1).sum(0)

    compiled = fxloom.compile(program)
    x, y = torch.randn(64, 8, device="cuda:0"), torch.randn(64, 8, device="cuda:1")
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), program(x, y))


def test_draws_are_those_of_the_tensors_device() -> None:
    compiled = fxloom.compile(lambda x: F.dropout(x, 0.5), fullgraph=True)
    x = torch.ones(10_000, device="cuda:1")
    torch.manual_seed(3)
    first = compiled(x)
    torch.manual_seed(3)
    state = torch.cuda.get_rng_state(0)
    assert torch.equal(first, compiled(x)) and not torch.equal(first, compiled(x))
    assert torch.equal(state, torch.cuda.get_rng_state(0))  # the other device draws nothing
    assert abs((first == 0).float().mean().item() - 0.5) < 0.05


def test_threads_on_devices_of_their_own() -> None:
    import threading

    compiled, failures = fxloom.compile(lambda x: (x.sin() @ x.cos()).softmax(-1)), []

    def work(device: int) -> None:
        torch.cuda.set_device(device)
        x = torch.randn(64, 64, device=f"cuda:{device}")
        expected = (x.sin() @ x.cos()).softmax(-1)
        for _ in range(20):
            if not torch.allclose(compiled(x), expected, atol=1e-5):
                failures.append(device)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
