"""Custom operators with fake kernels of their own, sizes that these ask for, and tensors whose values are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


@torch.library.custom_op("fxloom_tests::places", mutates_args=())
def places(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x).contiguous()


@places.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty([count, x.dim()], dtype=torch.int64)


@torch.library.custom_op("fxloom_tests::parts", mutates_args=())
def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[x > 0].clone(), x[x <= 0].clone()


@parts.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    context = torch.library.get_ctx()
    return x.new_empty([context.new_dynamic_size(max=x.numel())]), x.new_empty([context.new_dynamic_size(min=0)])


@torch.library.custom_op("fxloom_tests::longer", mutates_args=())
def longer(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.cat([x, x.new_zeros(n, *x.shape[1:])])


@longer.register_fake
def _(x: torch.Tensor, n: int) -> torch.Tensor:
    return x.new_empty([x.shape[0] + n, *x.shape[1:]])


def both_parts(x: Any) -> Any:
    first, second = parts(x)
    return first.sum() + 1, second * 2


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a size that it asks for": lambda x: places(x) * 2,
    "two sizes": both_parts,
    "a size made of others": lambda x: longer(x, 3) * 2 + 1,
    "data with sizes in it": lambda x: x.sum() + torch.tensor([[x.shape[0], 1], [2, x.shape[1]]]).sum(),
    "data read from a tensor": lambda x: torch.tensor([x.sum().item(), 2.0]) + torch.tensor(x.shape[0]),
    "a number of known value": lambda x: x * torch.tensor([2, 3]).max().item() + int(torch.arange(5).sum()),
    "a list of known values": lambda x: torch.split(x, torch.tensor([1, 2]).tolist(), 1)[1] * torch.linspace(0, 1, 3).tolist()[1],
    "a known mask": lambda x: x[:, torch.tensor([True, False, True])] + 1,
    "known repeats": lambda x: torch.repeat_interleave(x, torch.tensor([1, 2, 1]), dim=1),
    "a known condition": lambda x: x + 1 if torch.tensor(3) > 2 else x - 1,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_sizes(name: str, backend: str) -> None:
    fxloom.reset()
    compiled = fxloom.compile(PROGRAMS[name], backend=backend, dynamic=True, options=OPTIONS)
    for n in (5, 7, 9):
        x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
        torch.testing.assert_close(compiled(x), PROGRAMS[name](x))
    stats = fxloom.stats()
    assert (stats.graphs, stats.graph_breaks) == (1, 0), stats.break_reasons


def test_a_size_that_depends_on_values_is_a_break_unless_asked_for() -> None:
    fxloom.reset()
    x = torch.randn(5, 3)
    torch.testing.assert_close(fxloom.compile(PROGRAMS["a size that it asks for"], backend="eager")(x), places(x) * 2)
    assert {reason.key for reason in fxloom.stats().break_reasons} == {"data_dependent"}


def test_what_is_written_to_is_not_known_any_more() -> None:
    def program(x: Any) -> Any:
        flags = torch.zeros(2)
        flags[0] = x.sum()
        return x + 1 if flags[0] > 0 else x - 1

    compiled = fxloom.compile(program, backend="eager")
    for sign in (1.0, -1.0):
        x = torch.ones(3) * sign
        torch.testing.assert_close(compiled(x), program(x))


# --- operators that write in place ------------------------------------------------------------------------------------

IN_PLACE = torch.library.Library("fxloom_tests_in_place", "DEF")
for _schema, _kernel, _fake in [
    ("add_(Tensor(a!) x, Tensor y) -> ()", lambda x, y: (x.add_(y), None)[1], lambda x, y: None),
    ("inc_(Tensor(a!) x) -> Tensor(a!)", lambda x: x.add_(1), lambda x: x),
    ("both(Tensor x, Tensor(a!) o) -> Tensor", lambda x, o: (o.copy_(x * 2), x + 1)[1], lambda x, o: torch.empty_like(x)),
    ("each(Tensor(a!)[] xs) -> ()", lambda xs: [x.add_(1) for x in xs] and None, lambda xs: None),
    ("maybe(Tensor x, Tensor(a!)? y) -> Tensor", lambda x, y: (x * 2, y is not None and y.add_(1))[0], lambda x, y: torch.empty_like(x)),
]:
    IN_PLACE.define(_schema)
    _name = _schema.partition("(")[0]
    IN_PLACE.impl(_name, _kernel, "CPU")
    IN_PLACE.impl(_name, _fake, "Meta")
in_place = torch.ops.fxloom_tests_in_place


@torch.library.custom_op("fxloom_tests::sine_into", mutates_args={"y"})
def sine_into(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x.sin())


WRITING: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "an input": lambda x, y: (in_place.add_(x, y), x * 2)[1],
    "and returned": lambda x, y: in_place.inc_(x) * y,
    "beside a result": lambda x, y: (in_place.both(x, y) * 2, y * 1),
    "a list": lambda x, y: (in_place.each([x, y]), x + y)[1],
    "one that may be absent": lambda x, y: (in_place.maybe(x, y), in_place.maybe(x, None), y * 1),
    "a view": lambda x, y: (sine_into(x[:2], y[:2]), sine_into(x.t()[2:], y.t()[2:]), y * 2)[2],
    "memory of its own": lambda x, y: _into_new(x),
    "slices": lambda x, y: _into_slices(x),
}


def _into_new(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.empty_like(x)
    sine_into(x, y)
    return y.view(-1) * 2, y


def _into_slices(x: torch.Tensor) -> torch.Tensor:
    parts = torch.zeros(2, *x.shape)
    sine_into(x, parts[0])
    sine_into(x * 2, parts[1])
    return parts.sum(0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", WRITING)
def test_operators_that_write_in_place_stay_in_the_graph(name: str, backend: str) -> None:
    fxloom.reset()
    program = WRITING[name]
    run = fxloom.compile(program, backend=backend, fullgraph=True)
    for n in (4, 6, 5):
        given = torch.randn(n, n), torch.randn(n, n)
        expected_args, got_args = ([t.clone() for t in given] for _ in range(2))
        expected, got = program(*expected_args), run(*got_args)
        torch.testing.assert_close((got, got_args), (expected, expected_args))
    assert fxloom.stats().compiles == 2


@torch.library.custom_op("fxloom_tests::positive", mutates_args=())
def positive(x: torch.Tensor) -> int:
    return int((x > 0).sum())


@positive.register_fake
def _(x: torch.Tensor) -> int:
    return torch.library.get_ctx().new_dynamic_size()


@torch.library.custom_op("fxloom_tests::extent", mutates_args=())
def extent(x: torch.Tensor, n: int) -> int:
    return x.shape[0] * n


@extent.register_fake
def _(x: torch.Tensor, n: int) -> int:
    return x.shape[0] * n


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "as a size": lambda x: torch.zeros(positive(x)) + 1,
    "as a factor": lambda x: x * positive(x) + positive(x * -1),
    "returned": lambda x: (x * 2, positive(x)),
    "made of a size": lambda x: x * extent(x, 3),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_custom_operator_that_gives_a_number(name: str, backend: str, counters_at_zero: None) -> None:
    program = NUMBERS[name]
    compiled = fxloom.compile(program, backend=backend, options=OPTIONS)
    for size in (4, 5, 3, 7):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), program(x))
    stats = fxloom.stats()
    assert (stats.compiles, stats.graph_breaks) == (2, 0)
    assert backend == "aot_eager" or name == "made of a size" or stats.fallbacks


def test_nothing_of_a_capture_stays_in_force() -> None:
    """A symbol that is made within an operator: its kernels for symbolic sizes are not left on for the rest of the process."""
    x = torch.ones(10, requires_grad=True)
    before = torch.dropout(x, 0.4, True).grad_fn
    compiled = fxloom.compile(NUMBERS["as a size"], backend="aot_eager", options=OPTIONS)
    for size in (4, 5):
        compiled(torch.randn(size))
    after = torch.dropout(x, 0.4, True).grad_fn
    assert before is not None and after is not None and after.name() == before.name()
