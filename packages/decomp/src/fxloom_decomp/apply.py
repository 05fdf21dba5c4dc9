"""`decompose(gm, table)`: rewrite an aten-dialect graph by rules, outside of aot.

In: a graph whose placeholders carry fake values; it is left alone. Out: a new graph of what the rules call, operators or prims. Rules
run on the fake values on the nodes, under a mode that records. Invariant: a result shares its memory with no operand, unless the
operator's own results do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from fxloom_decomp.registry import Op, Rule
from fxloom_decomp.size_nodes import SYMBOLIC, SizeNodes
from fxloom_interfaces.dialects.prims_dialect import meta_of
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.meta import copy_origin, get_fake, has_fake, set_fake
from fxloom_interfaces.prims import Meta, Prim, p, recording

#: (node of the graph that is rewritten, what is called, fakes of operands and results) -> None; raises where that may not be
Left = Callable[[torch.fx.Node, Any, list[Any]], None]


def decompose(gm: torch.fx.GraphModule, rules: Mapping[Op, Rule]) -> torch.fx.GraphModule:
    """`gm` with every call that `rules` knows replaced by what its rule calls, again and again until none is left.

    Rules of the set "prims" go with `lower_to_prims`, which also holds what is left to the list of calls.
    """
    return Rewriter(rules, _some_tensor(gm)).rewrite(gm)


def rewrite(gm: torch.fx.GraphModule, rules: Mapping[Op, Rule], left: Left) -> torch.fx.GraphModule:
    """As `decompose`. left: asked about each call that no rule takes, with the node that it comes from and fakes of its values."""
    return Rewriter(rules, _some_tensor(gm), left).rewrite(gm)


def _some_tensor(gm: torch.fx.GraphModule) -> torch.Tensor | None:
    """A fake of the graph's, from which new ones are made."""
    for node in gm.graph.nodes:
        for value in _flat(get_fake(node)) if has_fake(node) else ():
            if isinstance(value, torch.Tensor):
                return value
    return None


class Rewriter(TorchDispatchMode):
    _should_skip_dynamo: ClassVar[Any] = classmethod(lambda cls: False)

    def __init__(self, rules: Mapping[Op, Rule], some: torch.Tensor | None, left: Left | None = None) -> None:
        super().__init__()
        self.rules = rules
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.origin: torch.fx.Node | None = None
        self.numbers = SizeNodes(self.graph)
        self._some = some
        self._left = left
        self._listening = True
        self._nodes: dict[int, tuple[Any, torch.fx.Node]] = {}

    def rewrite(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        values: dict[torch.fx.Node, Any] = {}
        with torch.no_grad(), recording(self):
            for node in gm.graph.nodes:
                self.origin = node
                args = torch.fx.node.map_arg(node.args, values.__getitem__)
                kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
                if node.op == "placeholder":
                    placeholder = self.graph.placeholder(str(node.target))
                    placeholder.meta.update(node.meta)
                    values[node] = self.bind(get_fake(node), placeholder)
                elif node.op == "output":
                    self.graph.output(self.lower(args[0]))
                elif node.op == "get_attr":
                    values[node] = self.part(gm, str(node.target))
                elif node.target in self.rules or not has_fake(node) or node.target is operator.getitem:
                    values[node] = self.call(node.target, args, kwargs, get_fake(node) if has_fake(node) else None)
                else:
                    values[node] = self.keep(node.target, args, kwargs, get_fake(node))
        self.graph.eliminate_dead_code(_has_effect)
        return graph_module(self.root, self.graph)

    def part(self, gm: torch.fx.GraphModule, name: str) -> torch.fx.Node:
        """The node of a graph within the graph, rewritten in its turn."""
        part = getattr(gm, name)
        self.root.add_module(name, Rewriter(self.rules, _some_tensor(part), self._left).rewrite(part))
        return self.graph.get_attr(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if not self._listening:
            return func(*args, **kwargs or {})
        result = self.call(func, args, kwargs or {})
        return self.another(result) if any(result is value for value in args) else result

    def another(self, value: torch.Tensor) -> torch.Tensor:
        """A second fake of the same node: torch wants views to be tensors of their own."""
        self._listening = False
        try:
            fake: torch.Tensor = torch.ops.aten.alias.default(value)
        finally:
            self._listening = True
        self._nodes[id(fake)] = (fake, self._nodes[id(value)][1])
        return fake

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fake: Any = None) -> Any:
        """fake: what the graph says of the result; made anew where there is none."""
        if target in self.rules:
            with self:
                result = self.rules[target](*args, **kwargs)
            if result is not NotImplemented:
                return self.apart(target, result, args)
        if fake is None or target is operator.getitem:
            fake = target(*args, **kwargs)
        if target is operator.getitem and id(args[0]) not in self._nodes:
            return fake  # of a tuple that a rule made
        if not any(isinstance(value, (torch.Tensor, *SYMBOLIC)) for value in _flat([*args, *kwargs.values(), fake])):
            return fake  # about types, as torch.promote_types
        return self.keep(target, args, kwargs, fake)

    def keep(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fake: Any) -> Any:
        """The result of a call that stays one."""
        if self._left is not None and self.origin is not None and not isinstance(target, Prim):
            self._left(self.origin, target, _flat([*args, *kwargs.values(), fake]))
        node = self.graph.call_function(target, self.lower(args), self.lower(kwargs))
        if self.origin is not None:
            copy_origin(self.origin, node)
        return self.bind(fake, node)

    def record(self, prim: Prim, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a prim: values of the sizes and types that its rule gives, on the operands' device."""
        metas = prim.infer(*_metas(args), **_metas(kwargs))
        operands = [value for value in _flat([*args, *kwargs.values()]) if isinstance(value, torch.Tensor)]
        devices = [value for value in [*args, *kwargs.values()] if isinstance(value, (str, torch.device))]
        device = torch.device(devices[0]) if devices else operands[0].device
        like = operands[0] if operands else self._some

        def fake(meta: Meta) -> torch.Tensor:
            if like is None:
                return torch.empty(meta.size, dtype=meta.dtype, device="meta")
            return like.new_empty(meta.size, dtype=meta.dtype, device=device)

        self._listening = False
        try:
            results = tuple(map(fake, metas)) if isinstance(metas, tuple) else fake(metas)
        finally:
            self._listening = True
        return self.keep(prim, args, kwargs, results)

    def apart(self, target: Any, result: Any, args: Any) -> Any:
        """`result`, copied where it is an operand of an operator whose results are memory of their own."""
        if not isinstance(target, torch._ops.OpOverload) or any(value.alias_info is not None for value in target._schema.returns):
            return result
        operands = {id(value) for value in _flat(args) if isinstance(value, torch.Tensor)}
        if isinstance(result, (tuple, list)):
            return type(result)([p.copy(value) if id(value) in operands else value for value in result])
        return p.copy(result) if id(result) in operands else result

    def bind(self, value: Any, node: torch.fx.Node) -> Any:
        set_fake(node, value)
        self.numbers.seen(value, node)
        self._nodes[id(value)] = (value, node)
        if isinstance(value, (tuple, list)):
            for item, part in enumerate(value):
                if isinstance(part, (torch.Tensor, *SYMBOLIC)):
                    self.bind(part, self.graph.call_function(operator.getitem, (node, item)))
        return value

    def lower(self, nest: Any) -> Any:
        if isinstance(nest, torch.Tensor):
            known = self._nodes.get(id(nest))
            return known[1] if known is not None else nest
        if isinstance(nest, SYMBOLIC):
            return self.numbers.node_of(nest)
        if isinstance(nest, torch.Size):
            return tuple([self.lower(item) for item in nest])
        if isinstance(nest, (tuple, list)):
            return type(nest)([self.lower(item) for item in nest])
        if isinstance(nest, dict):
            return {name: self.lower(value) for name, value in nest.items()}
        return nest


def _has_effect(node: torch.fx.Node) -> bool:
    """True for inputs and outputs, and for calls that return nothing: they check."""
    if node.op != "call_function":
        return node.op != "get_attr"
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, (tuple, list)) else [value]


def _metas(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _metas(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_metas(item) for item in value] if isinstance(value, list) else tuple(_metas(item) for item in value)
    return meta_of(value)
