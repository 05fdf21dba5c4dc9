"""The torch dialect's verifier accepts what capture emits and names the rule that a graph breaks."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx

from fxloom_interfaces import meta, regions
from fxloom_interfaces.dialects.torch_dialect import verify
from fxloom_interfaces.errors import VerificationError
from fxloom_interfaces.sources import LocalSource


def graph() -> tuple[torch.fx.Graph, torch.fx.Node]:
    made = torch.fx.Graph()
    x = made.placeholder("x")
    meta.set_fake(x, torch.empty(3, device="meta"))
    meta.set_source(x, LocalSource("x"))
    return made, x


def finish(made: torch.fx.Graph, *outputs: torch.fx.Node) -> torch.fx.GraphModule:
    node = made.output(outputs)
    meta.set_fake(node, None)
    return torch.fx.GraphModule(torch.nn.Module(), made)


def call(made: torch.fx.Graph, target: object, *args: object) -> torch.fx.Node:
    node = made.call_function(target, args)  # type: ignore[arg-type]  # wrong targets are tried too
    meta.set_fake(node, torch.empty(3, device="meta"))
    return node


def test_a_captured_graph_passes() -> None:
    made, x = graph()
    call(made, regions.set_grad_enabled, False)
    y = call(made, torch.nn.functional.relu, call(made, operator.add, x, 1))
    z = made.call_method("view", (y, -1))
    meta.set_fake(z, torch.empty(3, device="meta"))
    verify(finish(made, y, z))


@pytest.mark.parametrize(
    ("rule", "target", "args"),
    [("known-target", len, ()), ("plain-arguments", torch.add, (object(),)), ("known-target", "no_such_method", ())],
)
def test_the_broken_rule_is_named(rule: str, target: object, args: tuple[object, ...]) -> None:
    made, x = graph()
    if isinstance(target, str):
        y = made.call_method(target, (x,))
        meta.set_fake(y, x)
    else:
        y = call(made, target, x)
        y.args = (x, *args)  # type: ignore[assignment]  # a wrong argument on purpose
    made.output((y,))
    gm = torch.fx.GraphModule({}, torch.fx.Graph())
    gm._graph = made
    with pytest.raises(VerificationError, match=f"rule {rule}"):
        verify(gm)


def test_fakes_and_sources_are_demanded() -> None:
    made = torch.fx.Graph()
    x = made.placeholder("x")
    gm = finish(made, x)
    with pytest.raises(VerificationError, match="fake-value"):
        verify(gm)
    verify(gm, captured=False)
