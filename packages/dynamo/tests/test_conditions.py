"""`torch.cond` in a graph, and regions that choose kernels of attention: modes that hold for a part of a graph."""

import pytest
import torch
import torch.nn.functional as F
from counted import Count, compare, compared
from torch.nn.attention import SDPBackend, sdpa_kernel

from fxloom_dynamo import capture
from fxloom_interfaces import regions
from fxloom_interfaces.dialects import torch_dialect


def program(x, scale):
    found = torch.cond(x.sum() > 0, lambda x: (x * scale, x.sin()), lambda x: (x - scale, x.cos()), (x,))
    return {"found": found, "after": found[0] + 1}


def test_a_condition_is_one_node_with_two_bodies():
    x, scale = torch.ones(2), torch.full((2,), 3.0)
    count = Count(fullgraph=True)
    compiled = count(program)
    for value in (x, -x):
        expected, got = program(value, scale), compiled(value, scale)
        assert str(expected) == str(got)
    assert count.graphs == 1
    graph = capture(program, x, scale).graph
    torch_dialect.verify(graph)
    assert [node.target for node in graph.graph.nodes].count(regions.choose) == 1


@pytest.mark.parametrize(
    ("if_true", "why"),
    [
        (lambda x: x.view(-1), "that returns views"),
        (lambda x: x, "returns what it was given"),
        (lambda x: x[:1] * 2, "other shapes"),
        (lambda x: (x * 2,), "other shapes"),
        (lambda x: CALLS.append(1) or x * 2, "with a branch that"),
    ],
)
def test_branches_that_do_more_or_other_are_breaks(if_true, why):
    found = capture(lambda x: x.sum() > 0 and 1, torch.ones(2))  # one break of another kind
    assert len(found.breaks) == 1

    def refused(x):
        return torch.cond(x.sum() > 0, if_true, lambda x: x + 1, (x,))

    with pytest.raises(Exception, match=why):
        Count(fullgraph=True)(refused)(torch.ones(2))


CALLS = []


def test_a_condition_of_tensors_that_require_grad_is_a_break():
    with pytest.raises(Exception, match="of tensors that require grad"):
        Count(fullgraph=True)(program)(torch.ones(2), torch.ones(2, requires_grad=True))


def chooses_kernels(compiled):
    query = torch.arange(2 * 2 * 4 * 8.0).reshape(2, 2, 4, 8) / 100

    def attend(query):
        allowed = [torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()]
        with sdpa_kernel(SDPBackend.MATH):
            allowed += [torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()]
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                inner = F.scaled_dot_product_attention(query, query, query)
            outer = F.scaled_dot_product_attention(query, query, query)
        return inner, outer, F.scaled_dot_product_attention(query, query, query), allowed

    run, found = compiled(attend), []
    for flash in (True, True, False):
        torch.backends.cuda.enable_flash_sdp(flash)
        *tensors, allowed = run(query.requires_grad_())
        tensors[0].sum().backward()
        names = [tensor.grad_fn.name() for tensor in tensors]
        found.append((names, [tensor.tolist() for tensor in tensors], allowed, torch.backends.cuda.flash_sdp_enabled()))
    torch.backends.cuda.enable_flash_sdp(True)
    return found


@pytest.mark.cpu_only("CUDA's kernels of attention take no such sizes")
def test_kernels_of_attention_are_chosen_for_a_part_of_a_graph():
    compare(chooses_kernels, 2)


@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_the_choice_is_put_back_when_the_graph_raises():
    def fails(query, index):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(query, query, query)[index]

    with pytest.raises(IndexError):
        Count()(fails)(torch.rand(1, 1, 2, 4), torch.tensor([7]))
    assert torch.backends.cuda.flash_sdp_enabled()


class Half(torch.autograd.Function):
    """Wants to know which of its results nothing depends on."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.shape = x.shape
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        found = torch.zeros(ctx.shape)
        if first is not None:
            found = found + first * 2
        return found + 100 if second is None else found + second * 3


def takes_missing_gradients(compiled):
    run, found = compiled(lambda x: Half.apply(x * 1)), []
    for use in (lambda a, b: a, lambda a, b: b, lambda a, b: a + b):
        x = torch.ones(2, requires_grad=True)
        use(*run(x)).sum().backward()
        found.append(x.grad.tolist())
    return found


def test_gradients_may_be_missing_in_a_custom_function():
    assert compared(takes_missing_gradients).breaks == []
