"""torch's associative_scan in a graph: equal to a loop, for every length, axis and direction."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxloom_dynamo
from fxloom_dynamo.traced import scans


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", ["generic", "pointwise"])
def test_equals_a_loop(axis: int, reverse: bool, mode: str) -> None:
    for length in range(10):
        values = torch.randn((length, 3) if axis == 0 else (3, length), dtype=torch.float64)
        given = values.flip(axis) if reverse else values
        expected = given.cumsum(axis).flip(axis) if reverse else given.cumsum(axis)
        torch.testing.assert_close(scans.associative_scan(torch.add, values, axis, reverse, mode), expected)


def test_nested_values() -> None:
    def recurrence(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"a": left["a"] * right["a"], "b": right["a"] * left["b"] + right["b"]}

    a, b = torch.rand(7, 2, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    result = scans.associative_scan(recurrence, {"a": a, "b": b}, 0)["b"]
    state = torch.zeros(2, dtype=torch.float64)
    for row in range(7):
        state = a[row] * state + b[row]
        torch.testing.assert_close(result[row], state)


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Combine_mode"):
        scans.associative_scan(torch.add, torch.ones(3), 0, combine_mode="other")
    with pytest.raises(ValueError, match="at least one"):
        scans.associative_scan(torch.add, [], 0)


def test_captured_with_its_gradient() -> None:
    scan: Any = pytest.importorskip("torch._higher_order_ops.associative_scan", reason="this torch has none").associative_scan

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (a, b), dim=1, combine_mode="generic")[1]

    def loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        states = [b[:, 0]]
        for place in range(1, a.shape[1]):
            states.append(a[:, place] * states[-1] + b[:, place])
        return torch.stack(states, 1)

    a, b = torch.rand(2, 5, 3, dtype=torch.float64, requires_grad=True), torch.randn(2, 5, 3, dtype=torch.float64)
    fxloom_dynamo.optimize("eager", fullgraph=True)(fn)(a, b).sin().sum().backward()
    got, a.grad = a.grad, None
    loop(a, b).sin().sum().backward()
    assert got is not None and a.grad is not None
    torch.testing.assert_close(got, a.grad)
