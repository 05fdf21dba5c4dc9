"""The graph passes, as lists that one can read, and how they run.

In: a graph at a point of its way (`fxloom_interfaces.passes.POINTS`). Out: the same graph, edited in place: a layer above may hold its
nodes, and a rejected node has to be one of them. Invariant: a valid graph in, a valid graph out; inputs and outputs stay as the
signature says. A pass that changed something says how often, telemetry tells it, and the graph is verified then.

A pass may decline by changing nothing; `options={"disabled_passes": [name]}` leaves it out. Nodes that it makes get a fake value, and the
site of the node that they are made for (`rewriting.Rewriter`). Graphs in the torch dialect are edited in `before_aot`, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch.fx

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.constant_folding import fold_constants
from fxloom_inductor_core.passes.dead_calls import remove_dead_calls
from fxloom_inductor_core.passes.equal_calls import merge_equal_calls
from fxloom_inductor_core.passes.simplifications import simplify
from fxloom_interfaces import telemetry
from fxloom_interfaces.dialects.aten_dialect import verify
from fxloom_interfaces.errors import InternalError, VerificationError
from fxloom_interfaces.graph_text import readable

#: `graph_pass(graph, options)` edits the graph; how many changes it made.
GraphPass: TypeAlias = Callable[[torch.fx.Graph, InductorOptions], int]

#: over aten graphs, in the order in which they run; passes of users come behind them, then dead calls go once more
GRAPH_PASSES: list[GraphPass] = [
    fold_constants,
    simplify,
    merge_equal_calls,  # behind what makes calls equal
    remove_dead_calls,  # last: other passes leave calls that nobody needs any more
]


def run_passes(gm: torch.fx.GraphModule, options: InductorOptions) -> None:
    """Run all passes on the aten graph of `gm`, which is edited. InternalError where one leaves a graph that isn't of the dialect."""
    for graph_pass in GRAPH_PASSES:
        if graph_pass.__name__ not in options.disabled_passes:
            note(gm, graph_pass.__name__, "after_aot", graph_pass(gm.graph, options), verify)
    if run_user_passes(gm, "after_aot", options, verify) and remove_dead_calls.__name__ not in options.disabled_passes:
        note(gm, remove_dead_calls.__name__, "after_aot", remove_dead_calls(gm.graph, options), verify)


def run_user_passes(graph: Any, point: str, options: InductorOptions, verifier: Callable[[Any], None] | None) -> int:
    """Run the user's passes of `point`, in order; how many changes they made."""
    total = 0
    for at, one in options.passes:
        if at == point and one.name not in options.disabled_passes:
            changes = int(one(graph))
            note(graph, one.name, point, changes, verifier)
            total += changes
    return total


def note(graph: Any, name: str, point: str, changes: int, verifier: Callable[[Any], None] | None) -> None:
    """Tell telemetry what pass `name` did to `graph`, and verify the graph, if it did anything."""
    if not changes:
        return
    telemetry.emit(telemetry.PassRan(name, point, changes))
    if verifier is not None:
        try:
            verifier(graph)
        except VerificationError as error:
            raise InternalError(f"inductor.passes.{name}", str(error)) from error
    if isinstance(graph, torch.fx.GraphModule) and telemetry.wants_artifacts():
        telemetry.emit(telemetry.ArtifactWritten(f"fx_graph_after_{name}.py", readable(graph)))
