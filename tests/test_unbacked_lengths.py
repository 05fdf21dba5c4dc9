"""Operators on tensors of a length that only running the program tells: one graph, eager's results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

pytestmark = pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid behavior has changed")

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
Program = Callable[..., Tensor]
BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])


def attention(x: Tensor, n: Tensor) -> Tensor:
    part = x[:, :, : n.item()]
    return F.scaled_dot_product_attention(part, part, part, is_causal=True)


def masked_attention(x: Tensor, n: Tensor) -> Tensor:
    part = x[:, :, : n.item()]
    mask = torch.arange(part.shape[2])[:, None] > torch.arange(part.shape[2])  # nothing for the first
    return F.scaled_dot_product_attention(part, part, part, mask, scale=0.5)


def last_sum(x: Tensor, n: Tensor) -> Tensor:
    return x[0, 0, : n.item()].flip(0).cumsum(0)[-1:]


BY_LENGTH: dict[str, Program] = {
    "convolution": lambda x, n: F.conv1d(x[:, 0, : n.item()].transpose(1, 2), torch.ones(4, 4, 3), padding=1),
    "attention": attention,
    "masked_attention": masked_attention,
    "products": lambda x, n: x[:, :, : n.item()] @ x[:, :, : n.item()].transpose(-1, -2),
    "pooling": lambda x, n: F.max_pool2d(x[:, :, : n.item()], (1, 2)),
    "softmax": lambda x, n: x[:, :, : n.item()].softmax(2).sum(1),
    "last_sum": last_sum,
}

OF_MASKS: dict[str, Program] = {
    "cumsum": lambda x: x[x > 0].cumsum(0).flip(0),
    "masked_select": lambda x: x.masked_select(x > 0) * 2,
    "product": lambda x: x[x > 0].unsqueeze(1) @ torch.ones(1, 2),
    "first_places": lambda x: x.nonzero()[:3].float().mean(0) + x.sum() * 0,
    "convolution": lambda x: F.conv1d(x[x > -9].view(1, 1, -1), torch.ones(1, 1, 1)),
}

MADE: dict[str, Program] = {
    "linspace": lambda n: torch.linspace(1, 3, n.item()),
    "logspace": lambda n: torch.logspace(0, 1, n.item()),
    "hann": lambda n: torch.hann_window(n.item()),
    "hann_symmetric": lambda n: torch.hann_window(n.item(), periodic=False),
    "hamming": lambda n: torch.hamming_window(n.item(), True, 0.3, 0.2),
    "blackman": lambda n: torch.blackman_window(n.item(), False),
    "bartlett": lambda n: torch.bartlett_window(n.item(), False),
    "kaiser": lambda n: torch.kaiser_window(n.item(), False),
    "affine_grid": lambda n: F.affine_grid(torch.eye(2, 3)[None], (1, 1, n.item() + 1, 3), align_corners=True),
}


def same_with_gradients(compiled: Program, program: Program, x: Tensor, *rest: Any) -> None:
    found, expected = compiled(x, *rest), program(x, *rest)
    torch.testing.assert_close(found, expected, equal_nan=True)
    if expected.requires_grad:
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients, equal_nan=True)


@BACKENDS
@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_part_of_a_length(name: str, backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(BY_LENGTH[name], backend=backend, options=OPTIONS)
    for length in (3, 4, 2, 1, 9):
        same_with_gradients(compiled, BY_LENGTH[name], torch.randn(2, 2, 9, 4, requires_grad=True), torch.tensor(length))
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1, 0)


@BACKENDS
@pytest.mark.parametrize("name", OF_MASKS)
def test_as_many_as_a_mask_is_true_at(name: str, backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(OF_MASKS[name], backend=backend, options=OPTIONS)
    for size in (13, 14, 5, 9):
        same_with_gradients(compiled, OF_MASKS[name], torch.randn(size, requires_grad=True))
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (2, 0)


@BACKENDS
@pytest.mark.parametrize("name", MADE)
def test_made_of_a_length(name: str, backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(MADE[name], backend=backend, options=OPTIONS)
    for length in (4, 1, 2, 0, 7):
        torch.testing.assert_close(compiled(torch.tensor(length)), MADE[name](torch.tensor(length)), atol=1e-6, rtol=1e-6)
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1, 0)


@BACKENDS
@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_as_many_classes_as_there_are(backend: str, counters_at_zero: None) -> None:
    compiled = fxloom.compile(lambda x: F.one_hot(x) * 2, backend=backend, options=OPTIONS)
    for classes in ([3, 0, 1], [0, 0, 0], [1, 7, 2]):
        x = torch.tensor(classes)
        assert torch.equal(compiled(x), F.one_hot(x) * 2)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(torch.tensor([1, -1, 0]))
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (1, 0)


@BACKENDS
def test_targets_of_any_length(backend: str, counters_at_zero: None) -> None:
    """The kernel of `ctc_loss` makes room for the longest target."""

    def program(x: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), torch.ones(x.shape[1], 3, dtype=torch.long), steps, lengths)

    compiled = fxloom.compile(program, backend=backend, options=OPTIONS)
    for batch, steps in ((2, 8), (3, 7), (2, 9)):
        x = torch.randn(steps, batch, 5, requires_grad=True)
        same_with_gradients(compiled, program, x, torch.full((batch,), steps), torch.arange(1, batch + 1))
    assert (fxloom.stats().compiles, fxloom.stats().graph_breaks) == (2, 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y, n: (x + 1, n - y.item()),
        lambda x, y, n: (x + 1, abs(y.item() + n), x.shape[0] & 7),
        lambda x, y, n: (y + 1, y.item() * x.shape[0]),
        lambda x, y, n: (x * 2, x[x > 0.5].shape[0] - n),
        lambda x, y, n: (x + 1, max(y.item(), x.shape[0])),
    ],
)
def test_what_only_returned_numbers_are_made_of_reaches_the_graph(f: Any, backend: str) -> None:
    compiled = fxloom.compile(
        f,
        backend=backend,
        dynamic=True,
        options={"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True},
    )
    for size, told, number in ((4, 7, 3), (5, 2, 5), (6, 5, 7), (9, 3, 2)):
        args = torch.rand(size, 3), torch.tensor(told), number
        expected, got = f(*args), compiled(*args)
        assert torch.equal(got[0], expected[0])
        assert got[1:] == expected[1:] and [type(value) for value in got[1:]] == [type(value) for value in expected[1:]]


def into_cache(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache = cache.clone()
    cache.narrow(1, place.item(), new.shape[1]).copy_(new)
    return cache


def written_part(x: Tensor, n: Tensor) -> Tensor:
    y = x.clone()
    y[:n] = 1
    return y


SLICED: dict[str, Program] = {
    "up_to": lambda x, n: x[:n] * 2,
    "from": lambda x, n: x[n:].sum(0),
    "of_columns": lambda x, n: x[1:, :n].exp(),
    "written": written_part,
}


@BACKENDS
@pytest.mark.parametrize("name", SLICED)
def test_a_tensor_is_the_end_of_a_slice(name: str, backend: str, counters_at_zero: None) -> None:
    program = SLICED[name]
    run = fxloom.compile(program, backend=backend, fullgraph=True, dynamic=True, options=OPTIONS)
    for rows, n in ((6, 3), (7, 5), (8, 0), (9, 20), (4, -2)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x, torch.tensor(n)), program(x, torch.tensor(n)))
    assert fxloom.stats().graphs == 1


@BACKENDS
def test_a_step_that_only_running_tells(backend: str, counters_at_zero: None) -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        return x[:: n.item()] * 2 + x[::n].sum()

    run = fxloom.compile(program, backend=backend, fullgraph=True, dynamic=True, options=OPTIONS)
    for rows, step in ((6, 3), (7, 2), (8, 1), (9, 20)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x, torch.tensor(step)), program(x, torch.tensor(step)))
    for step in (0, -1):
        with pytest.raises(ValueError) as wanted:
            program(torch.ones(3), torch.tensor(step))
        with pytest.raises(ValueError) as got:
            run(torch.ones(3, 4), torch.tensor(step))
        assert str(got.value) == str(wanted.value)
    assert fxloom.stats().graphs == 1


@BACKENDS
def test_a_cache_is_written_at_a_place_that_only_running_tells(backend: str, counters_at_zero: None) -> None:
    run = fxloom.compile(into_cache, backend=backend, fullgraph=True, dynamic=True, options=OPTIONS)
    for place, count in ((3, 5), (0, 7), (14, 2), (-4, 3)):
        cache, new = torch.randn(2, 16, 4), torch.randn(2, count, 4)
        torch.testing.assert_close(run(cache, torch.tensor(place), new), into_cache(cache, torch.tensor(place), new))
    for place, error in ((12, RuntimeError), (17, IndexError)):
        arguments = torch.randn(2, 16, 4), torch.tensor(place), torch.randn(2, 5, 4)
        with pytest.raises(error) as wanted:
            into_cache(*arguments)
        with pytest.raises(error) as got:
            run(*arguments)
        assert str(got.value) == str(wanted.value)
    assert fxloom.stats().graphs == 1
    for place in (15, -1):  # one element is another graph
        cache, new = torch.randn(2, 16, 4), torch.randn(2, 1, 4)
        torch.testing.assert_close(run(cache, torch.tensor(place), new), into_cache(cache, torch.tensor(place), new))
    assert fxloom.stats().graphs == 2


@BACKENDS
@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits])
def test_losses_of_two_parts_of_as_many_elements(loss: Program, backend: str, counters_at_zero: None) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return loss(x[x > 0], y[x > 0])

    run = fxloom.compile(program, backend=backend, fullgraph=True, dynamic=True, options=OPTIONS)
    for rows in (6, 9):
        x, y = torch.randn(rows, 5, requires_grad=True), torch.rand(rows, 5)
        got, wanted = run(x, y), program(x, y)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(wanted, x))
    assert fxloom.stats().graphs == 1


@pytest.mark.parametrize(
    "program",
    [lambda x: torch.cov(x), lambda x: torch.cov(x, correction=0), lambda x: x.corrcoef(), lambda x: torch.linalg.multi_dot([x, x.t(), x]), lambda x: torch.vander(x[0])],
    ids=["cov", "cov_correction", "corrcoef", "multi_dot", "vander"],
)
def test_one_graph_for_matrices_of_every_size(program: Program, counters_at_zero: None) -> None:
    run = fxloom.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows, columns in ((4, 6), (5, 9), (6, 13), (2, 3)):
        x = torch.randn(rows, columns, dtype=torch.float64)
        torch.testing.assert_close(run(x), program(x))
    assert fxloom.stats().graphs == 1
