"""Graph modules are compiled when they are called, and are torch.fx's in everything else."""

from __future__ import annotations

import copy
import gc
import inspect
import linecache
import pickle

import pytest
import torch
import torch.fx

from fxloom_interfaces._torch_private import GENERATED_SOURCES
from fxloom_interfaces.graph_modules import graph_module


def made() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(torch.add, (x, y)))
    return graph_module(torch.nn.Module(), graph, "Sum")


def is_compiled(module: torch.fx.GraphModule) -> bool:
    return "forward" in vars(type(module))


ONE = torch.ones(2)


def test_nothing_is_compiled_before_the_first_call() -> None:
    module = made()
    assert not is_compiled(module)
    assert type(module).__name__ == "Sum"
    assert torch.equal(module(ONE, ONE), ONE + ONE)
    assert is_compiled(module)
    compiled = type(module).forward
    module(ONE, y=ONE)
    assert type(module).forward is compiled, "once"


@pytest.mark.parametrize(
    "ask",
    [
        lambda module: "torch.add" in module.code,
        lambda module: list(inspect.signature(module.forward).parameters) == ["x", "y"],
        lambda module: torch.equal(module.forward(ONE, ONE), ONE + ONE),
        lambda module: torch.equal(copy.deepcopy(module)(ONE, ONE), ONE + ONE),
        lambda module: torch.equal(pickle.loads(pickle.dumps(module))(ONE, ONE), ONE + ONE),
        lambda module: "add" in module.print_readable(print_output=False),
    ],
    ids=["code", "signature", "forward", "copy", "pickle", "readable"],
)
def test_what_asks_for_the_code_gets_it(ask) -> None:
    assert ask(made())


def test_edits_before_and_after_the_first_call_count() -> None:
    module = made()
    for target, result in ((torch.sub, ONE - ONE), (torch.mul, ONE)):
        next(node for node in module.graph.nodes if node.op == "call_function").target = target
        module.recompile()
        assert torch.equal(module(ONE, ONE), result)


def test_sources_die_with_their_module() -> None:
    module = made()
    names = []
    for _ in range(2):
        module(ONE, ONE)
        names.append(type(module).forward.__code__.co_filename)
        module.recompile()
    assert set(names) <= GENERATED_SOURCES.keys()
    del module
    gc.collect()
    assert not set(names) & (GENERATED_SOURCES.keys() | linecache.cache.keys())
