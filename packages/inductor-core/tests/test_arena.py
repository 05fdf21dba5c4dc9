"""Small buffers that only kernels see get places in one allocation; others are tensors."""

from dataclasses import replace

import pytest
import torch
from core_graphs import compiled

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core.wrapper.arena import plan_arena
from fxloom_interfaces.program import Allocate


def planned(program, *inputs, arguments="address"):
    """The program of `program` on `inputs`, and its arena for kernels that take such arguments."""
    plugin = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, arguments=arguments))
    found = compiled(program, *inputs).program
    return found, plan_arena(found, {"cpu": plugin})


def columns_and_rows(x, y):
    a = (x.sum(1, keepdim=True) * 2).exp()
    b = (y - a).amax(0, keepdim=True)
    return (y * b).sum(1) + a.squeeze(1)


INPUTS = torch.randn(30, 40), torch.randn(30, 50)


def test_what_only_kernels_see_has_a_place():
    program, arena = planned(columns_and_rows, *INPUTS)
    made = {step.name for step in program.steps if isinstance(step, Allocate)}
    (result,) = program.steps[-1].values
    assert made - set(arena.places) == {result.name} and len(arena.places) >= 2
    places = {place for place in arena.places.values()}
    assert all(offset % 64 == 0 and offset < arena.sizes["cpu"] for _, offset in places)


def test_buffers_that_share_memory_share_a_place_and_others_do_not():
    program, arena = planned(columns_and_rows, *INPUTS)
    roots = {step.name: step.reuse for step in program.steps if isinstance(step, Allocate)}
    for name, reuse in roots.items():
        if reuse in arena.places:
            assert arena.places[name] == arena.places[reuse]
    fresh = [arena.places[name] for name, reuse in roots.items() if reuse is None and name in arena.places]
    assert len(set(fresh)) == len(fresh)


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (lambda x, w: (torch.relu(x.exp() @ w), x + 1), (torch.randn(8, 8), torch.randn(8, 8))),
        (lambda x: (x.sum(0) * x).amax(1), (torch.randn(2, 1 << 17),)),
    ],
    ids=["libraries and the caller look", "large"],
)
def test_others_are_tensors(program, inputs):
    assert planned(program, *inputs)[1].places == {}


def test_nothing_has_a_place_where_kernels_take_tensors():
    assert planned(columns_and_rows, *INPUTS, arguments="tensor")[1].places == {}
