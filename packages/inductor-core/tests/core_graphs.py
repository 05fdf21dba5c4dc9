"""Aten graphs for the tests, recorded below autograd from a function run on real tensors; and compiling them on the
reference interpreter, so that no compiler is needed here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import CompiledGraph, InductorOptions, compile_graph
from fxloom_interfaces import meta


class _Recorder(TorchDispatchMode):
    _should_skip_dynamo = classmethod(lambda cls: False)

    def __init__(self, graph: torch.fx.Graph) -> None:
        super().__init__()
        self.graph = graph
        self.nodes: dict[int, torch.fx.Node] = {}
        self.alive: list[Any] = []

    def bind(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)
        meta.set_fake(node, tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        spell = lambda v: self.nodes.get(id(v), v) if isinstance(v, torch.Tensor) else v  # noqa: E731
        node = self.graph.call_function(func, tree_map(spell, args), tree_map(spell, kwargs))
        meta.set_fake(node, result)
        if isinstance(result, torch.Tensor):
            self.bind(result, node)
        elif isinstance(result, (list, tuple)):
            for position, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self.bind(item, self.graph.call_function(operator.getitem, (node, position)))
        return result


def record(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The aten graph of `function`; values on the nodes are real tensors, which serve as fakes."""
    graph = torch.fx.Graph()
    recorder = _Recorder(graph)
    for position, tensor in enumerate(inputs):
        recorder.bind(tensor, graph.placeholder(f"arg_{position}"))
    with torch.no_grad(), recorder:
        result = function(*inputs)
    graph.output(tuple(recorder.nodes[id(t)] for t in tree_leaves(result)))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def compiled(function: Callable[..., Any], *inputs: torch.Tensor, options: InductorOptions | None = None) -> CompiledGraph:
    return compile_graph(record(function, *inputs), codegens={"cpu": REFERENCE}, store=None, options=options)


def check(
    function: Callable[..., Any], *inputs: torch.Tensor, options: InductorOptions | None = None, rtol: float = 1e-5
) -> CompiledGraph:
    """Compile, run, compare with eager: values, dtype, shape, strides."""
    result = compiled(function, *inputs, options=options)
    with torch.no_grad():
        expected = tree_leaves(function(*inputs))
    got = result(list(inputs))
    compare(got, expected, rtol)
    return result


def compare(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], rtol: float = 1e-5) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        if a.is_floating_point():
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, equal_nan=True)
        else:
            assert torch.equal(a, b)
