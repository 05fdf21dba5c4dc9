"""Differential harness: run a program in eager and through aot, compare everything that a program can observe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from fxloom_aot import aot_graph, eager_compiler
from fxloom_interfaces.signature import GraphSignature


@dataclass
class Compilations:
    """What the compiler was given."""

    graphs: list[tuple[torch.fx.GraphModule, GraphSignature]] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, signature: GraphSignature) -> Any:
        self.graphs.append((gm, signature))
        return eager_compiler(gm, signature)

    def ops(self, number: int = 0) -> list[str]:
        return [str(node.target) for node in self.graphs[number][0].graph.nodes if node.op == "call_function"]


def one_node_graph(fn: Callable[..., Any], count: int) -> torch.fx.GraphModule:
    """A torch-dialect graph that calls `fn` on its placeholders."""
    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"arg{number}") for number in range(count))
    graph.output(graph.call_function(fn, inputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def as_tuple(fn: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    def program(*args: Any) -> tuple[Any, ...]:
        result = fn(*args)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return program


def non_leaf(value: torch.Tensor) -> torch.Tensor:
    """A tensor with a history; its leaf is `.leaf`."""
    leaf = value.clone().requires_grad_()
    result = leaf * 1
    result.leaf = leaf
    return result


def compile_program(
    fn: Callable[..., Any], inputs: list[Any], decompositions: Mapping[Any, Any] | None = None, partitioner: Any = None
) -> tuple[Any, Compilations]:
    compiler = Compilations()
    gm = one_node_graph(as_tuple(fn), len(inputs))
    run = aot_graph(
        gm, inputs, compiler=compiler, decompositions=decompositions, partitioner=partitioner, verify_graphs=True
    )
    return run, compiler


def check(
    fn: Callable[..., Any],
    make: Callable[[], list[Any]],
    *,
    exact: bool = True,
    decompositions: Mapping[Any, Any] | None = None,
    partitioner: Any = None,
) -> Compilations:
    """Values, dtypes, sizes, strides, aliasing, mutation, requires_grad and gradients are those of eager."""
    eager_inputs, inputs = make(), make()
    expected = list(as_tuple(fn)(*eager_inputs))
    run, compiler = compile_program(fn, inputs, decompositions, partitioner)
    results = run(*inputs)
    ours, theirs = [*inputs, *results], [*eager_inputs, *expected]
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert a == b, number
            continue
        assert (a.shape, a.dtype, a.stride(), a.requires_grad) == (b.shape, b.dtype, b.stride(), b.requires_grad), number
        torch.testing.assert_close(a, b, rtol=0 if exact else None, atol=0 if exact else None, equal_nan=True)
    assert aliasing(ours) == aliasing(theirs)
    for a, b in zip(gradients(inputs, results), gradients(eager_inputs, expected), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    return compiler


def aliasing(values: list[Any]) -> list[list[bool]]:
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.numel()]
    places = [value.untyped_storage().data_ptr() for value in tensors]
    return [[a == b for a in places] for b in places]


def gradients(inputs: list[Any], outputs: list[Any]) -> list[Any]:
    differentiable = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
    leaves = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf]
    leaves += [value.leaf for value in inputs if hasattr(value, "leaf")]
    if not differentiable or not leaves:
        return []
    weights = [torch.arange(value.numel()).to(value.dtype).view(value.shape) for value in differentiable]
    weighed = [value * weight for value, weight in zip(differentiable, weights, strict=True)]
    total = sum((value.abs() if value.is_complex() else value).sum() for value in weighed)
    return list(torch.autograd.grad(total, leaves, allow_unused=True))
