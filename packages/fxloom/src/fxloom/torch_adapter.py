"""fxloom's inductor as a backend of stock torch.compile: `torch.compile(model, backend="fxloom")`.

torch finds it through its own entry-point group. Its graph, tensors and parameters are ordinary; sizes that torch made
symbolic are not taken over yet, so such a graph is refused with the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxloom.api import compile_fx
from fxloom_interfaces.errors import ConfigError


def compile_for_torch(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a graph captured by torch.compile. ConfigError when it has symbolic sizes."""
    if any(isinstance(value, (torch.SymInt, torch.SymFloat)) for value in example_inputs):
        raise ConfigError("backend 'fxloom' takes static sizes from torch.compile: pass dynamic=False")
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta = {}  # torch's fakes belong to torch; ours are made from the inputs
    return compile_fx(torch.fx.GraphModule(gm, graph), example_inputs, **options)
