"""`decompose(gm, table)`: rewrite an aten-dialect graph by rules, outside of aot.

In: a graph whose placeholders carry fake values; it is left alone. Out: a new graph of what the rules call. Rules run on the
fake values on the nodes, under a mode that records.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from fxloom_decomp.registry import Op, Rule
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.meta import copy_origin, get_fake, set_fake


def decompose(gm: torch.fx.GraphModule, rules: Mapping[Op, Rule]) -> torch.fx.GraphModule:
    """`gm` with every call that `rules` knows replaced by what its rule calls, again and again until none is left."""
    recorder = _Rewriter(rules)
    values: dict[torch.fx.Node, Any] = {}
    with torch.no_grad():
        for node in gm.graph.nodes:
            recorder.origin = node
            if node.op == "placeholder":
                placeholder = recorder.graph.placeholder(str(node.target))
                placeholder.meta.update(node.meta)
                values[node] = recorder.bind(get_fake(node), placeholder)
            elif node.op == "output":
                recorder.graph.output(torch.fx.node.map_arg(node.args[0], lambda used: recorder.lower(values[used])))
            else:
                args = torch.fx.node.map_arg(node.args, values.__getitem__)
                kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
                values[node] = recorder.call(node.target, args, kwargs)
    recorder.graph.eliminate_dead_code()
    return graph_module(gm, recorder.graph)


class _Rewriter(TorchDispatchMode):
    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, rules: Mapping[Op, Rule]) -> None:
        super().__init__()
        self.rules = rules
        self.graph = torch.fx.Graph()
        self.origin: torch.fx.Node | None = None
        self._nodes: dict[int, tuple[Any, torch.fx.Node]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in self.rules:
            with self:
                result = self.rules[target](*args, **kwargs)
            if result is not NotImplemented:
                return result
        value = target(*args, **kwargs)
        if target is operator.getitem and id(args[0]) not in self._nodes:
            return value  # of a tuple that a rule made
        node = self.graph.call_function(target, self.lower(args), self.lower(kwargs))
        if self.origin is not None:
            copy_origin(self.origin, node)
        return self.bind(value, node)

    def bind(self, value: Any, node: torch.fx.Node) -> Any:
        set_fake(node, value)
        self._nodes[id(value)] = (value, node)
        if isinstance(value, (tuple, list)):
            for item, part in enumerate(value):
                if isinstance(part, torch.Tensor):
                    self.bind(part, self.graph.call_function(operator.getitem, (node, item)))
        return value

    def node_of(self, value: Any) -> Any:
        known = self._nodes.get(id(value))
        return known[1] if known is not None else value

    def lower(self, nest: Any) -> Any:
        if isinstance(nest, torch.Tensor):
            return self.node_of(nest)
        if isinstance(nest, (tuple, list)):
            return type(nest)(self.lower(item) for item in nest)
        if isinstance(nest, dict):
            return {name: self.lower(value) for name, value in nest.items()}
        return nest
