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
    # the loss is computed from another result, so there are two nodes of autograd, each with its backward graph
    assert [signature.backward for _, signature in compiler.graphs] == [False, True, True]


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


def written(a: Any, b: Any) -> Any:
    a.add_(1)
    return a * b


def test_arguments_that_share_memory_unlike_the_examples_are_refused() -> None:
    compiled = aot_function(written, [torch.ones(2), torch.zeros(2)])
    z = torch.ones(3)
    with pytest.raises(TypeError, match=r"argument 1 is in the memory of argument 0, 0 bytes after it; the example shares no memory"):
        compiled(z[:2], z[:2])
    with pytest.raises(TypeError, match="4 bytes after it"):
        compiled(z[:2], z[1:])
    assert torch.equal(z, torch.ones(3))
    assert torch.equal(compiled(z[1:], torch.full((2,), 3.0)), torch.full((2,), 6.0))

    compiled = aot_function(written, [z[:2], z[1:]])
    with pytest.raises(TypeError, match=r"argument 1 shares no memory .*4 bytes"):
        compiled(torch.ones(2), torch.ones(2))
    other, same = torch.arange(3.0), torch.arange(3.0)
    assert torch.equal(compiled(other[:2], other[1:]), written(same[:2], same[1:])) and torch.equal(other, same)


def test_what_is_only_read_may_share_memory() -> None:
    compiled = aot_function(lambda a, b: a * b, [torch.ones(2), torch.ones(2)])
    z = torch.full((2,), 3.0)
    assert torch.equal(compiled(z, z), z * z)


def test_examples_that_are_one_tensor_have_to_stay_one() -> None:
    z = torch.ones(2)
    compiled = aot_function(lambda a, b: a * b, [z, z])
    three = torch.full((2,), 3.0)
    assert torch.equal(compiled(three, three), three * three)
    with pytest.raises(TypeError, match="arguments 0 and 1 are two tensors; they were one"):
        compiled(torch.ones(2), torch.ones(2))


def test_a_place_in_memory_that_the_graph_knows() -> None:
    whole = torch.arange(6.0)
    compiled = aot_function(lambda a: a.as_strided((2,), (1,), 1) + 0, [whole[1:3]])
    assert torch.equal(compiled(whole[1:3]), torch.tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="other places in their memory"):
        compiled(whole[2:4])


def test_modes_of_the_call_are_those_of_the_trace() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with torch.no_grad():
        compiled = aot_function(lambda x: x @ x, [x])
        assert not compiled(x).requires_grad
    with pytest.raises(RuntimeError, match="grad mode on"):
        compiled(x)
    compiled = aot_function(lambda x: x @ x, [x])
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="autocast of cpu is torch.bfloat16; it was None"):
        compiled(x)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(RuntimeError, match="default dtype is torch.float64"):
            compiled(x)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_module_in_another_mode_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(1.0))
    x = torch.ones(1, 2)
    step = aot_module(model, [x])
    assert not step(x).any()
    model[1].eval()
    with pytest.raises(RuntimeError, match="training of module '1' is False; it was True"):
        step(x)
    model.train()
    assert not step(x).any()


def test_keyword_arguments() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, *, by: Any, power: int = 1) -> Any:
            return (x * by) ** power

    x, by = torch.ones(2), torch.full((2,), 3.0)
    run = aot_module(Scaled(), [x], {"power": 2, "by": by})
    assert torch.equal(run(x, by=by, power=2), torch.full((2,), 9.0))
    with pytest.raises(TypeError, match="it was 2"):
        run(x, by=by, power=3)
    with pytest.raises(TypeError, match="nested as"):
        run(x, by=by)
    assert aot_export(Scaled(), [x], {"by": by}).backward is None


@pytest.mark.parametrize(
    ("constant", "other"),
    [(float("nan"), 1.0), (0.0, -0.0), (complex(0.0, -0.0), 0j), (1, True), ("a", "b"), (None, 1)],
)
def test_constants_are_compared_to_the_bit(constant: Any, other: Any) -> None:
    compiled = aot_function(lambda x, n: x + 1, [torch.ones(2), constant])
    assert torch.equal(compiled(torch.ones(2), copy.copy(constant)), torch.full((2,), 2.0))
    with pytest.raises(TypeError, match="is a constant"):
        compiled(torch.ones(2), other)


@pytest.mark.cpu_only("arrays of NumPy are tensors on the CPU")
def test_arrays_are_constants() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(2, dtype="float32")
    compiled = aot_function(lambda x, n: x + torch.from_numpy(n), [torch.ones(2), array])
    assert torch.equal(compiled(torch.ones(2), numpy.ones(2, dtype="float32")), torch.full((2,), 2.0))
    array[0] = 5
    for other in (array, numpy.ones(3, dtype="float32"), numpy.ones(2)):
        with pytest.raises(TypeError, match="is a constant"):
            compiled(torch.ones(2), other)


def test_a_tensor_of_another_layout_is_refused() -> None:
    with pytest.raises(TypeError, match="sparse_coo"):
        aot_function(lambda x: x * 2, [torch.eye(2).to_sparse()])
    z = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(TypeError, match="conjugate"):
        aot_function(lambda z: z * 2, [z])(z.conj())
