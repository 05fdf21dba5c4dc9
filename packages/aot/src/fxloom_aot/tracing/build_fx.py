"""Make the FX graph of a stretch of the functional log: a forward or backward graph, as the aten dialect has it.

In: the log, the values that are placeholders, the calls to take (in order), the values to return. Out: a GraphModule of the
aten dialect, every node with its fake value and the user's site. Invariant: each call is one node, each number that is computed from
symbols is computed once, and a value that no placeholder or call gives is an InternalError.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from fxloom_aot.functional.functional_log import FunctionalLog
from fxloom_aot.runtime_numbers import SymbolMissing
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.graph_modules import graph_module
from fxloom_interfaces.meta import copy_origin, get_fake, set_fake, set_source, set_static_address
from fxloom_interfaces.signature import InputKind, InputSpec
from fxloom_shapes import FakeTensor
from fxloom_shapes.fake.size_nodes import SizeNodes, symbols_made
from fxloom_shapes.symbols.numbers import SYMBOLIC


def build_graph(
    log: FunctionalLog,
    placeholders: Sequence[tuple[InputSpec, Any]],
    calls: Sequence[int],
    outputs: Sequence[Any],
    causes: dict[str, torch.fx.Node] | None = None,
) -> torch.fx.GraphModule:
    """See the module's docstring. placeholders: spec and value of each input, in order.

    causes: is filled with the torch-dialect node behind each node, by name.
    """
    graph = torch.fx.Graph()
    nodes: dict[int, torch.fx.Node] = {}
    tuples: dict[int, torch.fx.Node] = {}
    items: dict[int, tuple[int, int]] = {}
    symbols: dict[str, torch.fx.Node] = {}
    made: dict[str, tuple[torch.fx.Node, tuple[int, ...]]] = {}
    for spec, value in placeholders:
        node = graph.placeholder(spec.name)
        set_fake(node, value)
        if spec.source is not None:
            set_source(node, spec.source)
        set_static_address(node, spec.static_address or spec.kind is InputKind.CONSTANT)
        if type(value) is FakeTensor:
            nodes[id(value)] = node
        elif spec.symbol:
            symbols[spec.symbol] = node

    def symbol(name: str) -> torch.fx.Node:
        if name in symbols:
            return symbols[name]
        if name in made:
            source, place = made[name]
            if len(place) > 1:
                source = graph.call_function(operator.getitem, (source, place[0]))
                set_fake(source, get_fake(made[name][0])[place[0]])
            node = symbols[name] = graph.call_function(torch.ops.aten.sym_size.int, (source, place[-1]))
            set_fake(node, get_fake(source).shape[place[-1]])
            return node
        raise SymbolMissing("aot build_graph", f"no input holds the size {name}")

    numbers = SizeNodes(lambda target, args: graph.call_function(target, args), symbol)

    def node_of(value: FakeTensor) -> torch.fx.Node:
        node = nodes.get(id(value))
        if node is None:
            place = items.get(id(value))
            if place is None:
                raise InternalError("aot build_graph", f"a value that no call of the graph makes: {value!r}")
            number, item = place
            node = graph.call_function(operator.getitem, (tuples[number], item))
            set_fake(node, value)
            copy_origin(tuples[number], node)
            nodes[id(value)] = node
        return node

    def argument(value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return node_of(value)
        if kind is tuple or kind is list:
            return kind([argument(item) for item in value])
        if kind in SYMBOLIC:
            return numbers.node_of(value)
        return value

    for number in calls:
        call = log.calls[number]
        kwargs = {name: argument(value) for name, value in call.kwargs.items()}
        node = graph.create_node("call_function", call.op, tuple([argument(value) for value in call.args]), kwargs)
        set_fake(node, call.out)
        if call.node is not None:
            copy_origin(call.node, node)
            if causes is not None:
                causes[node.name] = call.node
        for name, place in symbols_made(log.fake_mode.env, call.out).items():
            if name not in symbols and name not in made:
                if place is None:
                    symbols[name] = node
                else:
                    made[name] = (node, place)
        if type(call.out) is FakeTensor:
            nodes.setdefault(id(call.out), node)
        elif type(call.out) in (tuple, list):
            tuples[number] = node
            for item, value in enumerate(call.out):
                if type(value) is FakeTensor:
                    items.setdefault(id(value), (number, item))
    graph.output(tuple([argument(value) for value in outputs]))
    return graph_module(torch.nn.Module(), graph)
