"""Options of the min-cut partitioner: what it always saves, what it always recomputes, and what its report says."""

from __future__ import annotations

import torch

from fxloom_aot import MinCut, aot_export, aot_function

aten = torch.ops.aten


def program(x, w):
    h = (x @ w).exp()
    return (h.sin() @ w).sum()


def kept(partitioner) -> list[str]:
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    traced = aot_export(program, [x, w], partitioner=partitioner)
    nodes = list(traced.forward.gm.graph.nodes)[-1].args[0]
    return [str(node.target) for node in nodes[1:]]


def test_always_save_and_always_recompute():
    assert "aten.exp.default" in kept(MinCut(always_save=lambda call: call.op is aten.exp.default))
    assert kept(MinCut()) != []
    assert kept(MinCut(always_recompute=lambda call: call.op in (aten.mm.default, aten.exp.default, aten.sin.default))) == []


def test_always_save_wins():
    both = MinCut(always_save=lambda call: call.op is aten.exp.default, always_recompute=lambda call: True)
    assert kept(both) == ["aten.exp.default"]


def test_gradients_are_the_same():
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    expected = torch.autograd.grad(program(x, w), [x, w])
    for partitioner in (MinCut(), MinCut(always_recompute=lambda call: True), MinCut(memory_budget=0)):
        found = torch.autograd.grad(aot_function(program, [x, w], partitioner=partitioner)(x, w), [x, w])
        torch.testing.assert_close(found, expected)


def test_the_report_says_why():
    reports = []

    def partitioner(joint):
        part = MinCut(always_recompute=lambda call: call.op is aten.mm.default)(joint)
        reports.append(part.report)
        return part

    kept(partitioner)
    kept(partitioner)
    assert "asked for (checkpoint, always_recompute)" in reports[0]
    assert "aten.mm.default" in reports[0]
    assert reports[0] == reports[1]
