"""Rules to prims: as references on real tensors, and as graphs of the prims dialect."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.fx

from fxloom_decomp import lower_to_prims, table
from fxloom_decomp.prims.registry import PRIMS_REGISTRY, prims_rule
from fxloom_interfaces.dialects import prims_dialect
from fxloom_interfaces.errors import GraphRejected, InternalError
from fxloom_interfaces.meta import set_fake
from fxloom_interfaces.prims import Prim

aten = torch.ops.aten


def graph(op: Any, *args: Any, **kwargs: Any) -> torch.fx.GraphModule:
    """A call of `op`, the tensors among `args` being placeholders, and their own fakes: decomp has none with a device."""
    made = torch.fx.Graph()
    nodes: list[Any] = []
    for number, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            nodes.append(made.placeholder(f"x{number}"))
            set_fake(nodes[-1], value)
        else:
            nodes.append(value)
    call = made.call_function(op, tuple(nodes), kwargs)
    set_fake(call, op(*args, **kwargs))
    made.output((call,))
    return torch.fx.GraphModule(torch.nn.Module(), made)


x, y = torch.linspace(-2, 2, 12).reshape(3, 4), torch.linspace(0.5, 3, 4)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.add.Tensor, (x, y)),
        (aten.add.Tensor, (x.int(), y)),
        (aten.mul.Scalar, (x.half(), 0.1)),
        (aten.gt.Scalar, (x, 1)),
        (aten.sum.dim_IntList, (x.half(), [-1], True)),
        (aten.view.default, (x, [2, -1])),
        (aten.expand.default, (y, [2, 3, 4])),
        (aten.select.int, (x, 1, -1)),
        (aten.gelu.default, (x,)),
        (aten.silu.default, (x.bfloat16(),)),
        (aten._softmax.default, (x, 1, False)),
        (aten.native_layer_norm.default, (x, [4], y, None, 1e-5)),
        (aten.index.Tensor, (x, [None, torch.tensor([[0, -1], [2, 2]])])),
        (aten.upsample_bilinear2d.default, (x[None, None], [5, 7], False)),
        (aten.max_pool2d_with_indices.default, (x[None], [2, 2], [1, 1], [1, 1])),
        (aten.std.correction, (x.double(), [0])),
        (aten.convolution.default, (x[None], torch.ones(2, 3, 2), y[:2], [1], [1], [1], False, [0], 1)),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "",
)
def test_an_operator_becomes_prims_that_compute_what_it_does(op: Any, args: tuple[Any, ...]) -> None:
    lists = [value for value in args if isinstance(value, list) and any(isinstance(item, torch.Tensor) for item in value)]
    if lists:  # a list of tensors: as one tensor, under a rule of its own
        places = lists[0][1]
        rule = table("prims")[op]
        torch.testing.assert_close(rule(args[0], [None, places]), op(args[0], [None, places]))
        return
    lowered = lower_to_prims(graph(op, *args))
    prims_dialect.verify(lowered)
    assert all(isinstance(node.target, Prim) or "getitem" in str(node.target) for node in lowered.graph.nodes if node.op == "call_function")
    found = lowered.forward(*[value for value in args if isinstance(value, torch.Tensor)])[0]
    torch.testing.assert_close(found, op(*args))


def test_rules_are_references_on_real_tensors() -> None:
    rules = table("prims")
    assert torch.equal(rules[aten.add.Tensor](x, y, alpha=2), torch.add(x, y, alpha=2))
    assert torch.equal(rules[aten.where.ScalarOther](x > 0, x, 0), torch.where(x > 0, x, 0))


def test_a_value_that_is_passed_on_is_copied_but_for_views() -> None:
    for op, copies in ((aten.clone.default, True), (aten.floor.default, True), (aten.alias.default, False)):
        whole = torch.arange(4)
        found = lower_to_prims(graph(op, whole)).forward(whole)[0]
        assert (found.data_ptr() != whole.data_ptr()) == copies, op


def test_a_listed_call_stays_and_what_is_not_listed_is_refused() -> None:
    lowered = lower_to_prims(graph(aten._fft_r2c.default, x, [1], 0, True))
    assert [node.target for node in lowered.graph.nodes if node.op == "call_function"] == [aten._fft_r2c.default]
    refused = graph(aten.bartlett_window.default, 5)
    with pytest.raises(GraphRejected, match="neither expressed in prims nor a listed call"):
        lower_to_prims(refused)


def test_checks_without_results_stay() -> None:
    made = torch.fx.Graph()
    node = made.placeholder("x")
    set_fake(node, torch.empty((), dtype=torch.bool, device="meta"))
    set_fake(made.call_function(aten._assert_async.msg, (node, "told")), None)
    made.output((node,))
    lowered = lower_to_prims(torch.fx.GraphModule(torch.nn.Module(), made))
    with pytest.raises(RuntimeError, match="told"):
        lowered.forward(torch.tensor(False))


def test_a_second_rule_is_an_error_that_names_both_places() -> None:
    assert aten.add.Tensor in table("prims")
    with pytest.raises(InternalError, match=r"elementwise\.py:\d+ and .*test_rules_to_prims\.py:\d+"):
        prims_rule(aten.add.Tensor)(lambda x, y: x)
    assert PRIMS_REGISTRY


def test_half_types_are_computed_in_float32_and_rounded_once() -> None:
    a = torch.linspace(-3, 5, 999).half()
    rules = table("prims")
    exact = (a.float() * 0.1).half()
    assert torch.equal(rules[aten.mul.Tensor](a, 0.1), exact)
    assert torch.equal(rules[aten.mean.dim](a, [0]), a.float().mean().half())


def test_graphs_within_graphs_become_prims() -> None:
    inner = graph(aten.silu.default, x)
    made = torch.fx.Graph()
    condition, value = made.placeholder("condition"), made.placeholder("value")
    set_fake(condition, torch.tensor(True))
    set_fake(value, x)
    part = made.get_attr("part")
    call = made.call_function(torch.ops.higher_order.cond, (condition, part, part, (value,)))
    set_fake(call, (torch.empty_like(x),))
    item = made.call_function(operator.getitem, (call, 0))
    set_fake(item, torch.empty_like(x))
    made.output((item,))
    root = torch.nn.Module()
    root.part = inner
    lowered = lower_to_prims(torch.fx.GraphModule(root, made))
    targets = [node.target for node in lowered.part.graph.nodes if node.op == "call_function"]
    assert targets
    assert all(isinstance(target, Prim) for target in targets)
