"""Index expressions, by brute force over small ranges."""

from __future__ import annotations

import itertools
import random

import pytest

from fxloom_interfaces.expr import (
    affine,
    bounds,
    floor_div,
    mod,
    print_expr,
    simplify,
    split_multiple,
    stride_of,
    substitute,
    symbol,
    value_symbol,
)

X, Y = symbol("x"), symbol("y")
EXTENTS = {X: 6, Y: 8}


def random_expr(rng: random.Random, depth: int = 3):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([X, Y, rng.randint(0, 9)])
    a, b = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    match rng.randrange(4):
        case 0:
            return a + b
        case 1:
            return a * rng.randint(1, 8)
        case 2:
            return floor_div(a, rng.choice([2, 3, 4, 8, 16]))
    return mod(a, rng.choice([2, 3, 4, 8, 16]))


def evaluate(expr, x: int, y: int) -> int:
    return eval(print_expr(expr), {"x": x, "y": y})  # noqa: S307  # text of our own


def exact(expr, x: int, y: int) -> int:
    return int(substitute(expr, {X: x, Y: y}))


@pytest.mark.parametrize("seed", range(150))
def test_printing_simplifying_and_bounds_agree_with_the_value(seed: int) -> None:
    expr = random_expr(random.Random(seed))
    simple = simplify(expr, EXTENTS)
    low, high = bounds(expr, EXTENTS)
    for x, y in itertools.product(range(6), range(8)):
        value = exact(expr, x, y)
        assert evaluate(expr, x, y) == value
        assert exact(simple, x, y) == value
        assert low is None or low <= value
        assert high is None or value <= high


def test_division_by_an_extent_goes_away() -> None:
    flat = X * 8 + Y
    assert simplify(floor_div(flat, 8), EXTENTS) == X
    assert simplify(mod(flat, 8), EXTENTS) == Y
    assert simplify(floor_div(flat, 16), EXTENTS) == floor_div(X, 2)


def test_division_keeps_negative_rounding() -> None:
    i = value_symbol("i")
    assert int(substitute(floor_div(i, 4), {i: -1})) == -1
    assert int(substitute(mod(i, 4), {i: -1})) == 3
    assert simplify(floor_div(i, 4), {i: 4}) == floor_div(i, 4)  # the extent says nothing about the sign


def test_affine_parts_and_strides() -> None:
    assert affine(3 * X + Y + 5) == ({X: 3, Y: 1}, 5)
    assert affine(floor_div(X, 2)) is None
    assert stride_of(768 * X + Y, X) == 768
    assert stride_of(mod(X, 2), X) is None
    assert stride_of(5, X) == 0


def test_symbolic_multiples_split() -> None:
    s = symbol("s0")
    assert split_multiple(X * s + Y, s) == (X, Y)
    assert simplify(floor_div(X * s + Y, s), {X: 4, Y: s}) == X


def test_print_has_no_needless_parentheses() -> None:
    assert print_expr(X * 768 + Y) == "768 * x + y"
    assert print_expr(floor_div(Y, 4) * 3) == "3 * (y // 4)"
    assert print_expr(X - floor_div(Y, 4)) in ("x - y // 4", "-(y // 4) + x")  # a leading minus binds tighter than //
