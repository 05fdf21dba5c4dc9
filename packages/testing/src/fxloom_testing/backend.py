"""The contract of a backend: small torch-dialect graphs, as capture makes them, have eager's results.

In: a backend, as a fixture of the subclass. Out: tests that pass where the backend keeps the contract of `fxloom_interfaces.backend`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx


def graph_of(build: Callable[..., Any], count: int) -> torch.fx.GraphModule:
    """A graph with `count` placeholders; `build(graph, *placeholders)` returns the nodes to put out."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"arg{number}") for number in range(count)]
    graph.output(tuple(build(graph, *inputs)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def pointwise(graph: torch.fx.Graph, x: Any, y: Any) -> list[Any]:
    total = graph.call_function(operator.add, (x, y))
    return [graph.call_method("relu", (total,)), graph.call_function(torch.sum, (total,), {"dim": -1})]


def matmul(graph: torch.fx.Graph, x: Any, y: Any) -> list[Any]:
    return [graph.call_function(torch.nn.functional.gelu, (graph.call_function(torch.matmul, (x, y)),))]


def mutation(graph: torch.fx.Graph, x: Any, y: Any) -> list[Any]:
    graph.call_method("add_", (x, y))
    return [graph.call_function(operator.mul, (x, 2))]


def alias(graph: torch.fx.Graph, x: Any, y: Any) -> list[Any]:
    view = graph.call_method("view", (x, -1))
    return [view, graph.call_function(operator.add, (view, 1))]


class BackendContract:
    """What every backend does. Subclass and define the fixture `backend`."""

    @pytest.fixture
    def backend(self) -> Callable[..., Any]:
        """The backend function under test."""
        raise LookupError("define the fixture `backend` in your subclass of BackendContract")

    @pytest.mark.parametrize("build", [pointwise, matmul, mutation, alias], ids=lambda f: f.__name__)
    def test_graph_has_eagers_results(self, build: Callable[..., Any], backend: Callable[..., Any]) -> None:
        gm = graph_of(build, 2)
        inputs = [torch.randn(6, 6), torch.randn(6, 6)]
        expected_inputs = [tensor.clone() for tensor in inputs]
        with torch.no_grad():
            expected = gm.forward(*expected_inputs)
            compiled = backend(gm, [tensor.clone() for tensor in inputs])
            results = compiled(*inputs)
        assert isinstance(results, (tuple, list))
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
        for got, want in zip(inputs, expected_inputs, strict=True):
            torch.testing.assert_close(got, want)  # written to exactly as eager does
        if build is alias:
            assert results[0].untyped_storage().data_ptr() == inputs[0].untyped_storage().data_ptr()

    def test_graph_without_outputs(self, backend: Callable[..., Any]) -> None:
        compiled = backend(graph_of(lambda graph, x: [], 1), [torch.randn(3)])
        assert len(compiled(torch.randn(3))) == 0
