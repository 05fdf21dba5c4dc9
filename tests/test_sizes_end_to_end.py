"""Sizes in the text of wrappers and kernels: signs, empty tensors, and what a program asserts of sizes known only at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

pytestmark = pytest.mark.usefixtures("counters_at_zero")

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def compiled(program: Callable[..., Tensor], dynamic: bool | None = True) -> Callable[..., Tensor]:
    return fxloom.compile(program, dynamic=dynamic, fullgraph=True, options=OPTIONS)


ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "upper_half": lambda x: x[(x.shape[0] + 1) // 2 :] * 2,
    "lower_half": lambda x: x[: x.shape[0] - (x.shape[0] + 1) // 2] * 2,
    "less_a_remainder": lambda x: x[: 9 - (x.shape[0] + 1) % 4] * 1,
    "filled_up": lambda x: torch.cat([x, x.new_zeros(30 - (x.shape[0] + 1) // 4)]) + 1,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_quotient_or_remainder_taken_away(name: str) -> None:
    """A leading minus binds tighter than // in Python and rounds the other way; in C++ both round to zero."""
    program = ROUNDED[name]
    run = compiled(program)
    for size in (6, 7, 9, 10, 13, 14):
        x = torch.arange(float(size))
        assert torch.equal(run(x), program(x)), size
    assert fxloom.stats().graphs <= 2  # where a slice ends before the tensor does is another graph


def shifted(x: Tensor) -> Tensor:
    y = x.new_zeros(x.shape)
    y[:, 1:] = x[:, :-1].clone()
    y[:, 0] = 7
    return y


#: parts whose lengths are 0 or 1 where the whole is short
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "shifted": shifted,
    "from_5": lambda x: x[:, 5:] * 2,
    "up_to_the_last_5": lambda x: x[:, :-5].sin(),
    "cut_and_joined": lambda x: torch.cat([x[:, :5], x[:, 5:]], 1) + 1,
    "last_5": lambda x: (x[:, -5:] + 1).softmax(1),
    "differences": lambda x: (x[:, 1:] - x[:, :-1]).relu().sum(0),
}


@pytest.mark.parametrize("first", [2, 5, 6, 9])
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_are_short_by_chance(name: str, first: int) -> None:
    program = PARTS[name]
    run = compiled(program)
    for length in (first, 6, 5, 9, 2, 4, 7):
        x = torch.arange(3.0 * length).view(3, length)
        got, wanted = run(x), program(x)
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride(), length
    assert fxloom.stats().graphs == 1


def three(x: Tensor) -> Tensor:
    y = x[x > 0]
    torch._check(y.shape[0] == 3)
    return y * 2


def two_left_out(x: Tensor) -> Tensor:
    y = x[x > 0]
    torch._check(y.shape[0] == x.shape[0] - 2)
    return y * 2


@pytest.mark.parametrize(
    ("program", "good", "bad"),
    [
        (lambda x: x[x > 0] + x[x < 0], (6, 6), (7, 6)),
        (three, (3, 1), (4, 0)),
        (two_left_out, (8, 2), (7, 3)),
    ],
    ids=["added", "a_number", "a_relation"],
)
def test_sizes_that_are_asserted_equal_are_compared_when_the_program_runs(
    program: Callable[[Tensor], Tensor], good: tuple[int, int], bad: tuple[int, int]
) -> None:
    run = compiled(program)
    x = torch.tensor([1.0] * good[0] + [-1.0] * good[1])
    assert torch.equal(run(x), program(x))
    with pytest.raises(RuntimeError, match="asserts"):
        run(torch.tensor([1.0] * bad[0] + [-1.0] * bad[1]))


def test_a_number_that_is_asserted_is_compared_when_the_program_runs() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        count = n.item()
        torch._check(count == 3)
        return x[:count] * 2

    run = compiled(program)
    assert torch.equal(run(torch.ones(8), torch.tensor(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="asserted"):
        run(torch.ones(8), torch.tensor(4))


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[tuple[int, int], ...]]] = {
    "square_seen_as_its_transpose": (lambda x: x.view(x.shape[1], x.shape[0]).t() * 2, ((4, 4), (4, 6))),
    "windows": (lambda x: x.unfold(0, 2, 2) * 2, ((6, 10), (9, 7))),
    "nothing_joined": (lambda x: torch.cat([x[x[:, 0] > 0], x], 0).sum(0), ((0, 3), (5, 3))),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_and_empty_tensors(name: str, dynamic: bool) -> None:
    program, sizes = LAYOUTS[name]
    run = compiled(program, dynamic)
    for size in sizes:
        x = torch.randn(size)
        expected, got = program(x), run(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("used", ["all", "one"])
def test_pieces_that_do_not_add_up_are_an_error(used: str, backend: str) -> None:
    def program(x: Tensor, sizes: Tensor) -> list[Tensor]:
        pieces = x.split(sizes.tolist())
        return [piece.sum(0) for piece in (pieces if used == "all" else pieces[1:2])]

    run = fxloom.compile(program, backend=backend, dynamic=True, fullgraph=True, options=OPTIONS)
    x = torch.arange(9.0)
    for sizes in ([3, 3, 3], [2, 3, 4]):
        assert run(x, torch.tensor(sizes)) == program(x, torch.tensor(sizes))
    with pytest.raises(RuntimeError):
        run(x, torch.tensor([3, 5, 4]))
    assert fxloom.stats().graphs == 1


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "there and back": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=0), n=x.shape[0], dim=0),
    "times a number": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(-1, 2, 2)) * 1j),
    "joined": lambda x: torch.view_as_real(torch.cat([torch.fft.fft(x), torch.fft.fft(x * 2)])),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_of_any_size_are_differentiated(name: str, backend: str) -> None:
    program = COMPLEX[name]
    run = fxloom.compile(program, backend=backend, fullgraph=True)
    for size in (4, 6, 5, 9):
        x = torch.randn(size, 4)
        found = []
        for fn in (program, run):
            leaf = x.clone().requires_grad_()
            out = fn(leaf)
            (out * torch.arange(float(out.numel())).view(out.shape)).sum().backward()
            found.append((out, leaf.grad))
        torch.testing.assert_close(found[1], found[0])
    assert fxloom.stats().compiles <= 3


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_that_insist_on_a_size_after_others_were_seen(kind: Any, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    layer = kind(4, 5, batch_first=True)
    run = fxloom.compile(layer, backend="aot_eager", dynamic=dynamic)
    for size in ((2, 8), (3, 4), (2, 10), (1, 4), (2, 1)):
        x, y = (torch.randn(*size, 4, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
        got, expected = run(x)[0], layer(y)[0]
        torch.testing.assert_close(got, expected)
        got.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
