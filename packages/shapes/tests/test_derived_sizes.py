"""Sizes made of others that are 0 or 1 by chance: what a trace says holds for every size that its guards accept, and it does not
ask about 0 and 1 where the answer makes no difference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fxloom_interfaces.sources import LocalSource
from fxloom_shapes import EnvOptions, FakeMode, SymbolEnv
from fxloom_shapes.asking import Asker
from fxloom_shapes.context import TraceContext
from fxloom_shapes.fake import FakeTensor, make_fake
from fxloom_shapes.symbolize import DimPolicy, symbolize

Program = Callable[[Tensor], Tensor]


def trace(program: Program, hints: tuple[int, ...]) -> tuple[SymbolEnv, FakeTensor, FakeTensor]:
    """The environment, the fake argument with all sizes symbolic, and the fake result."""
    env = SymbolEnv(EnvOptions(duck=False))
    desc = symbolize(env, torch.empty(hints), LocalSource("x"), {dim: DimPolicy() for dim in range(len(hints))}).descriptor
    x = make_fake(desc)
    mode = FakeMode(env)
    with TraceContext(mode, env).activate(), mode, env.asked_by(Asker.OPERATOR):
        result = program(x)
    assert isinstance(result, FakeTensor)
    return env, x, result


def numbers(env: SymbolEnv, values: Any, point: tuple[int, ...]) -> tuple[int, ...]:
    named = {name: point[symbol.sources[0].dim] for name, symbol in env.symbols.items()}  # type: ignore[attr-defined]  # sizes
    return tuple(value if isinstance(value, int) else value.node.poly.value(named) for value in values)


def accepts(env: SymbolEnv, point: tuple[int, ...]) -> bool:
    for name, symbol in env.symbols.items():
        low, high = env.range_of(symbol)
        number = point[symbol.sources[0].dim]  # type: ignore[attr-defined]  # a size
        if (low is not None and number < low) or (high is not None and number > high):
            return False
    named = {name: point[symbol.sources[0].dim] for name, symbol in env.symbols.items()}  # type: ignore[attr-defined]  # sizes
    return all(guard.statement.holds(named) for guard in env.size_guards())


def check(program: Program, hints: tuple[int, ...], points: list[tuple[int, ...]]) -> int:
    """How many points are accepted; at each the trace has to be right."""
    env, given, result = trace(program, hints)
    accepted = 0
    for point in points:
        if not accepts(env, point):
            continue
        accepted += 1
        x = torch.empty(point)
        real = program(x)
        assert numbers(env, result.desc.size, point) == tuple(real.shape), (point, result.desc)
        assert numbers(env, result.desc.stride, point) == real.stride(), (point, result.desc, real.shape)
        assert numbers(env, [result.desc.offset], point) == (real.storage_offset(),), (point, result.desc)
        if real.untyped_storage().nbytes():
            shared = real.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert shared == (result.storage_token is given.storage_token), (point, result.desc)
    return accepted


#: programs that one trace serves at every size
ONE: dict[str, Program] = {
    "all but the first": lambda x: x[:, 1:] * 2,
    "all but the last, copied": lambda x: x[:, :-1].clone(),
    "from 4 on": lambda x: x[4:] * 2,
    "all but 4": lambda x: x[:-4] + 1,
    "last 4": lambda x: x[:, -4:] * x[:, -4:],
    "first 4, in a view": lambda x: (x[:, :4] + 1).view(-1),
    "two parts": lambda x: torch.cat([x[:4], x[4:]]),
    "shifted": lambda x: torch.cat([x.new_zeros(x.shape[0], 1, x.shape[2]), x[:, :-1]], 1),
    "sum of a difference": lambda x: (x[:, 1:] - x[:, :-1]).sum(1),
    "rows of a part": lambda x: (x[:, 1:] * 2).view(x.shape[0], -1),
    "cast": lambda x: x[:, 1:].double(),
    "compared": lambda x: x[:, 1:] > x[:, :-1],
}
SMALL = [*itertools.product((2, 3, 4, 5, 6, 8), (2, 3, 4, 5, 6), (2, 3))]


@pytest.mark.parametrize("first", [(4, 4, 3), (5, 5, 3), (6, 3, 3), (8, 2, 3)])
@pytest.mark.parametrize("name", ONE)
def test_one_trace_serves_all(name: str, first: tuple[int, ...]) -> None:
    assert check(ONE[name], first, SMALL) == len(SMALL)


def draw(source: random.Random) -> tuple[str, Program]:
    """A chain of views, copies and elementwise operators."""
    steps: list[tuple[str, Callable[[Tensor], Tensor]]] = []
    for _ in range(source.randint(1, 4)):
        axis, other, count = source.randrange(3), source.randrange(3), source.randint(1, 5)
        steps.append(
            source.choice(
                [
                    (f"narrowed({axis}, {count})", lambda x, a=axis, n=count: x.transpose(0, a)[n:].transpose(0, a)),
                    (f"ended({axis}, {count})", lambda x, a=axis, n=count: x.transpose(0, a)[:-n].transpose(0, a)),
                    (f"first({axis}, {count})", lambda x, a=axis, n=count: x.transpose(0, a)[:n].transpose(0, a)),
                    (f"last({axis}, {count})", lambda x, a=axis, n=count: x.transpose(0, a)[-n:].transpose(0, a)),
                    (f"stepped({axis})", lambda x, a=axis: x.transpose(0, a)[::2].transpose(0, a)),
                    (f"transpose({axis}, {other})", lambda x, a=axis, b=other: x.transpose(a, b)),
                    ("mul", lambda x: x * 2),
                    ("neg", lambda x: x.neg()),
                    ("add", lambda x: x + x.clone()),
                    ("add transposed", lambda x: x + torch.empty(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)),
                    ("add row", lambda x: x + torch.empty(x.shape[2])),
                    ("clone", lambda x: x.clone()),
                    ("contiguous", lambda x: x.contiguous()),
                    ("reshape", lambda x: x.reshape(-1).view(x.shape)),
                    ("flat", lambda x: x.reshape(x.shape[0], -1).unsqueeze(1)),
                    ("cat", lambda x: torch.cat([x, x], 0)),
                    ("expand", lambda x: x[:1].expand(x.shape[0] + 1, x.shape[1], x.shape[2])),
                    ("double", lambda x: x.double()),
                ]
            )
        )

    def program(x: Tensor) -> Tensor:
        for _, step in steps:
            x = step(x)
        return x

    return " ".join(name for name, _ in steps), program


POINTS = [*itertools.product((2, 3, 5, 6), (2, 3, 4, 6), (2, 3, 5))]


@pytest.mark.parametrize("seed", range(8))
def test_any_size_that_is_accepted_has_the_trace(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(40):
        name, program = draw(source)
        hints = tuple(source.choice((2, 3, 4, 6, 7)) for _ in range(3))
        try:
            program(torch.empty(hints))
        except (RuntimeError, IndexError):
            continue
        try:
            check(program, hints, POINTS)
        except AssertionError as error:
            raise AssertionError(f"{name} at {hints}: {error}") from error
