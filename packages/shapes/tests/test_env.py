"""The symbol environment against brute force over small ranges."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxloom_interfaces.sources import LocalSource, SizeSource
from fxloom_shapes import ConstraintViolated, DataDependent, EnvOptions, SymbolEnv
from fxloom_shapes.expressions.polynomials import Atom, Poly, const, of_atom
from fxloom_shapes.expressions.statements import relation
from fxloom_shapes.solver.constraints import ConstraintSolver

NAMES = ("a", "b", "c")
ATOMS = {name: Atom("", (), name, rank) for rank, name in enumerate(NAMES)}
LOW, HIGH = 2, 6
POINTS = [dict(zip(NAMES, values, strict=True)) for values in itertools.product(range(LOW, HIGH + 1), repeat=len(NAMES))]


def facts() -> ConstraintSolver:
    made = ConstraintSolver()
    for atom in ATOMS.values():
        made.ranges[atom] = (LOW, HIGH)
    return made


#: (how to build it with knowledge, its value at a point), by structure
Tree = tuple


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.one_of(st.sampled_from(NAMES), st.integers(-3, 4))
    return st.recursive(
        leaves,
        lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner),
        max_leaves=6,
    )


def build(tree: Tree, known: ConstraintSolver) -> Poly | None:
    """The polynomial; None where a divisor may be 0 or negative."""
    if isinstance(tree, str):
        return of_atom(ATOMS[tree])
    if isinstance(tree, int):
        return const(tree)
    op, left, right = tree
    a, b = build(left, known), build(right, known)
    if a is None or b is None:
        return None
    if op in "+-*":
        return known.simplify({"+": operator.add, "-": operator.sub, "*": operator.mul}[op](a, b))
    if op in ("min", "max"):
        return known.function(op.capitalize(), a, b)
    if known.lower(b) < 1:
        return None
    return known.function("FloorDiv" if op == "//" else "Mod", a, b)


def evaluate(tree: Tree, point: dict[str, int]) -> int:
    if isinstance(tree, str):
        return point[tree]
    if isinstance(tree, int):
        return tree
    op, left, right = tree
    a, b = evaluate(left, point), evaluate(right, point)
    table = {
        "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
        "min": min, "max": max,
    }  # fmt: skip
    return table[op](a, b)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(trees())
def test_simplifying_never_changes_a_value(tree: Tree) -> None:
    poly = build(tree, facts())
    if poly is None:
        return
    for point in POINTS:
        assert poly.value(point) == evaluate(tree, point), (tree, poly, point)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(trees(), st.sampled_from(["==", "!=", ">="]))
def test_what_is_proven_holds_everywhere(tree: Tree, op: str) -> None:
    known = facts()
    poly = build(tree, known)
    statement = relation(op, poly) if poly is not None else True
    if isinstance(statement, bool):
        return
    verdict = known.proves(statement)
    if verdict is not None:
        assert all(statement.holds(point) == verdict for point in POINTS), (statement, verdict)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(trees(), st.sampled_from(["==", ">=", "!="])), min_size=1, max_size=4), trees())
def test_statements_narrow_soundly(given_facts: list[tuple[Tree, str]], question: Tree) -> None:
    """After statements that hold at a point, everything proven or simplified is right at all points where they hold."""
    known = facts()
    points = POINTS
    for tree, op in given_facts:
        poly = build(tree, known)
        statement = relation(op, poly) if poly is not None else True
        if isinstance(statement, bool):
            continue
        left = [point for point in points if statement.holds(point)]
        if not left:
            continue
        points = left
        known.state(statement)
    poly = build(question, known)
    if poly is None:
        return
    for point in points:
        assert poly.value(point) == evaluate(question, point), (known.equal, poly, point)
    for op in ("==", ">="):
        statement = relation(op, poly)
        if not isinstance(statement, bool) and (verdict := known.proves(statement)) is not None:
            assert all(statement.holds(point) == verdict for point in points), (statement, verdict)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(trees(), st.sampled_from(["==", ">=", "!="])), min_size=1, max_size=4))
def test_guards_accept_only_what_the_trace_saw(asked: list[tuple[Tree, str]]) -> None:
    """Every point that the final guards accept answers every question as the trace did."""
    env = SymbolEnv(EnvOptions(duck=False))
    hints = {"a": 4, "b": 6, "c": 3}
    symbols = {name: env.create(hint, SizeSource(LocalSource("x"), "size", n)) for n, (name, hint) in enumerate(hints.items())}
    names = {name: str(symbol) for name, symbol in symbols.items()}

    def ask(tree: Tree) -> torch.SymInt | int | None:
        if isinstance(tree, str):
            return symbols[tree]
        if isinstance(tree, int):
            return tree
        op, left, right = tree
        a, b = ask(left), ask(right)
        if a is None or b is None or (op in ("//", "%") and (not isinstance(b, int) or b <= 0)):
            return None
        if op in ("min", "max"):
            return (torch.sym_min if op == "min" else torch.sym_max)(a, b)
        return {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}[op](a, b)

    questions = []
    for tree, op in asked:
        value = ask(tree)
        if value is None:
            continue
        truth = bool({"==": operator.eq, "!=": operator.ne, ">=": operator.ge}[op](value, 0))
        questions.append((tree, op, truth))
    guards = env.size_guards()
    for point in POINTS:
        numbers = {names[name]: value for name, value in point.items()}
        ranges = (env.range_of(env.symbols[name]) for name in numbers)
        inside = all(
            (low is None or low <= n) and (high is None or n <= high) for n, (low, high) in zip(numbers.values(), ranges, strict=True)
        )
        if not inside or not all(guard.statement.holds(numbers) for guard in guards):
            continue
        for tree, op, truth in questions:
            value = evaluate(tree, point)
            assert {"==": value == 0, "!=": value != 0, ">=": value >= 0}[op] == truth, (tree, op, point, guards)


def make() -> tuple[SymbolEnv, torch.SymInt, torch.SymInt]:
    env = SymbolEnv()
    b, s = env.create(6, SizeSource(LocalSource("x"), "size", 0)), env.create(10, SizeSource(LocalSource("x"), "size", 1))
    assert isinstance(b, torch.SymInt) and isinstance(s, torch.SymInt)
    return env, b, s


def test_zero_and_one_are_specialized_and_so_never_asked_about() -> None:
    env, b, _ = make()
    assert env.create(0) == 0 and env.create(1) == 1
    assert bool(b != 0) and bool(b != 1) and bool(b > 1) and not env.guards


def test_equal_hints_share_a_symbol_unless_told_otherwise() -> None:
    env = SymbolEnv()
    assert str(env.create(5)) == str(env.create(5))
    assert str(env.create(5, duck_key="other")) != str(env.create(5))
    apart = SymbolEnv(EnvOptions(duck=False))
    assert str(apart.create(5)) != str(apart.create(5))


def test_an_answer_from_the_hint_is_a_guard_once() -> None:
    env, b, s = make()
    assert bool(s > 8) and bool(s > 8) and bool(s + b > 8)
    assert [str(guard) for guard in env.size_guards()] == [] and env.range_of(env.symbols[str(s)])[0] == 9


def test_equality_unifies() -> None:
    env, b, s = make()
    assert bool(b + 4 == s)
    assert bool(s * 2 == 2 * b + 8) and len(env.guards) == 1
    assert str(env.size_guards()[0]) in ("s0 + 4 == s1", "s1 == s0 + 4")


def test_divisibility_is_remembered() -> None:
    env, b, _ = make()
    assert bool(b % 3 == 0)
    assert bool((b // 3) * 3 == b) and len(env.guards) == 1


def test_a_pinned_dimension_refuses_to_be_one_number() -> None:
    env = SymbolEnv()
    b = env.create(6, SizeSource(LocalSource("x"), "size", 0), pinned=True)
    assert bool(b > 3)  # a range is no specialization
    with pytest.raises(ConstraintViolated, match=r"L\['x'\].size\(0\) is marked dynamic, but the program needs x\.size\(0\) == 6"):
        int(b)


def test_an_unbacked_number_answers_only_what_is_known() -> None:
    env = SymbolEnv()
    u = env.create_unbacked(0)
    assert bool(u >= 0) and bool(u + 1 != 0)
    with pytest.raises(DataDependent):
        bool(u == 3)
    torch._check(u <= 7)
    assert bool(u < 8) and len(env.deferred) == 1
