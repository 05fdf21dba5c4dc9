"""Elementwise kernels whose tensors are contiguous along different axes, beside the same with eager's views."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from cpp_kernels import X0, X1, interpret, run

from fxloom_codegen_cpp.emit import emit_kernel
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_codegen_cpp.tiles import tiling_of
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.dtypes import torch_dtype
from fxloom_interfaces.expr import Expr, symbol, value_symbol
from fxloom_interfaces.program import (
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Stage,
    Store,
)

DTYPES = sorted(PLUGIN.capabilities.dtypes)
N, M = symbol("s0"), symbol("s1")

#: Whole tiles, tails of tiles and of vectors, nothing at all.
EXTENTS = [(64, 64), (128, 64), (65, 63), (200, 133), (9, 300), (300, 9), (17, 1), (1, 17), (3, 5), (0, 70), (70, 0)]


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def larger(dtype: str) -> str:
    return "logical_or" if dtype == "bool" else "maximum"


def elementwise(size: Sequence[Expr], dtype: str, loads: Sequence[Expr], store: Expr, sizes: tuple[str, ...] = ()) -> Kernel:
    """out0[store] = the largest of in0[loads[0]], in1[loads[1]], ..."""
    body: list[Instruction] = [Load(n, f"in{n}", index, dtype) for n, index in enumerate(loads)]
    value = 0
    for n in range(1, len(loads)):
        body.append(Compute(len(loads) + n, larger(dtype), (value, n), dtype))
        value = len(loads) + n
    body.append(Store("out0", store, value))
    buffers = (*(KernelBuffer(f"in{n}", dtype, "in") for n in range(len(loads))), KernelBuffer("out0", dtype, "out"))
    axes = tuple(Axis(f"x{n}", extent) for n, extent in enumerate(size))
    return Kernel(axes, (), (Stage(False, tuple(body)),), buffers, sizes)


def numbers(numel: int, dtype: str) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == "bool" else 100, (numel,)).to(torch_dtype(dtype))


def largest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    result = tensors[0]
    for tensor in tensors[1:]:
        result = result | tensor if result.dtype == torch.bool else torch.maximum(result, tensor)
    return result


@pytest.mark.parametrize("where", ["read", "written"])
def test_every_dtype_and_tail(where: str, isa: str, store: FileStore) -> None:
    along, across = M * X0 + X1, X0 + N * X1
    kernels = [
        elementwise((N, M), dtype, [along, across], along, ("s0", "s1"))
        if where == "read"
        else elementwise((N, M), dtype, [along], across, ("s0", "s1"))
        for dtype in DTYPES
    ]
    assert all("transpose(" in emit_kernel(kernel, "k") for kernel in kernels)
    built = PLUGIN.build([PLUGIN.emit(kernel, f"k_{dtype}") for kernel, dtype in zip(kernels, DTYPES, strict=True)], store)
    for dtype in DTYPES:
        for n, m in EXTENTS:
            x, y, out = (numbers(n * m, dtype) for _ in range(3))
            arguments = [x, y, out] if where == "read" else [x, out]
            built.callables[f"k_{dtype}"](*(t.data_ptr() for t in arguments), n, m)
            if where == "read":
                assert torch.equal(out.view(n, m), largest([x.view(n, m), y.view(m, n).t()])), (dtype, n, m)
            else:
                assert torch.equal(out.view(m, n), x.view(n, m).t()), (dtype, n, m)


def strides(size: Sequence[int], order: Sequence[int]) -> list[int]:
    """Of a dense tensor whose axes lie in this order in memory, the last of it being contiguous."""
    result, step = [0] * len(size), 1
    for axis in reversed(order):
        result[axis] = step
        step *= size[axis]
    return result


def test_random_layouts(store: FileStore) -> None:
    """Dense, stepped, shifted and broadcast tensors of two to four axes, each in an order of its own."""
    chosen = random.Random(0)
    cases = []
    for _ in range(60):
        rank = chosen.choice([2, 2, 3, 4])
        size = [chosen.choice([1, 3, 8, 13, 40, 64, 70, 130] if rank < 4 else [2, 8, 9, 17]) for _ in range(rank)]
        dtype = chosen.choice(DTYPES)
        views = []
        for position in range(chosen.choice([2, 3, 4])):
            steps = strides(size, chosen.sample(range(rank), rank))
            if position:  # the first is what is written
                steps = [s * factor for factor in [chosen.choice([1, 1, 1, 2])] for s in steps]
                steps = [s * chosen.choice([1, 1, 1, 1, 0]) for s in steps]
            views.append((steps, chosen.choice([0, 0, 5])))
        cases.append((size, dtype, views))
    symbols = [symbol(f"x{n}") for n in range(4)]
    kernels, arguments, expected = [], [], []
    for size, dtype, views in cases:
        written, *read = (sum((s * x for s, x in zip(steps, symbols, strict=False)), offset) for steps, offset in views)
        kernels.append(elementwise(size, dtype, read, written))
        tensors = [numbers(offset + sum(s * (n - 1) for s, n in zip(steps, size, strict=True)) + 1, dtype) for steps, offset in views]
        out, *given = tensors
        arguments.append([*given, out])
        want = out.clone()
        want_view, *given_views = (t.as_strided(size, steps, offset) for t, (steps, offset) in zip([want, *given], views, strict=True))
        want_view.copy_(largest(given_views))
        expected.append(want)
    assert sum(tiling_of(kernel) is not None for kernel in kernels) > 20
    run(kernels, arguments, store)
    for case, got, want in zip(cases, arguments, expected, strict=True):
        assert torch.equal(got[-1], want), case


def test_what_is_written_in_place_is_not_moved(store: FileStore) -> None:
    """out[i, j] = (x[j, i] += 1): x is read again after it was written, at the same point."""
    across, along = X0 + 90 * X1, 80 * X0 + X1
    body = (
        Load(0, "x", across, "float32"),
        Constant(1, 1.0, "float32"),
        Compute(2, "add", (0, 1), "float32"),
        Store("x", across, 2),
        Load(3, "x", across, "float32"),
        Store("out0", along, 3),
    )
    buffers = (KernelBuffer("x", "float32", "inout"), KernelBuffer("out0", "float32", "out"))
    kernel = Kernel((Axis("x0", 90), Axis("x1", 80)), (), (Stage(False, body),), buffers)
    tiling = tiling_of(kernel)
    assert tiling is not None and not tiling.transposed
    x, out = torch.randn(80, 90), torch.zeros(90, 80)
    want = x + 1
    run([kernel], [[x, out]], store)
    assert torch.equal(x, want) and torch.equal(out, want.t())


def test_masked_and_indirect_loads_stay_in_place(store: FileStore) -> None:
    """out[i, j] = table[index[j, i]] + (x[j, i] where j < 70, else 0); an index out of range raises."""
    across, along, i0 = X0 + 90 * X1, 100 * X0 + X1, value_symbol("i0")
    body = (
        Load(0, "index", across, "int64"),
        Indirect("i0", 0, 5, check=True, wrap=True),
        Load(1, "table", i0, "float32"),
        IndexValue(2, X1, "int64"),
        Constant(3, 70, "int64"),
        Compute(4, "lt", (2, 3), "bool"),
        Load(5, "x", across, "float32", mask=4),
        Constant(6, 0.0, "float32"),
        Compute(7, "where", (4, 5, 6), "float32"),
        Compute(8, "add", (1, 7), "float32"),
        Store("out0", along, 8),
    )
    roles = {"index": "int64", "table": "float32", "x": "float32"}
    buffers = (*(KernelBuffer(name, dtype, "in") for name, dtype in roles.items()), KernelBuffer("out0", "float32", "out"))
    kernel = Kernel((Axis("x0", 90), Axis("x1", 100)), (), (Stage(False, body),), buffers)
    tiling = tiling_of(kernel)
    assert tiling is not None and [t.buffer for t in tiling.transposed] == ["index"]
    index, table, x, out = torch.randint(-5, 5, (100, 90)), torch.randn(5), torch.randn(70, 90), torch.zeros(90, 100)
    want = [index, table, x, out.clone()]
    run([kernel], [[index, table, x, out]], store)
    interpret([kernel], [want])
    assert torch.equal(out, want[3])
    index[99, 89] = 5
    with pytest.raises(IndexError):
        run([kernel], [[index, table, x, out]], store)


@pytest.mark.parametrize(
    ("size", "read"),
    [((90, 80), 80 * X0 + X1), ((90, 80), X1), ((90, 80), X0), ((90, 4), X0 + 90 * X1), ((4, 90), X0 + 4 * X1), ((90, 80), X0 + 2 * X1)],
)
def test_no_tiles_where_they_gain_nothing(size: tuple[int, int], read: Expr) -> None:
    assert tiling_of(elementwise(size, "float32", [read], size[1] * X0 + X1)) is None


def test_tiles_of_a_kernel_fit_in_the_cache() -> None:
    kernel = elementwise((900, 800), "float64", [X0 + 900 * X1] * 40, 800 * X0 + X1)
    tiling = tiling_of(kernel)
    assert tiling is not None and len(tiling.transposed) == 8
