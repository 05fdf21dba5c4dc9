"""Division and powers of numbers that change or that only running the program tells: Python's results and exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

TOLD = {"capture_scalar_outputs": True}
DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "one by it": lambda x, v: 1 / v,
    "a float by it": lambda x, v: 2.5 / v,
    "times": lambda x, v: x * (1.0 / v),
    "whole part": lambda x, v: 7.5 // v,
    "rest": lambda x, v: 7.5 % v,
    "both": lambda x, v: divmod(7.5, v),
}


def outcome(f: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    try:
        return "gives", f(*args)
    except ArithmeticError as error:
        return "raises", type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", DIVISIONS)
def test_dividing_by_what_turns_out_to_be_zero_raises_what_python_does(name: str, whole: bool, backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return DIVISIONS[name](x, (x > 0).sum().item() if whole else x.sum().item())

    compiled = fxloom.compile(f, backend=backend, fullgraph=True, options=TOLD)
    for x in (torch.ones(3), torch.zeros(3), torch.tensor([1.0, 2.0, -1.0])):
        (kind, *got), (expected_kind, *expected) = outcome(compiled, x), outcome(f, x)
        assert kind == expected_kind
        if kind == "raises":
            assert got == expected
        else:
            torch.testing.assert_close(got, expected)
    assert fxloom.stats().compiles == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_whole_powers_of_told_numbers_of_any_sign(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        v, n = x.sum().item(), (x < 0).sum().item()
        return v**2, v**3, v**-1, v**2.0, x * v**3, pow(v, 3), v ** (n + 1)

    compiled = fxloom.compile(f, backend=backend, fullgraph=True, options=TOLD)
    for x in (torch.ones(3), -torch.ones(3), torch.tensor([1.0, -2.0, -1.5])):
        torch.testing.assert_close(compiled(x), f(x))
    assert fxloom.stats().compiles == 1


def test_roots_of_told_numbers_need_to_know_the_sign() -> None:
    def f(x: torch.Tensor) -> Any:
        v = x.sum().item()
        return v**0.5

    def g(x: torch.Tensor) -> Any:
        v = x.sum().item()
        torch._check(v >= 0)
        return v**0.5

    compiled = fxloom.compile(f, backend="eager", options=TOLD)
    for x in (torch.ones(3), -torch.ones(3)):
        assert compiled(x) == f(x)
    assert fxloom.compile(g, backend="eager", fullgraph=True, options=TOLD)(torch.ones(3)) == 3**0.5


def test_roots_of_what_is_never_negative() -> None:
    def f(x: torch.Tensor) -> Any:
        v = x.sum().item()
        return x * abs(v) ** 0.5, x * (v * v + 1) ** -0.5, (v**2 / 3.0) ** 0.3

    compiled = fxloom.compile(f, backend="aot_eager", fullgraph=True, options=TOLD)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), f(x))


def test_powers_of_floats_that_change_sign() -> None:
    def f(x: torch.Tensor, p: float) -> Any:
        return x * (p - 0.6) ** 2, (p - 0.6) ** 3, (p - 0.6) ** -1

    compiled = fxloom.compile(f, backend="aot_eager", fullgraph=True)
    for p in (0.1, 0.9, 0.3, -0.4, 2.0):
        torch.testing.assert_close(compiled(torch.ones(2), p), f(torch.ones(2), p))
    assert fxloom.stats().compiles == 2


def test_a_power_that_is_complex_is_pythons() -> None:
    def f(x: torch.Tensor, p: float) -> Any:
        return x * 2, p**0.5

    compiled = fxloom.compile(f, backend="eager", dynamic=True)
    for p in (0.25, -0.25, 0.16, -2.0):
        assert compiled(torch.ones(2), p)[1] == f(torch.ones(2), p)[1]


def test_large_floats_are_whole() -> None:
    def f(x: torch.Tensor, p: float) -> Any:
        return x * 2 if p.is_integer() else x

    compiled = fxloom.compile(f, backend="eager", fullgraph=True)
    for p in (1.5, 2.0, 1e20, 3.5, -1e300, 2.0**53, 7.0, float("inf"), float("nan"), 0.25):
        assert torch.equal(compiled(torch.ones(2), p), f(torch.ones(2), p))
    assert not fxloom.stats().break_reasons
