"""Graph passes: what goes, what stays, and what becomes of a pass that breaks the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx
from core_graphs import check, compiled, record

from fxloom_inductor_core import InductorOptions
from fxloom_inductor_core.passes import pipeline
from fxloom_inductor_core.passes.dead_calls import remove_dead_calls
from fxloom_inductor_core.scheduler.fusion_vetoes import FUSION_VETOES
from fxloom_interfaces import meta, telemetry
from fxloom_interfaces.errors import InternalError

aten = torch.ops.aten
X = torch.randn(4, 8)
N = torch.arange(8)


def with_dead_call(function: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor) -> torch.fx.GraphModule:
    """`x + x`, and the calls that `function` makes on `x`, whose result nobody uses."""
    gm = record(lambda x: (function(x), x + x), example)
    (output,) = gm.graph.find_nodes(op="output")
    output.args = ((output.args[0][-1],),)
    return gm


def operators(gm: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("name", "function", "example", "left"),
    [
        ("a chain", lambda x: x.sin().cos(), X, []),
        ("a part of a tuple", lambda x: x.max(-1)[1], X, []),
        ("a view", lambda x: x.t(), X, []),
        ("may find an index out of range", lambda x: x[x], N, ["aten.index.Tensor"]),
        ("may divide by zero", lambda x: x // (x + 1), N, ["aten.add.Tensor", "aten.floor_divide.default"]),
        ("draws", lambda x: x.bernoulli(), X.sigmoid(), ["aten.bernoulli.default"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dead_calls_go_unless_they_do_something(name: str, function, example: torch.Tensor, left: list[str]) -> None:
    gm = with_dead_call(function, example)
    assert remove_dead_calls(gm.graph, InductorOptions()) or left
    assert operators(gm) == [*left, "aten.add.Tensor"]
    assert not remove_dead_calls(gm.graph, InductorOptions())


def test_a_graph_without_dead_calls_stays_as_it_is() -> None:
    gm = record(lambda x: x.sin() + 1, X)
    before = str(gm.graph)
    assert not remove_dead_calls(gm.graph, InductorOptions())
    assert str(gm.graph) == before


def test_what_a_pass_made_is_compiled_and_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def double_negation(graph: torch.fx.Graph, options: InductorOptions) -> bool:
        changed = False
        for node in graph.find_nodes(op="call_function", target=aten.neg.default):
            if node.args[0].target is aten.neg.default:  # --x -> x
                node.replace_all_uses_with(node.args[0].args[0])
                changed = True
        return changed

    monkeypatch.setattr(pipeline, "GRAPH_PASSES", [double_negation, *pipeline.GRAPH_PASSES])
    written: list[str] = []
    with telemetry.listen(lambda event: written.append(event.name) if isinstance(event, telemetry.ArtifactWritten) else None, artifacts=True):
        found = check(lambda x: (-(-x)).exp(), X)
    ((_, kernel),) = found.program.kernels
    assert "neg" not in kernel.text()
    assert [name for name in written if "after" in name] == ["fx_graph_after_double_negation.py", "fx_graph_after_remove_dead_calls.py"]


def test_a_pass_that_leaves_an_invalid_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_fake(graph: torch.fx.Graph, options: InductorOptions) -> bool:
        (node,) = graph.find_nodes(op="call_function", target=aten.sin.default)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_function(aten.cos.default, node.args))
        assert meta.has_fake(node)
        return True

    monkeypatch.setattr(pipeline, "GRAPH_PASSES", [forgets_the_fake])
    with pytest.raises(InternalError, match=r"passes.forgets_the_fake(.|\n)*fake"):
        compiled(lambda x: x.sin(), X)


@pytest.mark.parametrize("refuses", [True, False])
def test_every_fusion_rule_has_to_agree(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def a_rule(merge) -> bool:
        asked.append(len(merge.members))
        return not refuses

    monkeypatch.setattr("fxloom_inductor_core.scheduler.fusion.FUSION_VETOES", [*FUSION_VETOES, a_rule])
    found = check(lambda x: (x * 2).sum(-1).exp(), X)
    assert asked and (len(found.program.launches()) > 1) is refuses
