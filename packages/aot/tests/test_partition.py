"""What is kept between forward and backward: least bytes, the same gradients, and the choices that a user may force."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import as_tuple, check, one_node_graph

from fxloom_aot import Joint, MinCut, Partition, aot_graph, eager_compiler, export_graph, save_all
from fxloom_aot.functional.functional_log import inputs_of
from fxloom_aot.nests import values_of
from fxloom_aot.partitioning import mincut
from fxloom_aot.partitioning.partition import backward_only, needed_by
from fxloom_interfaces import telemetry
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.signature import InputKind

aten = torch.ops.aten


class Spy:
    """A partitioner that remembers what it was asked and what it answered."""

    def __init__(self, inner: Callable[[Joint], Partition]) -> None:
        self.inner = inner

    def __call__(self, joint: Joint) -> Partition:
        self.joint = joint
        self.part = self.inner(joint)
        return self.part

    @property
    def ops_saved(self) -> list[str]:
        origins = [self.joint.log.origins[id(value)] for value in self.part.saved]
        return [str(self.joint.log.calls[origin.call].op) if origin.call >= 0 else f"input {origin.placeholder}" for origin in origins]

    @property
    def bytes_saved(self) -> int:
        return sum(value.numel() * value.dtype.itemsize for value in self.part.saved)

    def runs_backward(self, op: Any) -> bool:
        return any(self.joint.log.calls[number].op is op for number in self.part.backward)


def export(fn: Callable[..., Any], inputs: list[Any], partitioner: Any, decompositions: Any = None) -> Spy:
    spy = Spy(partitioner)
    export_graph(one_node_graph(as_tuple(fn), len(inputs)), inputs, partitioner=spy, decompositions=decompositions)
    return spy


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def block(x: Any, w1: Any, w2: Any) -> Any:
    h = F.gelu(x @ w1)
    return torch.tanh(h.sin() @ w2).exp()


def block_inputs() -> list[Any]:
    return [leaf(8, 4), leaf(4, 16, seed=1), leaf(16, 4, seed=2)]


def test_a_chain_of_pointwise_calls_keeps_its_start_only() -> None:
    spy = export(lambda x: x.sin().cos().exp().tanh(), [leaf(64)], MinCut())
    assert spy.ops_saved == ["input 0"]
    assert export(lambda x: x.sin().cos().exp().tanh(), [leaf(64)], save_all).bytes_saved > 3 * spy.bytes_saved


def test_expensive_calls_run_once() -> None:
    spy = export(block, block_inputs(), MinCut())
    assert spy.joint.log.calls
    products = [n for n in spy.part.forward if spy.joint.log.calls[n].op is aten.mm.default]
    assert len(products) == 2 and not set(products) & set(spy.part.backward)
    assert spy.runs_backward(aten.sin.default), "the cheap call between them is computed again"


def test_a_reduction_is_kept_and_what_it_reduces_is_not() -> None:
    spy = export(lambda x: (x - x.exp().sum(-1, keepdim=True).log()).square(), [leaf(32, 32)], MinCut())
    assert "aten.sum.dim_IntList" in spy.ops_saved
    assert spy.bytes_saved <= 32 * 32 * 4 + 32 * 4


def test_the_mask_of_dropout_is_kept_as_booleans() -> None:
    def bernoulli(x: Any, p: float, generator: Any = None) -> Any:
        return (torch.rand(list(x.shape), device=x.device) < p).to(x.dtype)

    rules = {aten.bernoulli.p: bernoulli}
    from_forward = export(lambda x: F.dropout(x.sin(), 0.5).square(), [leaf(1000)], MinCut(), rules)
    seeded = [n for n in from_forward.part.backward if torch.Tag.nondeterministic_seeded in from_forward.joint.log.calls[n].op.tags]
    assert not seeded
    masks = [value for value in from_forward.part.saved if value.dtype is torch.bool]
    assert len(masks) == 1 and from_forward.bytes_saved <= 1000 * 4 + 1000


def test_parameters_cost_nothing() -> None:
    """What lives on anyway is taken rather than an intermediate of the same size."""

    def program(x: Any, w: Any) -> Any:
        return (w.sin() * x).cos()

    x, w = torch.randn(100), torch.nn.Parameter(torch.randn(100))
    spy = export(program, [x, w], MinCut())
    assert sorted(spy.ops_saved) == ["input 0", "input 1"] and spy.joint.static == {1}


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.25, 0.0])
def test_budget(budget: float) -> None:
    whole = export(block, block_inputs(), MinCut())
    spy = export(block, block_inputs(), MinCut(memory_budget=budget))
    inputs = sum(value.numel() * 4 for value in block_inputs())
    assert spy.bytes_saved <= max(budget * whole.bytes_saved, inputs)
    check(block, block_inputs, exact=False, partitioner=MinCut(memory_budget=budget))


def test_budget_out_of_range() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        MinCut(memory_budget=1.5)


def test_what_has_to_be_kept_is() -> None:
    spy = export(block, block_inputs(), MinCut(always_save=lambda call: call.op is aten.sin.default))
    assert not spy.runs_backward(aten.sin.default)
    assert "aten.sin.default" in spy.ops_saved


def test_same_graph_same_partition() -> None:
    first, second = (export(block, block_inputs(), MinCut()) for _ in range(2))
    assert first.part.forward == second.part.forward and first.part.backward == second.part.backward
    assert first.ops_saved == second.ops_saved and first.part.report == second.part.report


def test_report_says_what_and_why() -> None:
    written: list[Any] = []
    with telemetry.listen(written.append):
        spy = export(block, block_inputs(), MinCut())
    assert "aten.mm.default, runs once" in spy.part.report and "computed again" in spy.part.report
    assert "lives on anyway" not in spy.part.report


def test_calls_computed_again_come_just_before_their_use() -> None:
    def layers(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = torch.sin(x @ w)
        return x

    inputs = [leaf(8, 8), *(leaf(8, 8, seed=n) for n in range(4))]
    spy = export(layers, inputs, MinCut())
    calls = spy.joint.log.calls
    order = spy.part.backward
    fixed = backward_only(spy.joint)
    first_new = next(place for place, number in enumerate(order) if number in fixed)
    again = [place for place, number in enumerate(order) if number not in fixed]
    assert again and max(again) > first_new, [str(calls[number].op) for number in order]


def test_second_call_trains_like_the_first() -> None:
    inputs = block_inputs()
    gm = one_node_graph(as_tuple(block), 3)
    run = aot_graph(gm, inputs, compiler=eager_compiler, partitioner=MinCut(), verify_graphs=True)
    for _ in range(2):
        (out,) = run(*inputs)
        (expected,) = as_tuple(block)(*inputs)
        for ours, theirs in zip(
            torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


def test_saved_values_are_inputs_of_the_backward_graph() -> None:
    traced = export_graph(one_node_graph(as_tuple(block), 3), block_inputs(), partitioner=MinCut())
    assert traced.backward is not None
    kinds = [spec.kind for spec in traced.backward.signature.inputs]
    assert kinds.count(InputKind.SAVED) == len(kinds) - 1


# ---- against brute force --------------------------------------------------------------------------------------------

UNARY = [torch.sin, torch.exp, torch.tanh, torch.neg, torch.relu]


@st.composite
def programs(draw: Any) -> list[tuple[Any, ...]]:
    """Steps of a program over a growing list of 4 x 4 values that starts with two inputs."""
    steps = []
    for made in range(2, 2 + draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(["unary", "mul", "mm", "sum"]))
        left = draw(st.integers(0, made - 1))
        if kind == "unary":
            steps.append((draw(st.sampled_from(UNARY)), left))
        elif kind == "sum":
            steps.append((lambda value: value.sum(-1, keepdim=True).expand(4, 4) * 2, left))
        else:
            steps.append((torch.mul if kind == "mul" else torch.mm, left, draw(st.integers(0, made - 1))))
    return steps


def run_steps(steps: list[tuple[Any, ...]], *inputs: Any) -> Any:
    values = list(inputs)
    for fn, *places in steps:
        values.append(fn(*[values[place] for place in places]))
    return sum(value.sum() for value in values[2:]) * 1.0


@given(programs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_other_choice_is_cheaper(steps: list[tuple[Any, ...]]) -> None:
    inputs = [leaf(4, 4), leaf(4, 4, seed=1)]
    spy = export(lambda *given: run_steps(steps, *given), inputs, MinCut())
    joint, log = spy.joint, spy.joint.log
    fixed = frozenset(backward_only(joint))
    needed = list({id(value): value for value in needed_by(joint, fixed)}.values())
    ancestors = mincut._ancestors(log, needed)
    candidates = list({id(v): v for n in ancestors for v in values_of([log.calls[n].out])}.values())
    candidates += [value for value in log.placeholders if log.origins[id(value)].placeholder >= 0]
    if len(candidates) > 13:
        return

    def price(kept: tuple[Any, ...]) -> float:
        ids = {id(value) for value in kept}
        total = sum(mincut._price_of_keeping(joint, value) for value in kept)
        todo, seen = list(needed), set()
        while todo:
            value = todo.pop()
            if id(value) in ids:
                continue
            number = log.origins[id(value)].call
            if number < 0 or not mincut.may_run_again(log, number):
                return float("inf")
            if number not in seen:
                seen.add(number)
                total += mincut._price_of_computing(log, number)
                todo.extend(inputs_of(log, number))
        return total

    best = min(price(kept) for size in range(len(candidates) + 1) for kept in itertools.combinations(candidates, size))
    assert price(spy.part.saved) <= best * 1.01 + 1


@given(programs(), st.sampled_from([1.0, 0.5, 0.0]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_gradients_do_not_depend_on_the_partition(steps: list[tuple[Any, ...]], budget: float) -> None:
    def program(*inputs: Any) -> Any:
        return run_steps(steps, *inputs)

    check(program, lambda: [leaf(4, 4), leaf(4, 4, seed=1)], exact=False, partitioner=MinCut(memory_budget=budget))


def test_hooks_on_saved_tensors_see_what_is_kept_and_no_fakes() -> None:
    inputs = block_inputs()
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run = aot_graph(one_node_graph(as_tuple(block), 3), inputs, compiler=eager_compiler, partitioner=MinCut())
        assert not seen
        (out,) = run(*inputs)
    assert seen and all(type(tensor) is torch.Tensor for tensor in seen)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(block(*inputs).sum(), inputs))
