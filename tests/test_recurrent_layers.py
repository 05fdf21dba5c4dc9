"""LSTM, GRU and RNN layers on sequences of changing lengths: one static graph, then one for any length, with eager's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxloom

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

SIZES = ((2, 8), (3, 4), (2, 10), (4, 5), (2, 3))
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def layer(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name](4, 5, num_layers=2, bidirectional=True, **options)


def weighted(output: torch.Tensor) -> torch.Tensor:
    return (output * torch.linspace(0.0, 1.0, output.numel()).view(output.shape)).sum()


def compare(module: nn.Module, compiled: Any, x: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    results = []
    for run in (module, compiled):
        torch.manual_seed(1)
        results.append(run(x))
    (expected, last), (found, found_last) = results
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_last, last)
    assert found.stride() == expected.stride()
    gradients = [torch.autograd.grad(weighted(output), leaves) for output in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", LAYERS)
def test_any_length(name: str, backend: str, batch_first: bool, dynamic: bool | None, counters_at_zero: None) -> None:
    module = layer(name, batch_first=batch_first)
    compiled = fxloom.compile(module, backend=backend, dynamic=dynamic)
    for size in SIZES:
        x = torch.randn(*size, 4, requires_grad=True)
        compare(module, compiled, x, [x, *module.parameters()])
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1 if dynamic else 2, 0)


@pytest.mark.parametrize("name", LAYERS)
def test_an_input_without_a_gradient(name: str, counters_at_zero: None) -> None:
    module = layer(name)
    compiled = fxloom.compile(module, backend="aot_eager")
    for size in SIZES:
        compare(module, compiled, torch.randn(*size, 4), list(module.parameters()))
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (2, 0)


@pytest.mark.parametrize("name", LAYERS)
def test_dropout_between_the_layers_draws_eager_s_numbers(name: str, counters_at_zero: None) -> None:
    module = layer(name, dropout=0.4)
    compiled = fxloom.compile(module, backend="aot_eager")
    for size in SIZES:
        x = torch.randn(*size, 4, requires_grad=True)
        compare(module, compiled, x, [x, *module.parameters()])
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (2, 0)


def test_projections_and_states_that_are_given(counters_at_zero: None) -> None:
    module = nn.LSTM(4, 6, proj_size=3)
    compiled = fxloom.compile(lambda x, h, c: module(x, (h, c)), backend="aot_eager", dynamic=True)
    for steps, batch in SIZES:
        given = [torch.randn(steps, batch, 4), torch.randn(1, batch, 3), torch.randn(1, batch, 6)]
        leaves = [tensor.requires_grad_() for tensor in given]
        found, expected = compiled(*given), module(given[0], (given[1], given[2]))
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(weighted(output[0]) + output[1][1].sum(), leaves) for output in (found, expected)]
        torch.testing.assert_close(*gradients)
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1, 0)


def test_a_derivative_of_the_derivative_is_refused() -> None:
    module = nn.GRU(4, 5)
    x = torch.randn(3, 2, 4, requires_grad=True)
    output = fxloom.compile(module, backend="eager")(x)[0]
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        gradient.sum().backward()
