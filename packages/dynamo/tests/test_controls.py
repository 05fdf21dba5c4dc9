"""What programs say about single functions: allow, disallow, constant, run; export and is_compiling."""

import copy
import inspect

import pytest
import torch

import fxloom_dynamo
from fxloom_dynamo import capture, directives, export, optimize
from fxloom_interfaces.dialects import torch_dialect
from fxloom_interfaces.errors import ConfigError, PluginError, Unsupported
from fxloom_interfaces.plugins import BACKENDS


@pytest.fixture(autouse=True)
def _directives_end_with_the_test(monkeypatch):
    monkeypatch.setattr(directives, "_DIRECTIVES", {})


def hidden(x, scale):
    return torch.sin(x) * scale


def test_allow_in_graph_is_one_node_with_its_gradient():
    fxloom_dynamo.allow_in_graph(hidden)
    x = torch.randn(3, requires_grad=True)
    found = capture(lambda x: hidden(x, 2.0) + 1, x)
    assert [node.op for node in found.graph.graph.nodes] == ["placeholder", "call_function", "call_function", "output"]
    torch_dialect.verify(found.graph)
    assert torch.equal(found.result, torch.sin(x) * 2.0 + 1)
    found.result.sum().backward()
    assert torch.equal(x.grad, torch.cos(x.detach()) * 2.0)


def test_disallow_in_graph_breaks_at_functions_of_torch():
    fxloom_dynamo.disallow_in_graph(torch.sin)
    found = capture(lambda x: torch.sin(x + 1) * 2, torch.ones(3))
    assert len(found.graphs) == 2
    assert found.breaks[0].key in ("asked_for", "torch_call")
    assert torch.equal(found.result, torch.sin(torch.ones(3) + 1) * 2)


def test_assume_constant_result_is_called_once():
    calls = []

    @fxloom_dynamo.assume_constant_result
    def factor():
        calls.append(1)
        return 3

    compiled = optimize()(lambda x: x * factor())
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * 3)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * 3)
    assert len(calls) == 1


def test_is_compiling_only_inside():
    def f(x):
        return x + 1 if fxloom_dynamo.is_compiling() else x - 1

    assert torch.equal(optimize()(f)(torch.zeros(1)), torch.ones(1))
    assert torch.equal(f(torch.zeros(1)), -torch.ones(1))


def test_run_compiles_nothing_new():
    frames = []
    compiled = optimize(on_capture=frames.append)(lambda x: x + 1)
    assert torch.equal(fxloom_dynamo.run(compiled)(torch.zeros(2)), torch.ones(2))
    assert not frames
    compiled(torch.zeros(2))
    fxloom_dynamo.run(compiled)(torch.zeros(3))
    assert len(frames) == 1


def test_export_gives_the_whole_graph_or_the_break():
    found = export(lambda x: torch.relu(x) + 1, torch.randn(3))
    assert found.op_count == 2
    assert (found.graph_count, found.graph_break_count) == (1, 0)
    assert found.guards
    with pytest.raises(Unsupported, match="data_dependent"):
        export(lambda x: x + 1 if x.sum() > 0 else x, torch.randn(3))


def test_controls_refuse_what_is_no_function():
    with pytest.raises(TypeError, match="allow_in_graph takes a function, got int"):
        fxloom_dynamo.allow_in_graph(3)


def test_a_backend_may_be_named():
    seen = []

    def mine(gm, example_inputs):
        seen.append(gm)
        return gm

    BACKENDS.register("mine", mine)
    try:
        assert torch.equal(optimize("eager")(lambda x: -x)(torch.ones(2)), -torch.ones(2))
        assert torch.equal(optimize("mine")(lambda x: -x)(torch.ones(2)), -torch.ones(2))
    finally:
        BACKENDS.unregister("mine")
    assert len(seen) == 1
    with pytest.raises(PluginError, match="minne"):
        optimize("minne")
    with pytest.raises(ConfigError, match="int"):
        optimize(3)


def test_a_function_of_torchs_own_compiler() -> None:
    """torch.cond compiles its branches with a frame hook of torch's; two hooks that remembered each other went round for ever."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1

    compiled = fxloom_dynamo.optimize("eager")(fn)
    for x in (torch.ones(3).requires_grad_(), -torch.ones(3).requires_grad_()):  # with gradients it is a break
        assert torch.equal(compiled(x), fn(x))
    assert [found.key for found in fxloom_dynamo.explain(fn, torch.ones(3).requires_grad_()).breaks][:1] == ["torch_call"]


def test_a_class_stays_a_class_whose_instances_are_captured():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm

    @optimize(backend)
    class Scale(torch.nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def forward(self, x):
            return x * self.by

    class Twice(Scale):
        def forward(self, x):
            return super().forward(super().forward(x))

    assert isinstance(Scale(3), Scale) and torch.equal(Scale(3)(torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(Twice(3)(torch.ones(2)), torch.full((2,), 9.0))
    assert len(graphs) == 2
    assert torch.nn.Linear(1, 1)(torch.ones(1)).shape == (1,) and len(graphs) == 2  # other modules are not
    with pytest.warns(UserWarning, match="Plain has no __call__"):

        @optimize(backend)
        class Plain:
            pass

    assert type(Plain()) is Plain


def test_a_compiled_function_has_the_attributes_of_its_function():
    def plain(x, by=2, *, more=3):
        """Scales."""
        return x * by

    plain.note = 5
    for made in (optimize()(plain), fxloom_dynamo.disable(plain)):
        assert (made.__defaults__, made.__kwdefaults__, made.note, made.__doc__) == ((2,), {"more": 3}, 5, "Scales.")
        assert made.__code__ is plain.__code__ and inspect.signature(made) == inspect.signature(plain)
        assert not hasattr(made, "other") and copy.copy(made) is made and copy.deepcopy(made) is made
        made.note = 6
        assert (made.note, plain.note) == (6, 5)
    assert torch.equal(optimize()(plain)(torch.ones(1)), torch.full((1,), 2.0))
