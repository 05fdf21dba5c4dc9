"""What a backend calls: `aot_graph` makes a callable of a torch-dialect graph by way of aten-dialect graphs.

In: a torch-dialect graph, example inputs, decompositions, and a `compiler` for aten-dialect graphs. Out: a callable of the graph's
inputs, with eager's results, aliasing, writes and gradients. Where nothing needs a gradient only a forward graph is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx

from fxloom_aot.double_backward.differentiable_gradients import DifferentiableGradients
from fxloom_aot.partitioning.partition import Partitioner, name_of, save_all
from fxloom_aot.runtime.backward_graphs import CompiledBackward, Variants
from fxloom_aot.runtime.inference import Compiled, inference_wrapper
from fxloom_aot.runtime.stage import CompiledStage
from fxloom_aot.runtime.training import training_wrapper
from fxloom_aot.trace_result import IncomingGradients, NoBackwardGraph, Stage, Traced, TracedGraph
from fxloom_aot.tracing.trace import trace_graph
from fxloom_interfaces.dialects.aten_dialect import verify
from fxloom_interfaces.errors import GraphRejected, PluginError
from fxloom_interfaces.signature import GraphSignature

Compiler = Callable[[torch.fx.GraphModule, GraphSignature], Compiled]


def aot_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    compiler: Compiler,
    partitioner: Partitioner | None = None,
    backward_compiler: Compiler | None = None,
    verify_graphs: bool = False,
    double_backward: bool = False,
    differentiable: torch.fx.GraphModule | None = None,
) -> Callable[..., list[Any]]:
    """A callable with the flat inputs and outputs of `gm`, its graphs compiled by `compiler(gm, signature)`.

    partitioner: decides what is kept between forward and backward; `save_all` when None, `MinCut()` keeps the fewest bytes.
    Trains when grad mode is on and an output requires grad; gradients that are to be differentiated (`create_graph=True`) are
    made by eager's autograd nodes on what the call kept; with `double_backward` a call keeps all that eager's does, so that no value
    is missing then. differentiable: computes what `gm` computes, by operators whose derivatives can be differentiated; where somebody
    put one in `gm` whose can't, the graph before that. `compiler` returns a callable of one list (which it may clear)
    to the flat outputs. Raises GraphRejected for what can't be treated soundly.
    """
    traced = trace_graph(gm, example_inputs, decompositions or {}, partitioner or save_all, double_backward, differentiable)
    if verify_graphs:
        verify_traced(traced)
    return compile_traced(traced, compiler, backward_compiler)


def compile_traced(traced: Traced, compiler: Compiler, backward_compiler: Compiler | None = None) -> Callable[..., list[Any]]:
    """The callable of graphs that were traced."""
    forward = _compiled(compiler, traced.forward)
    signature = traced.forward.signature
    if not traced.stages:
        return inference_wrapper(forward, signature, traced.checks, starts_with_grad=traced.starts_with_grad)
    compile_backward = backward_compiler or compiler
    assert traced.program is not None
    stages: list[CompiledStage] = []
    for number, stage in enumerate(traced.stages):
        whole = CompiledBackward(_compiled(compile_backward, stage.graph), stage.graph.signature, stage.tangents)
        variants = Variants(whole, stage.reached, partial(_variant, compile_backward, stage))
        differentiable = DifferentiableGradients(traced.program, stage, signature, traced.boundaries, traced.stages[:number])
        stages.append(CompiledStage(stage, variants, signature, traced.boundaries, differentiable, traced.only_plain_backward, stages))
    return training_wrapper(forward, stages, signature, traced.checks, starts_with_grad=traced.starts_with_grad)


def _variant(compiler: Compiler, stage: Stage, given: IncomingGradients) -> CompiledBackward:
    """The compiled backward pass for these gradients. NoBackwardGraph where there is none."""
    graph, tangents = stage.backward_of(given)
    try:
        return CompiledBackward(compiler(graph.gm, graph.signature), graph.signature, tangents)
    except GraphRejected as error:
        raise NoBackwardGraph(error.reason) from error


def _compiled(compiler: Compiler, graph: TracedGraph) -> Compiled:
    """What the compiler rejects, said of the node that capture knows."""
    try:
        compiled = compiler(graph.gm, graph.signature)
    except GraphRejected as error:
        cause = graph.causes.get(error.node.name) if error.node.graph is graph.gm.graph else None
        if cause is None:
            raise
        raise GraphRejected(cause, error.reason, raises=error.raises) from error
    if not callable(compiled):
        what = "a compiler returns a callable of one list, the inputs, to the flat outputs"
        raise PluginError(name_of(compiler), f"{what}; it returned {compiled!r} for the {_which(graph)} graph")
    return compiled


def checked(compiler: Compiler) -> Compiler:
    """A compiler of somebody's own, whose callables are looked at: each has to give what the signature says."""

    def compile_checked(gm: torch.fx.GraphModule, signature: GraphSignature) -> Compiled:
        run = compiler(gm, signature)
        if not callable(run) or hasattr(run, "in_parts"):
            return run

        def run_checked(inputs: list[Any]) -> Sequence[Any]:
            outputs = run(inputs)
            if not isinstance(outputs, (tuple, list)) or len(outputs) != len(signature.outputs):
                gave = f"{len(outputs)} of them" if isinstance(outputs, (tuple, list)) else f"{type(outputs).__name__}"
                which = "backward" if signature.backward else "forward"
                what = f"the compiled {which} graph gives a tuple or list of {len(signature.outputs)} outputs"
                raise PluginError(name_of(compiler), f"{what}; it gave {gave}")
            return outputs

        return run_checked

    compile_checked.__qualname__ = name_of(compiler)
    return compile_checked


def _which(graph: TracedGraph) -> str:
    return "backward" if graph.signature.backward else "forward"


def export_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    partitioner: Partitioner | None = None,
) -> Traced:
    """The aten-dialect graphs of `gm` with their signatures, uncompiled."""
    return trace_graph(gm, example_inputs, decompositions or {}, partitioner or save_all)


def verify_traced(traced: Traced) -> None:
    """Raise VerificationError unless the graphs are of the aten dialect."""
    verify(traced.forward.gm, traced.forward.signature)
    for stage in traced.stages:
        verify(stage.graph.gm, stage.graph.signature)
