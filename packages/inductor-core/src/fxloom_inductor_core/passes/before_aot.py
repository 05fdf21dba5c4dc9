"""Passes over the captured graph, before autograd has seen it: those of users, then fxloom's own.

In: a graph in the torch dialect. Out: `Prepared`: the graph to trace, and what its nodes stand for. Invariant: the captured graph stays as
it is, for capture holds its nodes and asks which of them a rejection is about. What our own passes make computes what the
captured graph computes, so that its further derivatives may be taken from that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
import torch.fx

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.attention import fuse_attention
from fxloom_inductor_core.passes.pipeline import GRAPH_PASSES, note, run_user_passes
from fxloom_inductor_core.passes.torch_calls import use_plain_calls
from fxloom_interfaces.config import nearest
from fxloom_interfaces.dialects.torch_dialect import verify
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.graph_modules import graph_module

Nodes: TypeAlias = dict[torch.fx.Node, torch.fx.Node]
#: `torch_pass(graph, options, made_for)` edits the graph; how many changes it made. made_for: gets what each new node stands for.
TorchPass: TypeAlias = Callable[[torch.fx.Graph, InductorOptions, Nodes], int]

#: over torch graphs, in the order in which they run, behind those of users
TORCH_PASSES: list[TorchPass] = [
    use_plain_calls,  # before what looks for forms of plain calls
    fuse_attention,
]


@dataclass(frozen=True, slots=True)
class Prepared:
    """gm: the graph to trace. differentiable: the graph whose operators have derivatives of any order; `gm` where they are the same."""

    gm: torch.fx.GraphModule
    differentiable: torch.fx.GraphModule
    _captured: Nodes = field(default_factory=dict)

    def captured(self, node: torch.fx.Node) -> torch.fx.Node:
        """The node of the captured graph that `node` of `gm` is, or was made for."""
        if not self._captured or node in self._captured:
            return self._captured.get(node, node)
        near = [*node.users, *node.all_input_nodes]  # made by a user's pass
        return next((self._captured[one] for one in near if one in self._captured), node)


def prepare(gm: torch.fx.GraphModule, options: InductorOptions) -> Prepared:
    """Run all passes that come before AOT on copies of `gm`. InternalError where one leaves a graph that isn't of the dialect."""
    captured: Nodes = {}
    verifier = partial(verify, captured=False)
    own = [one for one in TORCH_PASSES if one.__name__ not in options.disabled_passes]
    users = any(point == "before_aot" for point, _ in options.passes)
    if users:
        copied, captured = _copy(gm, captured)
        if run_user_passes(copied, "before_aot", options, verifier):
            gm = copied
        else:
            captured = {}
    if not own or not _has_softmax(gm.graph):
        return Prepared(gm, gm, captured)
    copied, origins = _copy(gm, captured)
    changed = 0
    for torch_pass in own:
        made_for: Nodes = {}
        changes = torch_pass(copied.graph, options, made_for)
        origins.update((node, origins[root]) for node, root in made_for.items() if root in origins)
        note(copied, torch_pass.__name__, "before_aot", changes, verifier)
        changed += changes
    if not changed:
        return Prepared(gm, gm, captured)
    copied.recompile()
    return Prepared(copied, gm, origins)


def _copy(gm: torch.fx.GraphModule, captured: Nodes) -> tuple[torch.fx.GraphModule, Nodes]:
    """A copy that shares attributes, and for each of its nodes the captured one. captured: of the nodes of `gm`, where it is a copy."""
    graph = torch.fx.Graph()
    copies: Nodes = {}
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph_module(gm, graph, type(gm).__name__), {copy: captured.get(node, node) for node, copy in copies.items()}


def _has_softmax(graph: torch.fx.Graph) -> bool:
    """Whether there is anything to do here for our own passes; copies of graphs take time."""
    return any("softmax" in (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")) for node in graph.nodes)


def check_disabled(options: InductorOptions) -> None:
    """ConfigError where `disabled_passes` has the name of no pass."""
    known = [*[one.__name__ for one in (*TORCH_PASSES, *GRAPH_PASSES)], *[one.name for _, one in options.passes]]
    for name in options.disabled_passes:
        if name not in known:
            raise ConfigError(f"unknown pass {name!r} in disabled_passes{nearest(str(name), known)}")
