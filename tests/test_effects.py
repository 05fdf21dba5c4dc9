"""Operators that return nothing are called for what they do: in whole graphs, in the program's order, never dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

LINEAR_ALGEBRA: dict[str, Callable[[Tensor], Any]] = {
    "inv": lambda a: torch.linalg.inv(a) * 2,
    "inverse": lambda a: torch.inverse(a),
    "solve": lambda a: torch.linalg.solve(a, a[:, :2]) + 1,
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT) + 1,
    "cholesky_inverse": lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a @ a.mT)),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "lu_solve": lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a),
    "tensorsolve": lambda a: torch.linalg.tensorsolve(a, a[0]),
    "tensorinv": lambda a: torch.linalg.tensorinv(a, 1),
    "matrix_power": lambda a: torch.linalg.matrix_power(a, -2),
    "eig": lambda a: torch.linalg.eig(a)[0].abs(),
    "eigvals": lambda a: torch.linalg.eigvals(a).abs(),
}


def a_matrix() -> Tensor:
    return torch.eye(3) * 2 + torch.arange(9.0).view(3, 3) * 0.05


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra_is_one_graph_with_its_gradient(name: str, backend: str, counters_at_zero: None) -> None:
    program = LINEAR_ALGEBRA[name]
    compiled = fxloom.compile(program, backend=backend, fullgraph=True)
    for again in (False, True):
        ours, eagers = (a_matrix().requires_grad_() for _ in range(2))
        result, expected = compiled(ours), program(eagers)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, eagers.grad)
    torch.testing.assert_close(compiled(a_matrix()), program(a_matrix()))
    assert fxloom.stats().graphs == 2, "with and without gradients"
    assert not [op for op in fxloom.stats().fallbacks if "linalg" in op], "complex arithmetic may, factorizations are calls"


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_ldl_factors_are_one_graph(backend: str, counters_at_zero: None) -> None:
    def program(a: Tensor) -> Tensor:
        return torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a @ a.mT), a)

    torch.testing.assert_close(fxloom.compile(program, backend=backend, fullgraph=True)(a_matrix()), program(a_matrix()))


def unused(a: Tensor) -> Tensor:
    torch.linalg.inv(a)
    return a * 2


def handled(a: Tensor) -> Tensor:
    try:
        return torch.linalg.inv(a)
    except torch.linalg.LinAlgError:
        return a + 100


def suppressed(a: Tensor) -> Tensor:
    with contextlib.suppress(torch.linalg.LinAlgError):
        return torch.linalg.cholesky(a)
    return a + 1


def asserted(a: Tensor) -> Tensor:
    torch._assert_async((a >= 0).all(), "a negative number")
    return a * 2


def outcome(program: Callable[[Tensor], Any], a: Tensor) -> Any:
    try:
        return program(a.clone()).tolist()
    except RuntimeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [unused, handled, suppressed, asserted])
@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_checks_raise_what_eager_raises(program: Callable[[Tensor], Tensor], backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(program, backend=backend)
    for _ in range(2):
        for a in (torch.eye(3), torch.zeros(3, 3), -torch.eye(3)):
            assert outcome(compiled, a) == outcome(program, a)
    assert fxloom.stats().graph_breaks == 0
    assert fxloom.stats().graphs >= 1


@pytest.fixture
def notes() -> Iterator[list[tuple[str, float]]]:
    """What `effects_test::note` was called with."""
    found: list[tuple[str, float]] = []
    with torch.library._scoped_library("effects_test", "FRAGMENT") as library:
        library.define("note(Tensor x, str tag) -> ()")
        library.impl("note", lambda x, tag: found.append((tag, x.sum().item())), "CPU")
        library.impl("note", lambda x, tag: None, "Meta")
        yield found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_operators_that_return_nothing_keep_their_order(
    backend: str, notes: list[tuple[str, float]], counters_at_zero: None
) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        torch.ops.effects_test.note(y.sum(0), "late")  # of a value that takes two kernels
        torch.ops.effects_test.note(x, "early")
        torch.ops.effects_test.note(y + 1, "last")
        return y * 2

    x = torch.arange(6.0).view(2, 3)
    expected = program(x)
    eagers, notes[:] = list(notes), []
    torch.testing.assert_close(fxloom.compile(program, backend=backend, fullgraph=True)(x), expected)
    assert [tag for tag, _ in notes] == ["late", "early", "last"]
    torch.testing.assert_close([total for _, total in notes], [total for _, total in eagers])
