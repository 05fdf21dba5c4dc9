"""What autograd makes of views whose shape or memory changes in place, or that see past what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

BACKENDS = ["aot_eager", "inductor"]


def strided_past_a_view(x: Tensor) -> Any:
    """Some of its elements are no elements of the view, and autograd gives these no gradient."""
    return x[..., ::2].as_strided((2, 2), (1, 2))


def strided_past_a_view_of_a_result(x: Tensor) -> Any:
    y = x.sin()
    return y[..., ::2].as_strided((2, 2), (1, 2)), y


def reshaped_quietly(x: Tensor) -> Any:
    v = x[:, 1]
    with torch.no_grad():
        v.transpose_(0, -1)
    return v


def result_reshaped_quietly(x: Tensor) -> Any:
    y = x * 1
    v = y[:, 1]
    with torch.no_grad():
        v.unsqueeze_(0)
    return v, y


def result_reshaped(x: Tensor) -> Any:
    y = x * 1
    v = y[:, :2]
    v.t_()
    return v, y


def result_unsqueezed(x: Tensor) -> Any:
    y = x * 1
    v = y[:, :2]
    v.unsqueeze_(0)
    return v, y


def view_of_an_input_reshaped(x: Tensor) -> Any:
    y = x * 1
    v = x[0]
    v.unsqueeze_(0)
    return v * 2, y


def quiet_view_of_what_is_written(x: Tensor) -> Any:
    with torch.no_grad():
        v = x.view(-1)
        x.add_(1)
    return v


def quiet_view_of_a_written_result(x: Tensor) -> Any:
    y = x * 1
    with torch.no_grad():
        v = y.view(-1)
        y.add_(1)
    return v.detach(), y


def detached_and_written(x: Tensor) -> Any:
    plain = torch.zeros(3, 3)
    v = plain.detach()
    v.copy_(x)
    return v, x * 1


def result_turned_after_a_view(x: Tensor) -> Any:
    y = x * 1
    v = y.t()
    y.t_()
    return v


def result_turned_after_a_row(x: Tensor) -> Any:
    y = x * 1
    v = y[0]
    y.t_()
    return v


PROGRAMS: list[Callable[..., Any]] = [
    result_turned_after_a_view, result_turned_after_a_row,
    detached_and_written,
    strided_past_a_view, strided_past_a_view_of_a_result, reshaped_quietly, result_reshaped_quietly, result_reshaped,
    result_unsqueezed, view_of_an_input_reshaped, quiet_view_of_what_is_written, quiet_view_of_a_written_result,
]  # fmt: skip


def seen_by(run: Callable[..., Any], make: Callable[[Tensor], Tensor]) -> Any:
    source = torch.arange(9.0).view(3, 3).requires_grad_()
    x = make(source)
    try:
        out = run(x)
        outputs = out if isinstance(out, tuple) else (out,)
        facts = [(t.requires_grad, t.is_leaf, t.shape, t.stride()) for t in [*outputs, x]]
        total = sum((t * torch.arange(t.numel()).view(t.shape)).sum() for t in [*outputs, x])
        total.backward()  # type: ignore[union-attr]
    except RuntimeError as error:
        return str(error)[:60]
    return facts, [t.detach() for t in outputs], source.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x * 1, lambda x: (x * 1)[:]], ids=["leaf", "history", "view"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Callable[..., Any], make: Callable[[Tensor], Tensor], backend: str) -> None:
    fxloom.reset()
    got, wanted = seen_by(fxloom.compile(program, backend=backend), make), seen_by(program, make)
    if isinstance(wanted, str):
        assert got == wanted
    else:
        torch.testing.assert_close(got, wanted)
    assert fxloom.stats().graphs >= 1 or isinstance(wanted, str)


def rows_moved(x: Tensor) -> Any:
    x[1:] = x[:-1]
    return x + 1


def copied_from_its_transpose(x: Tensor) -> Any:
    x.copy_(x.t())
    return x


def multiplied_by_its_transpose(x: Tensor) -> Any:
    x.mul_(x.t())
    return x


def one_row_from_another(x: Tensor) -> Any:
    x[0].copy_(x[1])
    x[:, 0] += x[:, 1]
    return x * 2


def written_to_a_part_of_itself(x: Tensor) -> Any:
    torch.exp(x[:-1], out=x[1:])
    return x


REVERSED = torch.tensor([[2, 1, 0]] * 3).t()


def scattered_over_itself(x: Tensor) -> Any:
    return x.scatter_(0, REVERSED, x)


def added_to_itself(x: Tensor) -> Any:
    return x.index_add_(0, REVERSED[:, 0], x.view(3, 3))


def written_over_itself(x: Tensor) -> Any:
    x[REVERSED[:, 0]] = x
    return x


def put_over_itself(x: Tensor) -> Any:
    return x.put_(REVERSED, x)


def chosen_over_itself(x: Tensor) -> Any:
    return x.masked_scatter_(x != 1, x)


def selected_into_itself(x: Tensor) -> Any:
    return torch.index_select(x, 0, REVERSED[:, 0], out=x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [scattered_over_itself, added_to_itself, written_over_itself, put_over_itself, chosen_over_itself, selected_into_itself]
    + [rows_moved, copied_from_its_transpose, multiplied_by_its_transpose, one_row_from_another, written_to_a_part_of_itself],
    ids=lambda program: program.__name__,
)
def test_what_is_written_overlaps_what_is_read(program: Callable[..., Any], backend: str) -> None:
    fxloom.reset()
    seen: list[Any] = []
    for run in (program, fxloom.compile(program, backend=backend)):
        x = torch.arange(9.0).view(3, 3)
        try:
            seen.append((run(x), x))
        except RuntimeError as error:
            seen.append(str(error)[:60])
    if isinstance(seen[0], str):
        assert seen[1] == seen[0]
    else:
        torch.testing.assert_close(seen[1], seen[0])
    assert fxloom.stats().graph_breaks == (0 if program is one_row_from_another else 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_part_of_a_larger_memory_says_so(backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2).chunk(2)[1]

    got, wanted = (run(torch.ones(4, 3)) for run in (fxloom.compile(program, backend=backend, fullgraph=True), program))
    assert (got.storage_offset(), got.untyped_storage().nbytes()) == (wanted.storage_offset(), wanted.untyped_storage().nbytes()) == (6, 48)
    torch.testing.assert_close(got.as_strided((4, 3), (3, 1), 0), wanted.as_strided((4, 3), (3, 1), 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_a_part_is_memory_of_its_own(backend: str) -> None:
    got = fxloom.compile(lambda x: (x * 2)[1:].clone(), backend=backend, fullgraph=True)(torch.ones(3, 3))
    assert (got.storage_offset(), got.untyped_storage().nbytes()) == (0, 24)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_what_requires_no_grad_may_be_written_with_grad(backend: str) -> None:
    def program(x: Tensor, w: Tensor, quiet: bool) -> Any:
        with torch.set_grad_enabled(not quiet):
            v = x.transpose(0, 1)
        print(end="")
        v += w
        return v, x

    for quiet in (False, True):
        seen: list[Any] = []
        for run in (program, fxloom.compile(program, backend=backend)):
            x, w = torch.ones(2, 2), torch.arange(4.0).view(2, 2).requires_grad_()
            try:
                v, x = run(x, w, quiet)
                (v * x).sum().backward()
                seen.append((v.detach(), w.grad))
            except RuntimeError as error:
                seen.append(str(error)[:30])
        if quiet:
            assert seen[0] == seen[1]
        else:
            torch.testing.assert_close(seen[1], seen[0])


def part_and_part_of_it(x: Tensor) -> Any:
    v = x[1]
    return v, v[0]


def whole_of_a_part(x: Tensor) -> Any:
    v = (x * 2)[0]
    return v.view_as(v), v


def three_after_each_other(x: Tensor) -> Any:
    v = (x * 2).t()
    w = v[1]
    return w[:2], v, w


def part_and_what_is_computed_of_its_part(x: Tensor) -> Any:
    v = x[1]
    w = v[:2]
    return v, w, w.sin()


def part_of_a_part_of_what_is_written(x: Tensor) -> Any:
    y = x * 2
    v = y[0]
    w = v[1:]
    y.mul_(3)
    return v, w


def two_parts_alike(x: Tensor) -> Any:
    return x[0], x[0], x.unbind(0)[0]


RESULTS: list[Callable[..., Any]] = [
    part_and_part_of_it, whole_of_a_part, three_after_each_other, part_and_what_is_computed_of_its_part,
    part_of_a_part_of_what_is_written, two_parts_alike,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hooked", range(3))
@pytest.mark.parametrize("program", RESULTS, ids=lambda program: program.__name__)
def test_gradients_meet_where_a_view_is_made_of_a_returned_view(program: Callable[..., Any], hooked: int, backend: str) -> None:
    fxloom.reset()
    seen: list[Any] = []
    for run in (fxloom.compile(program, backend=backend, fullgraph=True), program):
        leaf = torch.arange(9.0).view(3, 3).requires_grad_()
        outputs = run(leaf * 1)
        looked_at = outputs[hooked % len(outputs)]
        looked_at.retain_grad()
        looked_at.register_hook(lambda gradient: gradient * 10)
        sum(((n + 2) * output.exp()).sum() for n, output in enumerate(outputs)).backward()
        seen.append((looked_at.grad, leaf.grad))
    torch.testing.assert_close(seen[0], seen[1])


def windows_of_a_transposed(x: Tensor) -> None:
    x.unfold(0, 1, 1).relu_()


def leaky_windows(x: Tensor) -> None:
    torch.nn.functional.leaky_relu_(x.unfold(0, 1, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [windows_of_a_transposed, leaky_windows])
def test_derivatives_of_what_lies_across(program: Callable[..., Any], backend: str) -> None:
    fxloom.reset()
    seen = []
    for run in (fxloom.compile(program, backend=backend, fullgraph=True), program):
        leaf = torch.arange(-4.0, 5.0).view(3, 3).requires_grad_()
        x = (leaf * 1).t()
        run(x)
        (x * torch.arange(9.0).view(3, 3)).sum().backward()
        seen.append((x.detach(), leaf.grad))
    torch.testing.assert_close(seen[0], seen[1])


def written_part_of_the_second(x: Tensor, a: Tensor, b: Tensor) -> Any:
    row = a[None]
    b[1:] *= 2
    v = b.t()
    v[0] = x.exp().sum()
    return row, v


def made_part_of_the_second(x: Tensor, a: Tensor, b: Tensor) -> Any:
    b[1:] *= 2
    return a[None], b.t(), x * 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [written_part_of_the_second, made_part_of_the_second])
def test_views_of_one_of_two_inputs_in_one_memory(program: Callable[..., Any], backend: str) -> None:
    """A history that one of them gets later is that of all that is in the memory."""
    fxloom.reset()
    seen = []
    for run in (fxloom.compile(program, backend=backend), program):
        leaf, memory = torch.arange(9.0).view(3, 3).mul(0.1).requires_grad_(), torch.ones(3, 3)
        first, second, *_ = run(leaf * 1, memory[:], memory[:])
        second[0] = leaf.sin().sum()
        (first.exp().sum() + second.sum() + memory.sin().sum()).backward()
        seen.append((first.requires_grad, memory.requires_grad, leaf.grad, memory.detach()))
    torch.testing.assert_close(seen[0], seen[1])
