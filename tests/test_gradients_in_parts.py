"""Large backward graphs give their gradients away in parts: the same gradients, on every way of asking; less memory at the peak.

`early_gradients_nbytes=1` lets graphs of any size do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmark_modules import load
from torch import Tensor, nn

import fxloom
from fxloom_inductor_core.compile import CompiledGraph

peak_bytes = load("training").peak_bytes
PARTS = {"early_gradients_nbytes": 1}


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxloom.reset()


@pytest.fixture
def parts_seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of parts of every backward pass that came in parts."""
    seen: list[int] = []
    whole = CompiledGraph.in_parts

    def in_parts(self: CompiledGraph, inputs: list[Any]) -> Any:
        seen.append(len(self.parts))
        return whole(self, inputs)

    monkeypatch.setattr(CompiledGraph, "in_parts", in_parts)
    return seen


class Tied(nn.Module):
    """Weights used twice, a norm, an embedding and an input that requires grad."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embed(torch.arange(5)) + x
        for layer in self.layers:
            h = self.norm(F.gelu(layer(h))) + h
        return F.linear(h, self.embed.weight), h.sum(-1)


def both(ask: Callable[[Any, nn.Module, Tensor], Any]) -> tuple[Any, Any]:
    """What `ask` sees of the compiled model and of the model itself."""
    results = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = Tied()
        x = torch.randn(5, 8, requires_grad=True)
        run = fxloom.compile(model, options=PARTS, fullgraph=True) if compiled else model
        results.append((ask(run, model, x), [p.grad for p in model.parameters()], x.grad))
    return results[0], results[1]


def loss_of(outputs: tuple[Tensor, Tensor]) -> Tensor:
    return outputs[0].square().mean() + outputs[1].sin().sum()


def step(run: Any, model: nn.Module, x: Tensor) -> Tensor:
    loss = loss_of(run(x))
    loss.backward()
    return loss.detach()


def twice(run: Any, model: nn.Module, x: Tensor) -> Any:
    loss = loss_of(run(x))
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def one_output(run: Any, model: nn.Module, x: Tensor) -> None:
    outputs = run(x)
    outputs[1].sum().backward()


def some(run: Any, model: nn.Module, x: Tensor) -> Any:
    loss = loss_of(run(x))
    return torch.autograd.grad(loss, [model.layers[0].weight, x, model.layers[5].bias])


def inputs_of_backward(run: Any, model: nn.Module, x: Tensor) -> None:
    loss_of(run(x)).backward(inputs=[model.layers[3].weight])


def create_graph(run: Any, model: nn.Module, x: Tensor) -> Any:
    loss = loss_of(run(x))
    return [g.detach() for g in torch.autograd.grad(loss, list(model.parameters()), create_graph=True)]


def hooks(run: Any, model: nn.Module, x: Tensor) -> Any:
    seen: list[Tensor] = []
    model.layers[2].weight.register_hook(lambda g: g * 2)
    model.layers[4].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    loss_of(run(x)).backward()
    return seen


def history(run: Any, model: nn.Module, x: Tensor) -> None:
    loss_of(run((x * 2).sin())).backward()


def frozen(run: Any, model: nn.Module, x: Tensor) -> None:
    for layer in model.layers[:3]:
        layer.requires_grad_(False)
    loss_of(run(x.detach())).backward()


@pytest.mark.parametrize("ask", [step, twice, some, inputs_of_backward, create_graph, hooks, history, frozen], ids=lambda f: f.__name__)
def test_as_in_eager(ask: Any, parts_seen: list[int]) -> None:
    got, wanted = both(ask)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert ask is create_graph or (parts_seen and max(parts_seen) > 3)  # those that have a history are eager's


def test_gradients_of_some_outputs() -> None:
    got, wanted = both(one_output)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_peak_is_about_eagers() -> None:
    """Sixteen weights of 1 MB: all gradients at once would be 16 MB."""
    model = nn.Sequential(*[layer for _ in range(16) for layer in (nn.Linear(512, 512), nn.GELU())])
    x = torch.randn(32, 512)
    peaks = []
    for run in (fxloom.compile(model, options=PARTS), model):
        run(x).sum().backward()
        model.zero_grad(set_to_none=False)
        peaks.append(peak_bytes(lambda run=run: run(x).sum()))  # type: ignore[misc]
    assert peaks[0] < 1.2 * peaks[1]  # a part is a little more than one weight


def test_small_graphs_stay_whole(parts_seen: list[int]) -> None:
    model = Tied()
    loss_of(fxloom.compile(model)(torch.randn(5, 8))).backward()
    assert not parts_seen
