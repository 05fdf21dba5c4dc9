"""Numbers of NumPy's as arguments: operators of torch take them for Python's, and they may change without a new compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

numpy = pytest.importorskip("numpy")

INTEGERS = (numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64)
FLOATS = (numpy.float16, numpy.float32, numpy.float64)
X = torch.arange(6.0)


def check(function: Callable[..., Any], numbers: list[Any], compilations: int) -> None:
    fxloom.reset()
    compiled = fxloom.compile(function, backend="aot_eager", fullgraph=True)
    for number in numbers:
        found, wanted = compiled(X, number), function(X, number)
        assert type(found) is type(wanted)
        if isinstance(wanted, torch.Tensor):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        else:
            assert found == wanted
    assert fxloom.stats().compiles == compilations


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
def test_beside_tensors(kind: type) -> None:
    check(lambda x, n: torch.clamp(x * n + 1, max=n) - x.long() * n, [kind(value) for value in (2.5, 3.1, 4.75, 7)], 2)
    check(lambda x, n: x > n, [kind(value) for value in (2.5, 3.1, 4.75)], 2)


@pytest.mark.parametrize("kind", INTEGERS)
def test_sizes_and_places(kind: type) -> None:
    check(lambda x, n: x.new_zeros(int(n)) + torch.ones(n), [kind(value) for value in (2, 3, 4, 5)], 2)
    check(lambda x, n: x[:n] + x[n], [kind(value) for value in (2, 3, 4)], 2)


def test_what_looks_at_the_type_is_compiled_per_number() -> None:
    check(lambda x, n: torch.tensor(n) * x, [numpy.float64(0.5), numpy.float64(1.5), numpy.float64(2.5)], 3)
    check(lambda x, n: n + 1, [numpy.int64(1), numpy.int64(2), numpy.int64(3)], 3)
    check(lambda x, n: x * numpy.sqrt(n), [numpy.float32(1), numpy.float32(2), numpy.float32(3)], 3)


@pytest.mark.parametrize("kind", [*INTEGERS[:-1], *FLOATS, numpy.complex128, numpy.bool_])  # torch refuses uint64
def test_what_looks_at_the_type_gives_its_dtype(kind: type) -> None:
    for make in (torch.tensor, torch.as_tensor, torch.asarray):
        check(lambda x, n, make=make: make(n), [kind(1)], 1)
        check(lambda x, n, make=make: make([[n], [n]]), [kind(1)], 1)


def test_operators_take_booleans_for_floats() -> None:
    yes = numpy.bool_(True)
    check(lambda x, n: x.long() * n, [yes], 1)
    check(lambda x, n: torch.full((2,), n), [yes], 1)
    check(lambda x, n: torch.tensor([n]), [yes], 1)
    check(lambda x, n: (x > 2).masked_fill(x > 3, n), [yes], 1)


@pytest.mark.parametrize("kind", [numpy.float16, numpy.float32])
def test_elements_refuse_what_is_no_python_float(kind: type) -> None:
    def program(x: torch.Tensor, n: Any) -> torch.Tensor:
        x[0] = n
        return x

    fxloom.reset()
    compiled = fxloom.compile(program, backend="aot_eager")
    for value in (0.5, 1.5, 2.5):
        with pytest.raises(TypeError, match="can't assign"):
            compiled(X.clone(), kind(value))


def test_one_that_is_handed_back_is_the_callers() -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x, n: (x * n, n), backend="aot_eager", fullgraph=True)
    for value in (0.5, 1.5, 2.5):
        number = numpy.float32(value)
        assert compiled(X, number)[1] is number
    assert fxloom.stats().compiles == 2


def test_another_type_is_another_compilation() -> None:
    fxloom.reset()
    compiled = fxloom.compile(lambda x, n: x * n, backend="aot_eager", fullgraph=True)
    for number in (numpy.float32(0.5), numpy.float32(1.5), 2.5, numpy.float64(0.1), numpy.int64(3), 4):
        torch.testing.assert_close(compiled(X, number), X * number, rtol=0, atol=0)
