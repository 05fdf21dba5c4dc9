"""Removes calls whose results nobody uses, unless they are made for something else: what they raise, print, write or draw.

In: a graph. Out: the same graph, edited, and how many calls are gone. Invariant: operators of other libraries always stay.
"""

from __future__ import annotations

import torch
import torch.fx

from fxloom_inductor_core.options import InductorOptions
from fxloom_interfaces import meta
from fxloom_ops.schema import draws_numbers
from fxloom_ops.value_checks import may_raise


def remove_dead_calls(graph: torch.fx.Graph, options: InductorOptions) -> int:
    """Edits `graph`; how many calls are gone."""
    dead = 0
    for node in reversed(list(graph.nodes)):  # users come before what they use
        if not node.users and node.op in ("call_function", "get_attr") and not _is_needed(node):
            graph.erase_node(node)
            dead += 1
    return dead


def _is_needed(node: torch.fx.Node) -> bool:
    """True for a call that does something beside giving results."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    schema = target._schema
    if draws_numbers(target) or schema.is_mutable or not schema.returns or target.namespace not in ("aten", "prims", "fxloom"):
        return True
    return may_raise(target, meta.get_fake(node))
