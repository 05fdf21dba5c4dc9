"""Selections that turn out empty: what eager raises for them is raised, with its type and text, by generated kernels too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda y: y.max(),
    "min over rows": lambda y: y.min(0).values,
    "max over columns": lambda y: y.max(1).values,
    "larger of two": lambda y: torch.max(y, y * 2),
    "amax": lambda y: torch.amax(y),
    "amin over both": lambda y: y.amin((1, 0)),
    "argmax": lambda y: y.argmax(),
    "argmin over rows": lambda y: y.argmin(dim=-2),
    "aminmax": lambda y: torch.aminmax(y).max,
    "aminmax over rows": lambda y: y.aminmax(dim=0).min,
    "the first": lambda y: y[0] * 2,
    "the last": lambda y: y[-1] * 2,
    "the second of all": lambda y: y[..., 1, :] * 2,
    "behind a new axis": lambda y: y[None, 1] * 2,
}


def outcome(f: Callable[..., Any], x: torch.Tensor) -> tuple[Any, ...]:
    try:
        return "gives", f(x)
    except (IndexError, RuntimeError) as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_has_no_elements_raises_what_eager_does(name: str, backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return PROGRAMS[name](x[x[:, 0] > 0])

    told = {"capture_dynamic_output_shape_ops": True}
    compiled = fxloom.compile(f, backend=backend, fullgraph=True, options=told)
    for x in (torch.rand(5, 3) + 0.1, -torch.rand(5, 3), torch.eye(5)):
        (kind, made), (expected_kind, expected) = outcome(compiled, x), outcome(f, x)
        assert kind == expected_kind
        if kind == "gives":
            torch.testing.assert_close(made, expected)
        else:
            assert made == expected
    assert fxloom.stats().compiles <= 2
