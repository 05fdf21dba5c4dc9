"""Grouped launches: independent elementwise kernels of one body run at once, whatever their sizes and layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from core_graphs import check, compiled, record

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import compile_graph
from fxloom_inductor_core.scheduler.grouping import generalize
from fxloom_interfaces.expr import symbol
from fxloom_interfaces.program import AllocateNumbers, GroupedLaunch, Launch

Tensors = list[torch.Tensor]
aten = torch.ops.aten


def several(*shapes: tuple[int, ...]) -> Tensors:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def steps_of(function: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[type, int]]:
    """(kind of launch, sets of arguments) of each launch; the results are compared with eager's."""
    launches = check(function, *inputs).program.launches()
    return [(type(step), len(step.sets) if isinstance(step, GroupedLaunch) else 1) for step in launches]


MIXED = several((3, 4), (5,), (2, 3, 2), (7,), (0, 3), (1, 1))


def update(*tensors: torch.Tensor) -> Tensors:
    return [(x * 2 + 1).tanh() for x in tensors]


def test_one_body_over_other_sizes_is_one_launch() -> None:
    assert steps_of(update, *MIXED) == [(GroupedLaunch, 5), (Launch, 1)]  # of no axes: that of one element


def test_bodies_and_types_that_differ_stay_apart() -> None:
    x, y, z = several((3,), (4,), (5,))
    assert steps_of(lambda a, b, c: [a + 1, b + 1, c + 2], x, y, z) == [(GroupedLaunch, 2), (Launch, 1)]
    assert steps_of(lambda a, b, c: [a + 1, b + 1, c + 1], x, y.double(), z) == [(GroupedLaunch, 2), (Launch, 1)]


def test_strides_and_offsets_are_sizes_too() -> None:
    a, b, c, d = several((4, 5), (3, 5), (7, 3), (6, 3))
    assert steps_of(lambda a, b, c, d: [a[1:] * b, c[1:] * d], a, b, c, d) == [(GroupedLaunch, 2)]
    pairs = [x for n in (3, 5, 8) for x in (torch.randn(n, n + 1), torch.randn(n + 1, n).t())]
    assert steps_of(lambda *x: [p * g for p, g in zip(x[::2], x[1::2], strict=True)], *pairs) == [(GroupedLaunch, 3)]


def test_folds_are_grouped() -> None:
    tensors = several((3, 4), (50, 7), (2, 3, 2), (90,), (5, 0))
    assert steps_of(lambda *x: [(v * v).sum().sqrt() for v in x], *tensors) == [(GroupedLaunch, 4), (Launch, 1)]  # 0 of nothing
    assert steps_of(lambda *x: [v.abs().amax(1) for v in x], *several((3, 4), (50, 7), (5, 600))) == [(GroupedLaunch, 3)]


def test_what_depends_on_a_group_comes_behind_it() -> None:
    def twice(*tensors: torch.Tensor) -> Tensors:
        products = [torch.mm((x * 2).tanh(), x) for x in tensors]
        return [(x - 1).sin() for x in products]

    assert steps_of(twice, *several((4, 4), (5, 5), (6, 6))) == [(GroupedLaunch, 3), (GroupedLaunch, 3)]


def test_a_chain_of_equal_bodies_is_no_group() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.mm(x, w).tanh()
        return x

    assert all(kind is Launch for kind, _ in steps_of(chain, *several((4, 4), (4, 4))))


def test_what_is_shared_is_not_taken_over() -> None:
    """All read one buffer that dies with them: none may write its result there."""

    def shared(*tensors: torch.Tensor) -> Tensors:
        base = torch.mm(tensors[0], tensors[0]) * 2
        return [base * x.sum() for x in tensors]

    check(shared, *several((6, 6), (6, 5), (6, 4)))


def test_large_buffers_are_not_made_before_their_turn() -> None:
    def casts(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.mm(x, (w * 2).tanh())
        return x

    small, large = several(*[(8, 8)] * 4), several((8, 600), *[(600, 600)] * 3)
    assert (GroupedLaunch, 3) in steps_of(casts, *small)
    assert all(kind is Launch for kind, _ in steps_of(casts, *large))


def test_a_plugin_without_grouped_launches_gets_kernels_one_by_one() -> None:
    capabilities = replace(REFERENCE.capabilities, fusions=REFERENCE.capabilities.fusions - {"grouped"})
    plugin = replace(REFERENCE, capabilities=capabilities)
    graph = compile_graph(record(update, *MIXED[:4]), codegens={"cpu": plugin}, store=None)
    assert [type(step) for step in graph.program.launches()] == [Launch] * 4
    for got, expected in zip(graph(list(MIXED[:4])), update(*MIXED[:4]), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_number_that_all_read_keeps_nobody_apart() -> None:
    """As a learning rate: loops over equally many elements merge because of what they share, but not because of a number."""

    def step(lr: torch.Tensor, *tensors: torch.Tensor) -> Tensors:
        return [x - lr * x.tanh() for x in tensors]

    tensors = several(*[(4, 3)] * 20, (5,), (6,))
    assert steps_of(step, torch.tensor(0.5), *tensors) == [(GroupedLaunch, 22)]


def test_numbers_become_sizes_in_order_of_appearance() -> None:
    kernel = dict(compiled(lambda x, y: x[1:].t() * y, *several((4, 5), (5, 3))).program.kernels).popitem()[1]
    made = generalize(kernel)
    assert made is not None
    assert set(made.kernel.sizes) == {f"n{number}" for number in range(len(made.sizes))}
    again = dict(compiled(lambda x, y: x[1:].t() * y, *several((7, 9), (9, 6))).program.kernels).popitem()[1]
    other = generalize(again)
    assert other is not None and other.kernel.digest() == made.kernel.digest() and other.sizes != made.sizes
    assert all(symbol(name) for name in made.kernel.sizes)


@pytest.mark.parametrize("function", [lambda x, i: x.argmax(), lambda x, i: x[i], lambda x, i: x.cumsum(0)], ids=["place", "index", "scan"])
def test_what_depends_on_places_is_not_general(function: Callable[..., Any]) -> None:
    for _, kernel in compiled(function, torch.randn(4), torch.tensor([1, 0])).program.kernels:
        assert generalize(kernel) is None


def test_numbers_are_allocated_at_once_and_never_become_outputs() -> None:
    def step(*tensors: torch.Tensor) -> Tensors:
        numbers, values = tensors[:4], tensors[4:]
        scales = [(n * 2).exp() for n in numbers]  # stored: an operation like this is not done at each element
        updated = [v * s * s.sin() for v, s in zip(values, scales, strict=True)]
        products = [torch.mm(v, v.t()) for v in updated]
        return [*products, *(aten.sum(v).exp() for v in products)]

    tensors = [*(torch.tensor(0.1 * n) for n in range(4)), *several((3, 4), (5, 2), (2, 3), (7, 7))]
    graph = check(step, *tensors)
    made = [s for s in graph.program.steps if isinstance(s, AllocateNumbers)]
    assert made
    results = graph(list(tensors))
    assert len({x.untyped_storage().data_ptr() for x in results}) == len(results)
    assert all(x.untyped_storage().nbytes() == x.numel() * x.element_size() for x in results)


def test_what_is_written_over_what_it_was_is_one_argument() -> None:
    def step(*tensors: torch.Tensor) -> Tensors:
        made = [torch.mm(x, x) for x in tensors]  # die in the step, so that it writes over them
        return [(x * 2).sin() for x in made]

    def as_integers(*tensors: torch.Tensor) -> Tensors:
        made = [torch.mm(x, x) for x in tensors]
        return [(x * 9).to(torch.int32) for x in made]  # of the same size, but another type

    for function, arguments in ((step, 1), (as_integers, 2)):
        graph = check(function, *several((4, 4), (5, 5), (6, 6)))
        (launch,) = graph.program.launches()
        assert isinstance(launch, GroupedLaunch) and {len(buffers) for buffers, _ in launch.sets} == {arguments}
