"""Scatters against eager, on the reference interpreter: values, strides, that nothing falls back, how many kernels there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from core_graphs import check, compiled, record

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import compile_graph
from fxloom_interfaces.program import Allocate, Launch

torch.manual_seed(0)
X, ROWS, COLUMN = torch.randn(7, 5), torch.tensor([3, 0, 3, 6]), torch.randint(0, 7, (4, 5))
SOURCE = torch.randn(4, 5)
PLANES = torch.randn(3, 7, 5)
IMAGE = torch.randn(2, 3, 8, 8)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8]

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
#: programs of a tensor, an index, and a source of the tensor's dtype
CASES: dict[str, Case] = {
    "scatter_add": (lambda x, i, s: (x.scatter_add(0, i, s), x.scatter_add(1, i[:, :3] % 5, s)), (X, COLUMN, SOURCE)),
    "scatter": (lambda x, i, s: (x.scatter(0, i, s), x.scatter(-2, i[:2], 3)), (X, COLUMN, SOURCE)),
    "scatter by": (lambda x, i, s: (x.scatter(0, i, s, reduce="add"), x.scatter(0, i, 2, reduce="multiply")), (X, COLUMN, SOURCE)),
    "index_add": (lambda x, i, s: (x.index_add(0, i, s), x.t().index_add(1, i, s.t(), alpha=3)), (X, ROWS, SOURCE)),
    "index_add in the middle": (lambda x, i, s: x.index_add(1, i, s), (PLANES, ROWS, torch.randn(3, 4, 5))),
    "index_copy": (lambda x, i, s: (x.index_copy(0, i, s), x.index_copy(0, i[0], s[:1])), (X, ROWS, SOURCE)),
    "index_put": (lambda x, i, s: (x.index_put((i,), s), x.index_put((i - 7,), s[0])), (X, ROWS, SOURCE)),
    "index_put, accumulating": (
        lambda x, i, s: (
            x.index_put((i,), s, accumulate=True),
            x.index_put((i, i % 5), s[:, 0], accumulate=True),
            x.index_put((i.view(2, 2), i.view(2, 2) % 5), s[:2, :2], accumulate=True),
        ),
        (X, ROWS, SOURCE),
    ),
    "index_put around an axis": (
        lambda x, i, s: (torch.ops.aten.index_put(x, [i % 3, None, i % 5], s, True), torch.ops.aten.index_put(x, [None, i], s[0, 0])),
        (PLANES, ROWS, torch.randn(4, 7)),
    ),
    "put": (lambda x, i, s: (x.put(i - 3, s[:, 0]), x.put(i.view(2, 2), s[:2, :2], accumulate=True)), (PLANES, ROWS, SOURCE)),
    **{
        f"scatter_reduce {by}": (
            lambda x, i, s, by=by: [x.scatter_reduce(0, i, s, by, include_self=own) for own in (True, False)],
            (X, COLUMN, SOURCE),
        )
        for by in ("sum", "prod", "mean", "amax", "amin")
    },
    **{
        f"index_reduce {by}": (
            lambda x, i, s, by=by: [x.index_reduce(0, i, s, by, include_self=own) for own in (True, False)],
            (X, ROWS, SOURCE),
        )
        for by in ("prod", "mean", "amax", "amin")
    },
    "without axes": (
        lambda x, i, s: (x[0, 0].scatter_add(0, i[0] * 0, s[0, 0]), x[0, 0].index_add(0, i[0] * 0, s[0, 0]), x[:, 0].scatter(0, i[0], s[0, 0])),
        (X, ROWS, SOURCE),
    ),
    "an index with an axis for a tensor without": (
        lambda x, i, s: [f(x[0, 0], 0, i[:1] * 0, s[0, 0]) for f in (torch.index_copy, torch.index_add)],
        (X, ROWS, SOURCE),
    ),
    "nothing to write": (lambda x, i, s: (x.scatter_add(0, i[:0], s), x.index_add(0, i[:0, 0], s[:0])), (X, COLUMN, SOURCE)),
}  # fmt: skip


def typed(tensors: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    wanted = [t if t.dtype == torch.int64 else (t.abs() * 3 if dtype == torch.uint8 else t * 3) for t in tensors]
    return tuple(t if t.dtype == torch.int64 else t.to(dtype) for t in wanted)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what is in beta, or to be replaced
@pytest.mark.parametrize("name", CASES)
def test_equals_eager_without_fallback(name: str) -> None:
    function, inputs = CASES[name]
    for dtype in DTYPES:
        assert check(function, *typed(inputs, dtype), rtol=1e-2 if dtype.itemsize == 2 else 1e-5).fallbacks == (), dtype


@pytest.mark.parametrize("name", ["scatter_add", "index_put", "index_add", "scatter"])
def test_layouts(name: str) -> None:
    function, (x, index, source) = CASES[name]
    for given in (x.t().contiguous().t(), torch.randn(14, 10)[::2, ::2], torch.randn(5).expand(7, 5)):
        assert check(function, given, index, source.t().contiguous().t()).fallbacks == ()


def test_truth_values() -> None:
    """Their sum is whether any holds."""
    flags, index = torch.rand(7) > 0.5, torch.tensor([1, 5, 1])
    programs = lambda x, i: (  # noqa: E731
        x.index_put((i[:2],), x[:2]), x.scatter(0, i, True), x.index_put((i,), x[:3], accumulate=True), x.scatter_add(0, i, x), x.index_add(0, i, x[:3])
    )  # fmt: skip
    assert check(programs, flags, index).fallbacks == ()
    extremes = lambda x, i: [  # noqa: E731
        x.scatter_reduce(0, i, ~x[:3], by, include_self=own) for by in ("amax", "amin") for own in (True, False)
    ]
    assert check(extremes, flags, index).fallbacks == ()


def test_the_producer_runs_in_the_scatters_kernel() -> None:
    """zeros; the scatter of what is computed from the source; what follows."""
    graph = check(lambda i, s: torch.zeros(7, 5).index_add(0, i, (s * 2).exp()) + 1, ROWS, SOURCE)
    launches = [step for step in graph.program.steps if isinstance(step, Launch)]
    assert [kernel.title for _, kernel in graph.program.kernels] == [("zeros", "index_add"), ("index_add",), ("add",)]
    assert len(launches) == 3
    fresh = [step for step in graph.program.steps if isinstance(step, Allocate) and step.reuse is None]
    assert len(fresh) == 1  # the scatter goes on with the zeros, and the sum takes its memory


def test_what_is_written_into_may_be_read_later() -> None:
    """A copy is written into, whoever else reads the tensor, and whether or not memory is reused."""
    from fxloom_inductor_core import InductorOptions

    def program(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Any:
        y = (x * 2).exp()
        z = y.index_add(0, i, s + y[:4])
        return y, z, z.index_add(0, i, y[i]), z + 1

    for options in (None, InductorOptions(reuse_memory=False), InductorOptions(fuse=False)):
        assert check(program, X, ROWS, SOURCE, options=options).fallbacks == ()


def test_what_nobody_reads_later_is_not_copied() -> None:
    graph = check(lambda x, i, s: (x @ x.t()).index_add(0, i, s), X, ROWS, torch.randn(4, 7))
    assert [kernel.title for _, kernel in graph.program.kernels] == [("index_add",)]
    kept = check(lambda x, i, s: ((y := x @ x.t()).index_add(0, i, s), y), X, ROWS, torch.randn(4, 7))
    assert len(kept.program.kernels) == 2


def test_masks_of_values_that_are_the_same_throughout() -> None:
    rows, lines = torch.rand(7) > 0.5, torch.rand(7, 5) > 0.5

    def program(x: torch.Tensor, y: torch.Tensor, m: torch.Tensor, n: torch.Tensor, s: torch.Tensor) -> Any:
        put = torch.ops.aten.index_put
        masks = [put(x, [m], s[0]), put(x, [m], s[:1]), put(x, [n], s[0, 0]), put(x, [n], s[0, :1]), put(y, [None, m], s[0])]
        return masks, put(y, [None, n], s[:3, :1]), put(x, [m], s[0], True), put(y, [None, m], s[:3, None, :], True)

    assert check(program, X, PLANES, rows, lines, SOURCE).fallbacks == ()
    assert check(lambda x, m, s: torch.ops.aten.index_put(x, [m], s), X, torch.arange(7) < 4, SOURCE).fallbacks == (("aten.index_put", 1),)
    assert check(lambda x, i: (x[:0][i[:0]], x[:, i[:0]]), X, ROWS).fallbacks == ()


def test_masked_sums() -> None:
    index, mask = torch.tensor([1, 99, 2, -3]), torch.tensor([True, False, True, True])
    put = torch.ops.aten._unsafe_masked_index_put_accumulate
    assert check(lambda x, m, i, s: put(x, m, [i, i], s), X, mask, index, SOURCE[:, 0]).fallbacks == ()


def test_the_last_of_several_stays() -> None:
    index, source = torch.randint(0, 3, (500,)), torch.randn(500)
    graph = check(lambda i, s: (torch.zeros(3).scatter(0, i, s), torch.zeros(3).index_copy(0, i, s)), index, source)
    assert graph.fallbacks == ()


def test_an_index_of_one_for_a_tensor_without_axes() -> None:
    x, source = torch.tensor(1.0), torch.tensor(2.0)
    graph = check(lambda x, i, s: (x.index_copy(0, i, s), x.index_add(0, i, s), x.index_copy(0, i[0], s)), x, torch.tensor([0]), source)
    assert graph.fallbacks == ()


def test_several_numbers_are_scattered_to() -> None:
    """Numbers that are made at once share memory; those that a scatter goes on with do not."""
    def program(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.index_reduce(0, i, s, "mean"), (x * 2).index_add(0, i, s), (x + 1).index_add(0, i, s) * 2, x * 3 + s

    assert check(program, torch.tensor(1.0), torch.tensor([0]), torch.tensor(2.0)).fallbacks == ()


@pytest.mark.parametrize("bad", [7, -1])
def test_indices_out_of_range_raise(bad: int) -> None:
    index = ROWS.clone()
    index[1] = bad
    for function in (
        lambda x, i, s: x.index_add(0, i, s),
        lambda x, i, s: x.index_copy(0, i, s),
        lambda x, i, s: x.scatter_add(0, i.view(4, 1), s),
        lambda x, i, s: x.scatter_reduce(0, i.view(4, 1), s, "amax"),
    ):
        graph = compiled(function, X, ROWS, SOURCE)
        assert graph.fallbacks == ()
        with pytest.raises(Exception, match="out of range"):
            graph([X.clone(), index, SOURCE])


def test_gradient_of_pooling() -> None:
    def program(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        _, positions = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        return torch.ops.aten.max_pool2d_with_indices_backward(grad, x, [3, 3], [2, 2], [1, 1], [1, 1], False, positions)

    for layout in (torch.contiguous_format, torch.channels_last):
        for dtype in (torch.float32, torch.bfloat16):
            x, grad = (t.to(dtype).to(memory_format=layout) for t in (IMAGE, torch.randn(2, 3, 4, 4)))
            graph = check(program, x, grad, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5)
            assert graph.fallbacks == ()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Eager's threads share the values that `max_unpool` puts down, whatever place they go to: of two at one place any may stay."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_positions_in_planes_and_volumes() -> None:
    """Of maxima: where gradients go, and where `max_unpool` puts values; of two at one place the last stays."""
    aten = torch.ops.aten
    plane, volume, grad = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 4, 6, 8), torch.randn(2, 3, 3, 2)
    _, adaptive = aten.adaptive_max_pool2d(plane, [3, 2])
    deep, positions = aten.max_pool3d_with_indices(volume, 2)
    programs: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        (aten.adaptive_max_pool2d_backward, (grad, plane, adaptive)),
        (lambda g, x, i: aten.max_pool3d_with_indices_backward(g, x, [2] * 3, [], [0] * 3, [1] * 3, False, i), (deep, volume, positions)),
        (lambda x, i: (aten.max_unpool2d(x, i, [6, 8]), aten.max_unpool2d(x[0], i[0] % 4, [6, 8])), (grad, adaptive)),
        (lambda x, i: aten.max_unpool3d(x, i, [4, 6, 8], [2] * 3, [0] * 3), (deep, positions)),
        (lambda x, i: aten.max_unpool2d(x, i, [6, 8]), tuple(t.to(memory_format=torch.channels_last) for t in (grad, adaptive))),
    ]
    for function, inputs in programs:
        assert check(function, *inputs).fallbacks == ()


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("ordered", "fallbacks"), [(True, 0), (False, 1)])
@pytest.mark.usefixtures("deterministic")
def test_sums_in_any_order_are_left_to_eager_where_they_must_not_vary(ordered: bool, fallbacks: int) -> None:
    target = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, ordered_scatters=ordered))
    for function, inputs, several in (
        (lambda x, i, s: x.index_add(0, i, s), (X, ROWS, SOURCE), fallbacks),
        (lambda x, i, s: x.index_add(0, i, s), ((X * 9).long(), ROWS, (SOURCE * 9).long()), 0),  # exact in any order
    ):
        graph = compile_graph(record(function, *inputs), codegens={"cpu": target}, store=None)
        assert sum(count for _, count in graph.fallbacks) == several
        torch.testing.assert_close(graph(list(inputs))[0], function(*inputs))


def test_targets_that_combine_by_atomics() -> None:
    """In 32 bits at least; and NaNs that are there already have the sign that wins where floats are compared as integers."""
    able = {f"assign {dtype}" for dtype in ("bool", "int8", "float16", "float32", "int32")}
    able |= {f"{mode} {dtype}" for mode in ("add", "mul", "min", "max") for dtype in ("int32", "float32")}
    target = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, ordered_scatters=False, scatters=frozenset(able)))
    index, source = torch.tensor([3, 0, 3, 6]), torch.tensor([3.0, -2.0, 5.0, torch.nan])
    x = torch.tensor([1.0, torch.nan, -torch.nan, 2.0, torch.inf, -torch.inf, 0.0])
    for dtype in (torch.float32, torch.float16, torch.int8, torch.bool):
        modes = ("sum",) if dtype is torch.bool else ("sum", "prod", "amin", "amax")
        inputs = [x.nan_to_num(3, 4, 5).to(dtype) if not dtype.is_floating_point else x.to(dtype), index]
        inputs.append(source.nan_to_num(7).to(dtype) if not dtype.is_floating_point else source.to(dtype))

        def program(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor, modes: Any = modes) -> Any:
            return [x.scatter_add(0, i, s) if mode == "sum" else x.scatter_reduce(0, i, s, mode) for mode in modes]

        graph = compile_graph(record(program, *inputs), codegens={"cpu": target}, store=None)
        assert graph.fallbacks == ()
        for got, want in zip(graph(list(inputs)), program(*inputs), strict=True):
            assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(), want.nan_to_num())
    lowest, largest = (
        compile_graph(record(lambda x, i, s, m=m: x.scatter_reduce(0, i, s, m), x, index, source), codegens={"cpu": target}, store=None)(
            [x, index, source]
        )[0][1:3]
        for m in ("amin", "amax")
    )
    assert lowest.signbit().all() and not largest.signbit().any()


def test_half_precision_sums_are_rounded_once() -> None:
    """As in eager's kernel for one index for whole rows; in others it rounds each term, and a sum of ones ends at 256."""
    inputs = (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64), torch.ones(1000, dtype=torch.bfloat16))
    for function in (
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        lambda x, i, s: x.scatter_add(0, i, s),
        lambda x, i, s: x.index_add(0, i, s),
    ):
        graph = compiled(function, *inputs)
        assert graph.fallbacks == ()
        assert graph(list(inputs))[0].tolist() == [1000, 0]


def test_a_target_without_scatters_calls_eager() -> None:
    target = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, scatters=frozenset()))
    graph = compile_graph(record(lambda x, i, s: x.index_add(0, i, s), X, ROWS, SOURCE), codegens={"cpu": target}, store=None)
    assert graph.fallbacks == (("aten.index_add", 1),)
