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

from fxloom_interfaces.sources import LocalSource, SizeSource
from fxloom_shapes import EnvOptions, FakeMode, SymbolEnv
from fxloom_shapes.expressions.polynomials import Atom, Poly, apply, const, of_atom, total
from fxloom_shapes.expressions.statements import relation
from fxloom_shapes.fake.symbolize import DimPolicy, symbolize
from fxloom_shapes.fake.tensor import FakeTensor, make_fake
from fxloom_shapes.propagation.context import TraceContext
from fxloom_shapes.solver.constraints import ConstraintSolver
from fxloom_shapes.symbols.options import QueryOrigin

Program = Callable[[Tensor], Tensor]


def trace(program: Program, hints: tuple[int, ...]) -> tuple[SymbolEnv, FakeTensor, FakeTensor]:
    """The environment, the fake argument with all sizes symbolic, and the fake result."""
    env = SymbolEnv(EnvOptions(duck=False))
    desc = symbolize(env, torch.empty(hints), LocalSource("x"), {dim: DimPolicy() for dim in range(len(hints))}).descriptor
    x = make_fake(desc)
    mode = FakeMode(env)
    with TraceContext(mode, env).activate(), mode, env.queried_by(QueryOrigin.OPERATOR):
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


# --- quotients and remainders of quotients and remainders -----------------------------------------------------------------


def symbols(**hints: int) -> tuple[SymbolEnv, list[Any]]:
    env = SymbolEnv(EnvOptions(duck=False))
    return env, [env.create(hint, SizeSource(LocalSource(name), "size", 0)) for name, hint in hints.items()]


def text(number: Any) -> str:
    return str(number.node.poly)


def test_halving_again_and_again_is_one_quotient() -> None:
    _, (up,) = symbols(s=27)
    down = padded = up
    for stage in range(1, 6):
        up, down = (up + 1) // 2, down // 2
        padded = (padded + padded % 2) // 2
        assert text(up) == text(padded)
        assert len(up.node.poly.terms) == 1 and text(down) == f"FloorDiv(s0, {2**stage})"


def test_filling_up_and_taking_away_give_short_terms() -> None:
    _, (s,) = symbols(s=27)
    up = (s + 1) // 2
    assert text(s - s // 2) == text(up)
    assert text(s - up) == text(s // 2)
    assert text(s // 2 + up) == "s0"
    assert text(s + s % 2) == text(up * 2)
    assert text(s + (-s) % 4) == text((s + 3) // 4 * 4) == text(-((-s) // 4) * 4)


def test_three_stages_of_windows_and_merging_ask_little() -> None:
    """What pads, windows and patch merging of a Swin transformer do with sizes; its terms used to double with each stage."""
    env, (height, width) = symbols(h=27, w=29)
    for _ in range(3):
        for extent in (height, width):
            filled = extent + (4 - extent % 4) % 4
            assert filled // 4 * 4 == filled
            assert len(filled.node.poly.terms) == 1
        height, width = (height + height % 2) // 2, (width + width % 2) // 2
        assert len((height * width).node.poly.terms) == 1
    assert len(env.solver._lower) < 400  # bounds worked out


@pytest.mark.parametrize("seed", range(4))
def test_simplifying_never_changes_a_value(seed: int) -> None:
    source = random.Random(seed)
    atoms = [Atom("", (), name, rank) for rank, name in enumerate("ab")]

    def draw_poly(depth: int) -> Poly:
        if depth == 0 or source.random() < 0.2:
            return of_atom(source.choice(atoms)) if source.random() < 0.8 else const(source.randint(-3, 5))
        a, divisor = draw_poly(depth - 1), const(source.randint(2, 4))
        kind = source.choice(["FloorDiv", "Mod", "+", "-", "*", "Min", "Max", "halves", "halves"])
        if kind in ("FloorDiv", "Mod"):
            return apply(kind, a, divisor)
        two = const(2)
        if kind == "halves":
            return source.choice(
                [
                    a - apply("FloorDiv", a, two),
                    a + apply("Mod", a, two),
                    apply("FloorDiv", a + const(1), two),
                    a + apply("Mod", -a, divisor),
                ]
            )
        b = draw_poly(depth - 1)
        return {"+": a + b, "-": a - b, "*": a * b}.get(kind) or apply(kind if kind in ("Min", "Max") else "Min", a, b)

    for _ in range(400):
        facts = ConstraintSolver({"a": 7, "b": 12})
        facts.ranges.update({atom: (2, None) for atom in atoms})
        poly = draw_poly(4)
        simple = facts.simplify(poly)
        assert facts.simplify(simple) == simple, poly
        for _ in range(10):
            numbers = {"a": source.randint(2, 40), "b": source.randint(2, 40)}
            assert poly.value(numbers) == simple.value(numbers), (poly, simple, numbers)
            low, high = facts.bounds(simple)
            assert (low is None or low <= poly.value(numbers)) and (high is None or poly.value(numbers) <= high), (poly, low, high)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_proven_holds_wherever_the_facts_do(seed: int) -> None:
    """Cases in which the facts hold are looked at first: they may only spare an attempt."""
    source = random.Random(seed)
    points = [dict(zip("ab", point, strict=True)) for point in itertools.product(range(2, 14), repeat=2)]
    decided = 0
    for _ in range(100):
        hints = {"a": source.randint(2, 13), "b": source.randint(2, 13)}
        facts = ConstraintSolver(hints)
        a, b = (Atom("", (), name, rank) for rank, name in enumerate("ab"))
        facts.ranges.update({a: (2, 13), b: (2, 13)})
        left = points
        for _ in range(5):
            terms = [of_atom(a), of_atom(b), apply("FloorDiv", of_atom(a), const(2)), apply("Mod", of_atom(b), const(3)), const(3)]
            poly = total(term.scaled(source.randint(-2, 2)) for term in terms)
            statement = relation(source.choice(["==", "!=", ">="]), poly)
            if isinstance(statement, bool):
                continue
            known = facts.proves(statement)
            if known is None:
                statement = statement if statement.holds(hints) else statement.negated()
                facts.state(statement)
                left = [point for point in left if statement.holds(point)]
            else:
                decided += 1
                assert all(statement.holds(point) is known for point in left), (statement, known)
    assert decided > 60


def test_how_many_chunks_there_are_leaves_no_guard_that_always_holds() -> None:
    env, result = trace(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), (4, 6, 3))[::2]
    assert env.size_guards() == [] and len(result.desc.size) == 3
    env, (s,) = symbols(s=9)
    half = (s + 1) // 2
    assert (s - 1) // half == 1 and (s - 1) % half == s - 1 - half
    assert env.size_guards() == []
