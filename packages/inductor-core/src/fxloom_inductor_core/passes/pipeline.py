"""The passes that an aten graph goes through before it is lowered, as one list.

In: a graph in the aten dialect. Out: the same graph, edited in place: a layer above may hold its nodes, and a rejected node has to be
one of them. Invariant: a valid graph in, a valid graph out; inputs and outputs stay as the signature says. A pass that changed
something says so, and the graph is verified then.

A pass may decline by changing nothing. Nodes that it makes get a fake value, and the site of the node that they are made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch.fx

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.dead_calls import remove_dead_calls
from fxloom_interfaces import telemetry
from fxloom_interfaces.dialects.aten_dialect import verify
from fxloom_interfaces.errors import InternalError, VerificationError
from fxloom_interfaces.graph_text import readable

#: `graph_pass(graph, options)` edits the graph; True if it changed something.
GraphPass: TypeAlias = Callable[[torch.fx.Graph, InductorOptions], bool]

#: In the order in which they run.
GRAPH_PASSES: list[GraphPass] = [
    remove_dead_calls,  # last: other passes leave calls that nobody needs any more
]


def run_passes(gm: torch.fx.GraphModule, options: InductorOptions) -> None:
    """Run all passes on the graph of `gm`, which is edited. InternalError where one leaves a graph that isn't of the dialect."""
    for graph_pass in GRAPH_PASSES:
        if not graph_pass(gm.graph, options):
            continue
        try:
            verify(gm)
        except VerificationError as error:
            raise InternalError(f"inductor.passes.{graph_pass.__name__}", str(error)) from error
        if telemetry.wants_artifacts():
            telemetry.emit(telemetry.ArtifactWritten(f"fx_graph_after_{graph_pass.__name__}.py", readable(gm)))
