"""Optimizer steps over a GPU's tensors, compiled up to the program where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fxloom_aot import aot_graph
from fxloom_codegen_common.reference import REFERENCE
from fxloom_decomp import table
from fxloom_dynamo import capture
from fxloom_inductor_core import CompiledGraph, InductorOptions, compile_graph
from fxloom_interfaces.meta import get_fake
from fxloom_interfaces.program import Call, GroupedLaunch
from fxloom_shapes import FakeMode

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")


def programs(cls: type, options: dict[str, Any], count: int = 6) -> list[CompiledGraph]:
    """The step's graphs, compiled for kernels of the CPU and of a GPU."""
    codegens = {"cpu": REFERENCE, "cuda": replace(REFERENCE, device_types=("cuda",))}
    made: list[CompiledGraph] = []

    def compiler(gm: Any, signature: Any) -> Any:
        made.append(compile_graph(gm, signature, options=InductorOptions(), codegens=codegens, store=None))
        return made[-1]

    with FakeMode():
        params = [torch.nn.Parameter(torch.randn(2 + number % 4, 3, device="cuda")) for number in range(count)]
        for param in params:
            param.grad = torch.randn(param.shape, device="cuda")
        optimizer = cls(params, **options)
        for param in params if cls in (torch.optim.Adam, torch.optim.AdamW) else ():  # a step was made before
            step = torch.zeros((), device="cuda" if options.get("capturable") or options.get("fused") else "cpu")
            optimizer.state[param].update(step=step, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
        found = capture(lambda: optimizer.step())
    assert not found.breaks
    for graph in found.graphs:
        given = [get_fake(node) for node in graph.graph.nodes if node.op == "placeholder"]
        aot_graph(graph, given, decompositions=table("inductor"), compiler=compiler)
    return made


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(cls: type, options: dict[str, Any]) -> None:
    (graph,) = programs(cls, options)
    launches = graph.program.launches()
    assert len(launches) == 2 and all(isinstance(step, GroupedLaunch) and len(step.sets) == 6 for step in launches)
    calls = [step for step in graph.program.steps if isinstance(step, Call)]
    # step counts on the CPU: what is computed of them goes over in one call
    assert [call.target for call in calls] == ([] if options.get("capturable") or options.get("fused") else ["move_numbers"])
    assert graph.fallbacks == ()


@pytest.mark.parametrize("cls", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.RMSprop, torch.optim.SGD])
def test_others(cls: type) -> None:
    (graph,) = programs(cls, {})
    assert len(graph.program.launches()) <= 4
    assert len([step for step in graph.program.steps if isinstance(step, Call)]) <= 1
    assert graph.fallbacks == ()
