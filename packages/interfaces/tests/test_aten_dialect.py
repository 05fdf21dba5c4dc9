"""Each rule of the aten dialect's verifier is broken once, and the signature's own checks."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.fx

from fxloom_interfaces.dialects.aten_dialect import verify
from fxloom_interfaces.errors import IRError, VerificationError
from fxloom_interfaces.meta import set_fake
from fxloom_interfaces.signature import FromOutput, GraphSignature, InputKind, InputSpec, OutputKind, OutputSpec, SameResult

aten = torch.ops.aten


def graph(
    target: Any, args: tuple[Any, ...] = (), output: Any = None, value: Any = None, fake: bool = True
) -> torch.fx.GraphModule:
    made = torch.fx.Graph()
    x = made.placeholder("x")
    set_fake(x, torch.zeros(3, 4) if value is None else value)
    call = made.call_function(target, (x, *args))
    if fake:
        set_fake(call, torch.zeros(3, 4))
    made.output((call,) if output is None else output)
    return torch.fx.GraphModule(torch.nn.Module(), made)


def test_a_good_graph_passes() -> None:
    signature = GraphSignature((InputSpec(InputKind.USER, "x", 0),), (OutputSpec(OutputKind.USER),), (FromOutput(0),), (), 1)
    verify(graph(aten.relu.default), signature)
    verify(graph(operator.getitem, (0,)))


@pytest.mark.parametrize(
    ("gm", "rule"),
    [
        (graph(torch.relu), "known-target"),
        (graph(aten.relu_.default), "functional"),
        (graph(aten.relu.default, output=[1]), "flat-output"),
        (graph(aten.relu.default, fake=False), "fake-value"),
        (graph(aten.as_strided.default, ([2], [1])), "as-strided-operand"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_rule_is_named(gm: torch.fx.GraphModule, rule: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify(gm)
    assert caught.value.rule == rule


def test_the_signature_is_compared() -> None:
    gm = graph(aten.relu.default)
    x = InputSpec(InputKind.USER, "x", 0)
    for signature, rule in [
        (GraphSignature((), (OutputSpec(OutputKind.USER),)), "inputs-match-signature"),
        (GraphSignature((x,), ()), "outputs-match-signature"),
        (GraphSignature((InputSpec(InputKind.USER, "y", 0),), (OutputSpec(OutputKind.USER),)), "inputs-match-signature"),
    ]:
        with pytest.raises(VerificationError) as caught:
            verify(gm, signature)
        assert caught.value.rule == rule
    mutated = GraphSignature((InputSpec(InputKind.USER, "x", 0, mutated=True),), (OutputSpec(OutputKind.NEW_VALUE, 0, 0),))
    verify(gm, mutated)
    with pytest.raises(VerificationError, match="new-value-fits"):
        verify(graph(aten.relu.default, value=torch.zeros(5)), mutated)


def test_signatures_check_themselves() -> None:
    with pytest.raises(IRError, match="not said to be mutated"):
        GraphSignature((InputSpec(InputKind.USER, "x", 0),), (OutputSpec(OutputKind.NEW_VALUE, 0, 0),))
    with pytest.raises(IRError, match="constant"):
        InputSpec(InputKind.CONSTANT, "c")
    with pytest.raises(IRError, match="earlier"):
        GraphSignature((), (), (SameResult(0),))
    with pytest.raises(IRError, match="output 3"):
        GraphSignature((), (), (FromOutput(3),))
