"""Custom autograd functions in graphs: one node, the author's gradient, and breaks where they do more."""

import pytest
import torch

from fxloom_dynamo import capture, optimize
from fxloom_interfaces.dialects import torch_dialect

CALLS = []
WIDE = False


class Cube(torch.autograd.Function):
    """Its gradient is wrong on purpose: whoever differentiates forward instead is found out."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3 * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * ctx.factor * 100, None


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * (5.0 if WIDE else 2.0), x.argsort()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        return grad * 7


class Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        CALLS.append(1)
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        return grad


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize(
    "program", [lambda x: Cube.apply(x, 3.0).sin() + 1, lambda x: Pair.apply(x * 2)[0].cos()], ids=["cube", "pair"]
)
def test_one_graph_with_the_authors_gradient(program):
    x = torch.randn(5, requires_grad=True)
    expected = torch.autograd.grad(program(x).sum(), x)[0]
    found = capture(program, x)
    torch_dialect.verify(found.graph)
    assert not found.breaks
    assert found.op_count <= 5
    assert torch.equal(torch.autograd.grad(found.result.sum(), x)[0], expected)


def test_marks_of_outputs_are_kept():
    values, order = optimize(fullgraph=True)(lambda x: Pair.apply(x))(torch.randn(4, requires_grad=True))
    assert values.requires_grad
    assert not order.requires_grad


def test_what_forward_reads_is_guarded(monkeypatch):
    frames = []
    compiled = optimize(on_capture=frames.append)(lambda x: Pair.apply(x)[0])
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(compiled(x), x * 2)
    monkeypatch.setitem(globals(), "WIDE", True)
    assert torch.equal(compiled(x), x * 5)
    assert len(frames) == 2


@pytest.mark.parametrize("function", [Loud, InPlace])
def test_more_than_tensors_is_a_break(function):
    CALLS.clear()
    x = torch.ones(3, requires_grad=True)
    found = capture(lambda x: function.apply(x * 1) * 2, x)
    assert found.breaks
    assert torch.equal(found.result, (x + 1) * 2 if function is Loud else x * 4)
    assert CALLS == ([1] if function is Loud else [])
