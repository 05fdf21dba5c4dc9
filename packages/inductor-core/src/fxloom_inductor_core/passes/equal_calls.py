"""Calls that compute the same once more use the first one's result.

In: a graph in the aten dialect. Out: the same graph, edited, and how many calls are gone. Invariant: only calls that neither draw
numbers nor do anything beside giving a result; and results that the program returns as tensors of their own stay that. aot merges the
calls that it logs; here go those that became equal by other passes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.rewriting import escapes
from fxloom_ops.schema import draws_numbers


def merge_equal_calls(graph: torch.fx.Graph, options: InductorOptions) -> int:
    """Edits `graph`; how many calls are gone."""
    first: dict[Any, torch.fx.Node] = {}
    merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_pure(node):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        known = first.setdefault(key, node)
        if known is node or (escapes(known) and escapes(node)):
            continue
        node.replace_all_uses_with(known)
        graph.erase_node(node)
        merged += 1
    return merged


def _is_pure(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") in ("_operator", "operator")
    if target.namespace not in ("aten", "prims") or draws_numbers(target) or target._schema.is_mutable or not target._schema.returns:
        return False
    name = target._schema.name
    return not name.startswith("aten::empty") and not name.startswith("aten::new_empty") and "rand" not in name


def _key(value: Any) -> Any:
    """Equal for equal arguments: NaN equals itself, and 0.0 is neither -0.0 nor 0 nor False."""
    if isinstance(value, torch.fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _key(value[name])) for name in sorted(value))
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    return (type(value), repr(value))
