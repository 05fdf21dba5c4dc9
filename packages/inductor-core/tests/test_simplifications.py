"""Simplifications, equal calls: what goes, what has to stay, and that every bit of the results is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from core_graphs import compiled, record
from torch import Tensor

from fxloom_inductor_core import InductorOptions
from fxloom_inductor_core.passes.dead_calls import remove_dead_calls
from fxloom_inductor_core.passes.equal_calls import merge_equal_calls
from fxloom_inductor_core.passes.simplifications import holds, simplify
from fxloom_interfaces.dialects.aten_dialect import verify

OPTIONS = InductorOptions()
SPECIAL = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), 1e-45]).reshape(2, 4)
WHOLE = torch.arange(-4, 4).reshape(2, 4)
HALF = SPECIAL.to(torch.bfloat16)


def simplified(function: Callable[..., Any], *inputs: Tensor, options: InductorOptions = OPTIONS) -> tuple[torch.fx.GraphModule, list[str]]:
    """The graph after the passes, which leave nothing more to do, and its operators."""
    gm = record(function, *inputs)
    before = gm.graph.output_node().args
    simplify(gm.graph, options)
    remove_dead_calls(gm.graph, options)
    assert not simplify(gm.graph, options)
    verify(gm)
    assert before is not None
    return gm, [node.target._opname for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def bits(x: Tensor) -> list[Any]:
    """Elements as text, which tells 0.0 from -0.0 and takes NaN for equal to NaN."""
    return [repr(item) for item in x.flatten().tolist()]


GO: dict[str, tuple[Callable[..., Any], Tensor, list[str]]] = {
    "x * 1": (lambda x: (x * 1).sin(), SPECIAL, ["sin"]),
    "x / 1": (lambda x: (x / 1.0).sin(), SPECIAL, ["sin"]),
    "x ** 1": (lambda x: (x**1).sin(), SPECIAL, ["sin"]),
    "x + -0.0": (lambda x: (x + -0.0).sin(), SPECIAL, ["sin"]),
    "x - 0": (lambda x: (x - 0).sin(), SPECIAL, ["sin"]),
    "n + 0": (lambda x: (x + 0) * 3, WHOLE, ["mul"]),
    "n * 1": (lambda x: (x * 1) * 3, WHOLE, ["mul"]),
    "- -x": (lambda x: (-(-x)).sin(), SPECIAL, ["sin"]),
    "not not": (lambda x: (x > 0).logical_not().logical_not().float(), SPECIAL, ["gt", "_to_copy"]),
    "~~n": (lambda x: (~~x) * 3, WHOLE, ["mul"]),
    "where(c, x, x)": (lambda x: torch.where(x > 0, x, x).sin(), SPECIAL, ["sin"]),
    "cat of one": (lambda x: torch.cat([x]).sin(), SPECIAL, ["sin"]),
    "expand of expand": (lambda x: x[:1].expand(3, 4).expand(2, 3, 4).sin(), SPECIAL, ["slice", "expand", "sin"]),
    "a whole slice": (lambda x: torch.ops.aten.slice.Tensor(x, 1, 0, 9).sin(), SPECIAL, ["sin"]),
    "a view of the same sizes": (lambda x: x.view(2, 4).sin(), SPECIAL, ["sin"]),
    "squeeze of nothing": (lambda x: x.squeeze(1).sin(), SPECIAL, ["sin"]),
    "to more bits and back": (lambda x: x.double().float().sin(), SPECIAL, ["sin"]),
    "half to more bits and back": (lambda x: x.float().bfloat16().sin(), HALF, ["sin"]),
    "two casts to more bits": (lambda x: x.float().double().sin(), HALF, ["_to_copy", "sin"]),
    "bool there and back": (lambda x: (x > 0).long().bool().logical_not(), SPECIAL, ["gt", "logical_not"]),
    "a copy of a copy": (lambda x: x.t().contiguous().t().contiguous().view(8).sin(), SPECIAL, ["view", "sin"]),
    "a copy of a copy, elsewhere": (
        lambda x: x.t().clone(memory_format=torch.contiguous_format).unsqueeze(0).clone(memory_format=torch.contiguous_format).sin(),
        SPECIAL, ["t", "unsqueeze", "clone", "sin"],
    ),
    "axes put back": (lambda x: x.t().transpose(0, 1).sin(), SPECIAL, ["sin"]),
    "axes put in order twice": (lambda x: x.view(2, 2, 2).permute(1, 2, 0).permute(1, 2, 0).sin(), SPECIAL, ["view", "permute", "sin"]),
}  # fmt: skip

STAY: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "x + 0 makes 0.0 of -0.0": (lambda x: (x + 0).reciprocal(), SPECIAL),
    "x - -0.0 too": (lambda x: (x - -0.0).reciprocal(), SPECIAL),
    "x * 1.0 of whole numbers is a float": (lambda x: (x * 1.0).sin(), WHOLE),
    "a flag + 0 is a number": (lambda x: ((x > 0) + 0) * 3, WHOLE),
    "infinite complex numbers": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(2, 2, 2)) * 1), SPECIAL),
    "to fewer bits and back": (lambda x: x.bfloat16().float().sin(), SPECIAL),
    "of long to float and back": (lambda x: x.float().long() * 3, WHOLE),
    "a part": (lambda x: x[:, 1:4].sin(), SPECIAL),
    "a transposed square": (lambda x: x.view(2, 2, 2).transpose(1, 2).sin(), SPECIAL),
}


@pytest.mark.parametrize("case", GO)
def test_what_changes_nothing_goes(case: str) -> None:
    function, x, left = GO[case]
    gm, operators = simplified(function, x)
    assert operators == left
    assert bits(gm(x)[0]) == bits(function(x))
    (got,) = compiled(function, x)([x])
    assert (got.dtype, got.shape, got.stride()) == ((expected := function(x)).dtype, expected.shape, expected.stride())


@pytest.mark.parametrize("case", STAY)
def test_what_changes_something_stays(case: str) -> None:
    function, x = STAY[case]
    gm, operators = simplified(function, x)
    assert operators == [node.target._opname for node in record(function, x).graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert bits(gm(x)[0]) == bits(function(x))


def test_fast_numerics_drop_a_cast_to_fewer_bits_and_back() -> None:
    _, operators = simplified(lambda x: x.bfloat16().float().sin(), SPECIAL, options=InductorOptions(numerics="fast"))
    assert operators == ["sin"]


@pytest.mark.parametrize("narrow", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_type_holds_another_if_all_its_numbers_come_back(narrow: torch.dtype, wide: torch.dtype) -> None:
    if narrow is torch.bool:
        every = torch.tensor([False, True])
    elif narrow.itemsize == 1:
        every = torch.arange(256, dtype=torch.uint8).view(narrow)
    else:
        every = torch.arange(1 << 16).to(torch.int16).view(narrow)
    if holds(wide, narrow):
        assert torch.equal(every.to(wide).to(narrow).nan_to_num(7) if every.is_floating_point() else every.to(wide).to(narrow), every.nan_to_num(7) if every.is_floating_point() else every)
        assert torch.equal(every.to(wide).double().nan_to_num(7), every.double().nan_to_num(7))
    elif not every.is_floating_point() and not wide.is_floating_point:
        assert not torch.equal(every.to(wide).long(), every.long())


ALIASES: dict[str, Callable[[Tensor], Any]] = {
    "an input times 1": lambda x: x * 1,
    "a view of an input times 1": lambda x: (x * 1).t(),
    "twice the same": lambda x: (x + 1, x + 1),
    "the same, and a view of it": lambda x: (x + 1, (x + 1).t()),
    "x and -(-x)": lambda x: (y := x.sin(), -(-y)),
    "a copy of what is returned": lambda x: (y := x.sin(), y.double().float()),
    "a copy of an input": lambda x: x.t().contiguous().t().contiguous(),
}


@pytest.mark.parametrize("case", ALIASES)
def test_results_of_their_own_stay_that(case: str) -> None:
    x = SPECIAL.clone()
    results = compiled(ALIASES[case], x)([x])
    addresses = [one.untyped_storage().data_ptr() for one in (x, *results)]
    assert len(set(addresses)) == len(addresses)


def test_equal_calls_are_made_once_if_they_are_pure() -> None:
    gm = record(lambda x: (x.sin() * x.sin(), x.bernoulli() + x.bernoulli(), x.mul(1) + x.mul(1.0), x.sum(0) + x.sum((0,))), SPECIAL.sigmoid().nan_to_num(0.5))
    assert merge_equal_calls(gm.graph, OPTIONS) == 2  # sin, sum: 1 is not 1.0
    verify(gm)
    assert not merge_equal_calls(gm.graph, OPTIONS)


def test_what_became_equal_is_merged_by_the_pipeline() -> None:
    found = compiled(lambda x: (x * 1).sin() + x.sin(), SPECIAL.nan_to_num(0.5))
    ((_, kernel),) = found.program.kernels
    assert kernel.text().count("sin(") == 1
