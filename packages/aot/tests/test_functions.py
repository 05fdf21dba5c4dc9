"""The functions for people who only want joint graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from programs import Compilations

from fxloom_aot import MinCut, aot_export, aot_function, aot_module
from fxloom_interfaces.signature import InputKind, OutputKind


def loss(x: Any, table: Any, scale: float = 1.0) -> Any:
    h = torch.tanh(x @ table["w"]) * scale
    return {"loss": h.square().mean(), "hidden": h, "scale": scale}


def arguments() -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(5, 4), {"w": torch.randn(4, 3).requires_grad_()}, 2.0]


@pytest.mark.parametrize("partitioner", [MinCut(), MinCut(memory_budget=0.0)])
def test_function_of_nests(partitioner: MinCut) -> None:
    compiler = Compilations()
    args, same = arguments(), arguments()
    compiled = aot_function(loss, args, compiler=compiler, partitioner=partitioner)
    got, expected = compiled(*args), loss(*same)
    assert list(got) == list(expected) and got["scale"] == 2.0
    torch.testing.assert_close(got["loss"], expected["loss"])
    (got["loss"] + got["hidden"].sum()).backward()
    (expected["loss"] + expected["hidden"].sum()).backward()
    torch.testing.assert_close(args[1]["w"].grad, same[1]["w"].grad)
    assert [signature.backward for _, signature in compiler.graphs] == [False, True]


def test_unlike_arguments_are_refused() -> None:
    args = arguments()
    compiled = aot_function(loss, args)
    with pytest.raises(TypeError, match=r"argument 0 is .*\(6, 4\).*example was .*\(5, 4\)"):
        compiled(torch.randn(6, 4), *args[1:])
    with pytest.raises(TypeError, match=r"argument 2 is 3.0; it was 2.0"):
        compiled(*args[:2], 3.0)
    with pytest.raises(TypeError, match="nested as"):
        compiled(*args, 1)
    with pytest.raises(TypeError, match="float64"):
        compiled(args[0].double(), *args[1:])


def test_module_trains_and_updates_its_buffers() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
    other = copy.deepcopy(model)
    x = torch.randn(8, 4)
    step = aot_module(model, [x], partitioner=MinCut())
    for _ in range(2):
        step(x).square().sum().backward()
        other(x).square().sum().backward()
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)
    for (name, mine), theirs in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)


def test_tied_weights_get_one_gradient() -> None:
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.a, model.b = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    model.b.weight = model.a.weight
    model.forward = lambda x: model.b(torch.tanh(model.a(x)))  # type: ignore[method-assign]
    x = torch.randn(2, 4)
    aot_module(model, [x])(x).sum().backward()
    mine, model.a.weight.grad = model.a.weight.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(mine, model.a.weight.grad)


def test_export_of_a_module() -> None:
    model = torch.nn.BatchNorm1d(3)
    traced = aot_export(model, [torch.randn(4, 3)])
    kinds = [spec.kind for spec in traced.forward.signature.inputs]
    assert kinds.count(InputKind.PARAMETER) == 2
    assert [spec.kind for spec in traced.forward.signature.outputs].count(OutputKind.NEW_VALUE) == 3
    assert traced.backward is not None and len(traced.backward.signature.outputs) == 2
    with torch.no_grad():
        assert aot_export(model, [torch.randn(4, 3)]).backward is None


def test_what_the_function_raises_comes_out() -> None:
    def broken(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        aot_function(broken, [torch.ones(2)])
