"""The pattern language: what matches, what is captured, and which nodes a match covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from core_graphs import record

from fxloom_inductor_core.passes.patterns import Anything, Capture, Either, Number, Op, Pattern, Through, find, read_aten

aten = torch.ops.aten
X = torch.randn(3, 4)


def matches(pattern: Pattern, function: Callable[..., Any], *inputs: torch.Tensor) -> list[dict[str, str]]:
    """What `pattern` captures at the result of `function`, in each way that it matches."""
    gm = record(function, *(inputs or (X,)))
    (root,) = gm.graph.output_node().args[0]
    return [{name: str(value) for name, value in match.captures.items()} for match in find(pattern, root, read_aten)]


def test_captures_hold_what_stands_there() -> None:
    pattern = Op(aten.add.Tensor, Op(aten.mul.Tensor, Capture("x"), Number("by")), Capture("y"))
    assert matches(pattern, lambda x: x * 3 + x) == [{"x": "arg_0", "by": "3", "y": "arg_0"}]
    assert matches(pattern, lambda x: x + x * 3) == []


def test_a_name_stands_for_one_value() -> None:
    pattern = Op(aten.mul.Tensor, Capture("x"), Capture("x"))
    assert matches(pattern, lambda x: x * x) and not matches(pattern, lambda x: x * x.sin())


def test_commutative_operands_match_in_both_orders() -> None:
    pattern = Op(aten.add.Tensor, Op(aten.sin.default, Capture("x")), Capture("y"), commutative=True)
    assert matches(pattern, lambda x: x + x.sin()) == matches(pattern, lambda x: x.sin() + x) == [{"x": "arg_0", "y": "arg_0"}]
    assert len(matches(pattern, lambda x: x.sin() + x.cos().sin())) == 2


def test_arguments_that_are_not_said_have_their_defaults() -> None:
    pattern = Op(aten.add.Tensor, Capture("x"), Capture("y"))
    assert matches(pattern, lambda x: x.add(x)) and not matches(pattern, lambda x: x.add(x, alpha=2))
    assert matches(Op(aten.sum.dim_IntList, Capture("x"), [1]), lambda x: x.sum(1)) and not matches(
        Op(aten.sum.dim_IntList, Capture("x"), [1]), lambda x: x.sum(1, keepdim=True)
    )


def test_several_targets_and_forms() -> None:
    either = Either(Op(aten.neg.default, Capture("x")), Op((aten.sin.default, aten.cos.default), Capture("x")))
    assert matches(either, lambda x: x.cos()) == matches(either, lambda x: -x) == [{"x": "arg_0"}]
    assert not matches(either, lambda x: x.tan())


def test_what_lies_between_may_be_passed_through() -> None:
    pattern = Op(aten.exp.default, Through((aten._to_copy.default, aten.t.default), Op(aten.sin.default, Capture("x"))))
    for between in (lambda x: x, lambda x: x.double(), lambda x: x.t().double().t()):
        assert matches(pattern, lambda x, between=between: between(x.sin()).exp()) == [{"x": "arg_0"}]
    assert not matches(pattern, lambda x: x.sin().cos().exp())


def test_conditions_on_values_nodes_and_users() -> None:
    assert not matches(Op(aten.mul.Tensor, Anything(), Number("n", lambda n: n > 5)), lambda x: x * 3)
    assert matches(Op(aten.mul.Tensor, Anything(), Number("n", lambda n: n > 5)), lambda x: x * 7)
    assert not matches(Op(aten.sin.default, Anything(), where=lambda node: node.meta["val"].dtype is torch.float64), lambda x: x.sin())
    once = Op(aten.exp.default, Op(aten.sin.default, Anything(), users=1))
    assert matches(once, lambda x: x.sin().exp()) and not matches(Op(aten.add.Tensor, once, Anything()), lambda x: (y := x.sin()).exp() + y)


def test_a_match_is_closed_when_nothing_else_uses_what_it_covers() -> None:
    pattern = Op(aten.add.Tensor, Op(aten.exp.default, Op(aten.sin.default, Capture("x"))), Capture("y"))
    for function, closed in ((lambda x: x.sin().exp() + x, True), (lambda x: (y := x.sin()).exp() + y.cos(), False)):
        gm = record(function, X)
        (root,) = gm.graph.output_node().args[0]
        (match,) = find(pattern, root, read_aten)
        assert [node.target for node in match.nodes] == [aten.add.Tensor, aten.exp.default, aten.sin.default]
        assert match.is_closed() is closed
        assert match.is_closed(lambda user: user.target is aten.cos.default)
