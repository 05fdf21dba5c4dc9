"""Operators that divide by what sizes make zero: eager gives inf or nan, and so do other sizes' compilations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

pytestmark = [pytest.mark.usefixtures("counters_at_zero"), pytest.mark.filterwarnings("ignore:.*degrees of freedom")]

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "variance": lambda x: x.var(0, correction=2),
    "deviation": lambda x: x.std(0, correction=2),
    "loss of nothing": lambda x: F.mse_loss(x[2:], x[:-2]),
    "mean of nothing": lambda x: x[2:].mean(0),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients_where_a_later_size_makes_a_divisor_zero(program: Callable[[Tensor], Tensor], dynamic: bool | None, backend: str) -> None:
    run = fxloom.compile(program, backend=backend, dynamic=dynamic)
    for size in (5, 4, 2, 6):
        x, y = (torch.randn(size, 3, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
        got, expected = run(x), program(y)
        torch.testing.assert_close(got, expected, equal_nan=True)
        got.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad, equal_nan=True)
    breaks = fxloom.stats().graph_breaks  # torch's Meta kernel for the derivative of this loss divides as Python does
    assert (breaks, fxloom.stats().compiles <= 3) == (0, True) or program is PROGRAMS["loss of nothing"]


def test_the_programs_own_division_by_zero_raises() -> None:
    run = fxloom.compile(lambda x: x * (1 / (x.shape[0] - 2)), backend="aot_eager")
    for size in (5, 4, 3):
        run(torch.ones(size))
    with pytest.raises(ZeroDivisionError):
        run(torch.ones(2))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_dimensions_asked_to_be_dynamic_are_equal_by_chance_only(backend: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum()

    run = fxloom.compile(program, backend=backend, dynamic_shapes={"x": {0: True}, "y": {0: True}})
    for sizes in ((4, 4), (5, 5), (6, 7)):
        x, y = (torch.ones(size, 3) for size in sizes)
        assert torch.equal(run(x, y), program(x, y))
    assert fxloom.stats().compiles == 1


ONE_LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "linspace": lambda x: torch.linspace(3, 5, x.shape[0] - 1),
    "hann": lambda x: torch.hann_window(x.shape[0] - 1),
    "hamming": lambda x: torch.hamming_window(x.shape[0] - 1, True, 0.3, 0.2),
    "bartlett": lambda x: torch.bartlett_window(x.shape[0] - 1, periodic=False),
    "affine_grid": lambda x: F.affine_grid(torch.eye(2, 3)[None], (1, 1, x.shape[0] - 1, 3), align_corners=True),
}


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid behavior has changed")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ONE_LEFT)
def test_one_element_is_left(name: str, backend: str) -> None:
    """Of a size that is no 1, so that no compilation for 1 apart was made for it."""
    compiled = fxloom.compile(ONE_LEFT[name], backend=backend)
    for size in (5, 4, 2, 3):
        x = torch.zeros(size)
        torch.testing.assert_close(compiled(x), ONE_LEFT[name](x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floors_of_quotients_that_are_not_finite(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    values = [limits.max, -limits.max, limits.tiny, -0.25, 0.5, 0.0, -0.0, 3.0, torch.inf, -torch.inf, torch.nan]
    x, y = (t.flatten().contiguous() for t in torch.meshgrid(*[torch.tensor(values, dtype=dtype)] * 2, indexing="ij"))
    got = fxloom.compile(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor")), fullgraph=True)(x, y)
    for result in got:
        torch.testing.assert_close(result, x // y, equal_nan=True)
    assert sum(fxloom.stats().kernels.values()) > 0


@pytest.mark.parametrize("divide", [torch.fmod, torch.remainder, torch.floor_divide], ids=lambda f: f.__name__)
def test_numbers_that_change_to_zero_in_the_dtype(divide: Callable[[Tensor, int], Tensor]) -> None:
    compiled = fxloom.compile(lambda x, n: divide(x, n))
    x = torch.arange(9, dtype=torch.uint8)
    for number in (3, 5, 7, 256, 260, 512):
        if number % 256:
            assert torch.equal(compiled(x, number), divide(x, number))
        else:
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                compiled(x, number)
