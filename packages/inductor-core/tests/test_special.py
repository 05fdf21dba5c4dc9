"""Special functions against eager, on the reference interpreter: one kernel each, and errors judged by float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from core_graphs import check, compiled

from fxloom_inductor_core.lowering.library_calls import LIBRARY_CALLS
from fxloom_inductor_core.lowering.load_all import rules
from fxloom_inductor_core.lowering.registry import library_call

Function = Callable[[torch.Tensor], torch.Tensor]
SPECIAL = torch.special
LIMITS = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 100.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 1e30], dtype=torch.float64)
POSITIVE = torch.cat([torch.logspace(-6, 1.8, 300, dtype=torch.float64), torch.linspace(0.01, 12, 500, dtype=torch.float64)])
BOTH = torch.cat([POSITIVE, -POSITIVE])
UNIT = torch.cat([torch.logspace(-30, -1, 200, dtype=torch.float64), torch.linspace(0, 1, 501, dtype=torch.float64)])
#: function, numbers to try
FUNCTIONS: dict[str, tuple[Function, torch.Tensor]] = {
    **{name: (getattr(SPECIAL, name), BOTH) for name in ("i0", "i0e", "i1", "i1e", "modified_bessel_i0", "modified_bessel_i1")},
    **{
        f"{scale}modified_bessel_k{order}": (getattr(SPECIAL, f"{scale}modified_bessel_k{order}"), POSITIVE)
        for scale in ("", "scaled_")
        for order in (0, 1)
    },
    "spherical_bessel_j0": (SPECIAL.spherical_bessel_j0, BOTH),
    "erfinv": (SPECIAL.erfinv, torch.cat([UNIT, -UNIT])),
    "ndtri": (SPECIAL.ndtri, UNIT),
    "erfcx": (SPECIAL.erfcx, torch.linspace(-9, 50, 999, dtype=torch.float64)),
    "log_ndtr": (SPECIAL.log_ndtr, torch.linspace(-40, 5, 999, dtype=torch.float64)),
    "digamma": (SPECIAL.digamma, torch.cat([POSITIVE, torch.linspace(-7.47, -0.03, 301, dtype=torch.float64)])),
    "trigamma": (lambda x: SPECIAL.polygamma(1, x), torch.cat([POSITIVE, torch.linspace(-7.47, -0.03, 301, dtype=torch.float64)])),
}  # fmt: skip
HALVES = {"i0", "i0e", "i1", "i1e", "erfinv", "digamma", "trigamma"}
#: functions that are calls on float64
CALLED = {"erfinv", "ndtri", "erfcx", "log_ndtr", "digamma"}


def limits(name: str, dtype: torch.dtype) -> torch.Tensor:
    # eager's trigamma has large numbers for its poles, made of the errors of a sine
    return LIMITS.to(dtype) if name != "trigamma" else LIMITS[[0, 2, 4, 5, 6, 7, 8, 9, 10, 11]].to(dtype)


def as_good(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Errors are at most twice eager's largest one, with a floor of 4 ulp; what is not finite is the same."""
    assert torch.equal(mine.isnan(), eager.isnan())
    assert torch.equal(mine.isinf(), eager.isinf())
    assert torch.equal(mine[mine.isinf()], eager[mine.isinf()])
    finite = eager.isfinite() & exact.isfinite()
    a, b, c = (t[finite].double() for t in (mine, eager, exact))
    relative = 1 / (c.abs() + torch.finfo(mine.dtype).tiny)
    own = ((b - c).abs() * relative).max()
    assert bool((((a - c).abs() * relative) <= 2 * own + 4 * torch.finfo(mine.dtype).eps).all())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_eager(name: str) -> None:
    function, numbers = FUNCTIONS[name]
    x = torch.cat([numbers.float(), limits(name, torch.float32)])
    graph = compiled(function, x)
    assert (len(graph.kernel_sources), graph.fallbacks, graph.library_calls) == (1, (), ())
    as_good(graph([x])[0], function(x), function(x.double()))
    y = torch.cat([numbers, limits(name, torch.float64)])
    graph = compiled(function, y)
    assert graph.fallbacks == ()
    assert bool(graph.library_calls) == (name in CALLED)
    # 3e-14: what two roundings of an argument near a pole or a zero make
    torch.testing.assert_close(graph([y])[0], function(y), rtol=3e-14, atol=3e-14, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_dtypes_and_layouts(name: str) -> None:
    function, numbers = FUNCTIONS[name]
    x = numbers[:60].float().reshape(6, 10)
    for value in (x.t(), x[:, ::3], x[0, 0], x[:0], torch.tensor([0, 1, 1, 0]), torch.tensor([True, False])):
        assert check(function, value).fallbacks == ()
    for dtype in (torch.bfloat16, torch.float16):
        if name in HALVES and (name, dtype) != ("trigamma", torch.float16):
            assert check(function, x.to(dtype), rtol=torch.finfo(dtype).eps).fallbacks == ()


def test_written_calls_have_no_rule() -> None:
    assert [op for op in LIBRARY_CALLS if rules()[op] is not library_call] == []
    assert all(LIBRARY_CALLS.values())
