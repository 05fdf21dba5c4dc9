"""Passes that users register: where they run, in which order, what they can change, and what identifies them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx

import fxloom
from fxloom.backends import inductor_options
from fxloom_interfaces import meta
from fxloom_interfaces.errors import InternalError, PluginError
from fxloom_interfaces.passes import POINTS

aten = torch.ops.aten
X = torch.linspace(0.1, 0.9, 8)


class Pass:
    """Calls `edit`, and writes down that it ran."""

    def __init__(self, name: str, edit: Any = lambda graph: 0, ran: list[str] | None = None, version: str = "1") -> None:
        self.name, self.edit, self.version = name, edit, version
        self.ran = [] if ran is None else ran

    def key(self) -> str:
        return self.version

    def __call__(self, graph: Any) -> int:
        self.ran.append(self.name)
        return int(self.edit(graph))


@pytest.fixture
def registered() -> Iterator[Any]:
    made: list[tuple[str, str]] = []

    def register(point: str, one: Pass) -> Pass:
        fxloom.register_pass(point, one)
        made.append((point, one.name))
        return one

    yield register
    for point, name in made:
        fxloom.unregister_pass(point, name)


def exchanged(old: Any, new: Any) -> Any:
    """An edit that replaces calls of one function by another."""

    def edit(gm: torch.fx.GraphModule) -> int:
        found = [node for node in gm.graph.nodes if node.target is old or node.target == old]
        for node in found:
            node.target = new
        return len(found)

    return edit


def test_passes_run_at_their_points_in_order(registered: Any) -> None:
    ran: list[str] = []
    for point in reversed(POINTS):
        registered(point, Pass(f"registered {point}", ran=ran))
    options = {"passes": {point: [Pass(f"{word} {point}", ran=ran) for word in ("first", "second")] for point in POINTS}}
    fxloom.compile(lambda x: x.sin() + 1, options=options)(X)
    assert ran == [f"{word} {point}" for point in POINTS for word in ("registered", "first", "second")]


@pytest.mark.parametrize(
    ("point", "edit"),
    [("before_aot", exchanged("sin", "cos")), ("after_aot", exchanged(aten.sin.default, aten.cos.default))],
    ids=["before_aot", "after_aot"],
)
def test_what_a_pass_changes_is_compiled(point: str, edit: Any) -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x: x.sin() * 2, options={"passes": {point: Pass("sin to cos", edit)}})
    torch.testing.assert_close(compiled(X), X.cos() * 2)
    assert fxloom.stats().passes["sin to cos"] == 1


def test_derivatives_are_those_of_what_a_pass_made_before_them() -> None:
    x = X.clone().requires_grad_()
    fxloom.compile(lambda x: x.sin(), options={"passes": {"before_aot": Pass("sin to cos", exchanged("sin", "cos"))}})(x).sum().backward()
    torch.testing.assert_close(x.grad, -X.sin())


def test_backward_graphs_go_through_passes_after_aot() -> None:
    graphs: list[list[Any]] = []
    watch = Pass("watch", lambda gm: graphs.append([node.target for node in gm.graph.nodes]) or 0)
    x = X.clone().requires_grad_()
    fxloom.compile(lambda x: x.sin(), options={"passes": {"after_aot": [watch]}})(x).sum().backward()
    assert any(aten.sin.default in graph for graph in graphs) and any(aten.cos.default in graph for graph in graphs)


def test_a_pass_over_loops_sees_them_before_they_are_scheduled() -> None:
    seen: list[int] = []
    fxloom.compile(
        lambda x: x.sin().sum() + x, options={"passes": {"loop_ir": Pass("count", lambda graph: seen.append(len(graph.work)) or 0)}}
    )(X)
    assert seen and seen[0] >= 2


def test_the_key_is_that_of_the_options(registered: Any) -> None:
    def declared(**options: Any) -> dict[str, str]:
        return inductor_options(None, options)[1].declared()

    plain = declared()
    keys = [
        declared(passes={"after_aot": [Pass("a")]}), declared(passes={"after_aot": [Pass("a", version="2")]}),
        declared(passes={"before_aot": [Pass("a")]}), declared(passes={"after_aot": [Pass("a"), Pass("b")]}),
        declared(passes={"after_aot": [Pass("b"), Pass("a")]}), declared(disabled_passes=["remove_dead_calls"]),
    ]  # fmt: skip
    assert len({str(sorted(key.items())) for key in [plain, *keys]}) == 7
    assert declared(passes={"after_aot": [Pass("a")]}) == keys[0]
    registered("after_aot", Pass("a"))
    assert declared() == keys[0]


def test_a_pass_can_be_switched_off() -> None:
    one = Pass("sin to cos", exchanged(aten.sin.default, aten.cos.default))
    compiled = fxloom.compile(lambda x: x.sin(), options={"passes": {"after_aot": [one]}, "disabled_passes": ["sin to cos"]})
    torch.testing.assert_close(compiled(X), X.sin())
    assert not one.ran


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disabled_passes": ["remove_dead_cals"]}, "did you mean 'remove_dead_calls'"),
        ({"passes": {"after_aott": [Pass("a")]}}, "did you mean 'after_aot'"),
        ({"passes": {"joint": [Pass("a")]}}, "unknown point 'joint'"),
        ({"passes": 3}, "mapping of points"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fxloom.exc.ConfigError, match=message):
        fxloom.compile(lambda x: x, options=options)


def test_what_is_no_pass_is_refused(registered: Any) -> None:
    with pytest.raises(PluginError, match="is no pass"):
        fxloom.register_pass("after_aot", lambda graph: 0)
    registered("after_aot", Pass("twice"))
    with pytest.raises(PluginError, match="registered at 'after_aot' already"):
        fxloom.register_pass("after_aot", Pass("twice"))
    with pytest.raises(KeyError):
        fxloom.unregister_pass("loop_ir", "twice")


def test_a_pass_that_leaves_an_invalid_graph_is_named() -> None:
    def forget(gm: torch.fx.GraphModule) -> int:
        for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
            del node.meta["val"]
        return 1

    compiled = fxloom.compile(lambda x: x.sin(), options={"passes": {"after_aot": [Pass("forgets", forget)]}})
    with pytest.raises(fxloom.exc.BackendCompilerFailed, match=r"passes.forgets(.|\n)*fake") as raised:
        compiled(X)
    assert isinstance(raised.value.__cause__, InternalError)


def test_a_rejected_node_of_a_pass_breaks_the_graph_where_the_program_made_it() -> None:
    def edit(gm: torch.fx.GraphModule) -> int:
        for node in gm.graph.find_nodes(op="call_method", target="sin"):
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(torch.mm, (node.args[0], node.args[0]))  # refuses one axis
            meta.set_fake(made, meta.get_fake(node))
            node.args = (made,)
            return 1
        return 0

    fxloom.reset()
    compiled = fxloom.compile(lambda x: (x + 1).sin().cos(), options={"passes": {"before_aot": [Pass("refused", edit)]}})
    torch.testing.assert_close(compiled(X), (X + 1).sin().cos())
    (broke,) = fxloom.stats().break_reasons
    assert "2D" in broke.details or "matri" in broke.details, broke


def test_numbers_of_changes_are_told() -> None:
    fxloom.reset()
    fxloom.compile(lambda x: x.sin() + 1, options={"passes": {"loop_ir": Pass("three", lambda graph: 3)}})(X)
    assert fxloom.stats().passes["three"] == 3
