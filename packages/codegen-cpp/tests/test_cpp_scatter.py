"""Scatters against the reference interpreter: each way in which threads share them, bad indices, the order of what meets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cpp_kernels import X0, X1, interpret, run

from fxloom_codegen_common.scatter import independent_axes
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.dtypes import torch_dtype
from fxloom_interfaces.expr import Expr, symbol, value_symbol
from fxloom_interfaces.ops import StoreMode
from fxloom_interfaces.program import Axis, Indirect, Kernel, KernelBuffer, Load, Stage, Store

I0, N = value_symbol("i0"), symbol("s0")


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def scatter(size: tuple[Expr, ...], index: Expr, at: Expr, target: Expr, mode: StoreMode, dtype: str, sizes: tuple[str, ...] = ()) -> Kernel:
    """out[at] (mode)= x[row-major], where i0 = index[`index`] < `target`."""
    axes = tuple(Axis(f"x{n}", extent) for n, extent in enumerate(size))
    flat = X0 if len(size) == 1 else size[1] * X0 + X1
    body = (Load(0, "in0", index, "int64"), Indirect("i0", 0, target, True, False), Load(1, "in1", flat, dtype), Store("out0", at, 1, mode))
    buffers = (KernelBuffer("in0", "int64", "in"), KernelBuffer("in1", dtype, "in"), KernelBuffer("out0", dtype, "inout"))
    return Kernel(axes, (), (Stage(False, body),), buffers, sizes, ("scatter",))


def data(numel: int, indices: int, target: int, out: int, dtype: str) -> list[torch.Tensor]:
    kind = torch_dtype(dtype)
    return [
        torch.randint(0, target, (indices,)),
        torch.randint(-9, 9, (numel,)).to(kind),
        torch.randint(-9, 9, (out,)).to(kind),
    ]


#: name -> (extents, index's index, out's index, extent of the index, elements of out, what threads share)
SHAPES: dict[str, tuple[tuple[int, ...], Expr, Expr, int, int, str]] = {
    "one axis": ((70_000,), X0, I0, 50, 50, "owned_begin"),
    "rows": ((700, 128), X0, 128 * I0 + X1, 30, 30 * 128, "x1_begin"),
    "narrow rows": ((9000, 8), X0, 8 * I0 + X1, 30, 30 * 8, "owned_begin"),
    "along the last axis": ((300, 300), 300 * X0 + X1, 40 * X0 + I0, 40, 300 * 40, "parallel for"),
    "along the first axis": ((300, 300), 300 * X0 + X1, 300 * I0 + X1, 40, 300 * 40, "x1_begin"),
    "transposed": ((300, 300), 300 * X0 + X1, X0 + 300 * I0, 40, 300 * 40, "parallel for"),
    "few points": ((7, 5), 5 * X0 + X1, 5 * I0 + X1, 4, 20, ""),
}


@pytest.mark.parametrize("mode", [None, "add", "min"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_threads_share_scatters(mode: StoreMode, dtype: str, store: FileStore) -> None:
    """Also of half-precision numbers, whose sums tell the order: one after the other, as by one thread."""
    kernels = [scatter(size, index, at, target, mode, dtype) for size, index, at, target, _, _ in SHAPES.values()]
    for kernel, (name, shape) in zip(kernels, SHAPES.items(), strict=True):
        text = PLUGIN.emit(kernel, "kernel").text
        assert shape[-1] in text if shape[-1] else "omp parallel" not in text, name
    given = [data(s[0] * (s[1] if len(s) > 1 else 1), s[0] * (s[1] if index.has(X1) else 1), target, out, dtype)
             for s, index, _, target, out, _ in SHAPES.values()]  # fmt: skip
    expected = [[t.clone() for t in tensors] for tensors in given]
    interpret(kernels, expected)
    run(kernels, given, store)
    for name, got, want in zip(SHAPES, given, expected, strict=True):
        assert torch.equal(got[2], want[2]), name


def test_sizes_known_at_run_time(store: FileStore) -> None:
    kernel = scatter((N, 128), X0, 128 * I0 + X1, symbol("s1"), "add", "float32", ("s0", "s1"))
    assert [axis.name for axis in independent_axes(kernel)] == ["x1"]
    built = PLUGIN.build([PLUGIN.emit(kernel, "kernel")], store).callables["kernel"]
    for rows, target in ((3, 2), (900, 40)):
        tensors = data(rows * 128, rows, target, target * 128, "float32")
        expected = tensors[2].view(target, 128).index_add(0, tensors[0], tensors[1].view(rows, 128))
        built(*(t.data_ptr() for t in tensors), rows, target)
        assert torch.equal(tensors[2].view(target, 128), expected)


def test_axes_that_may_meet() -> None:
    def free(size: tuple[Expr, ...], at: Expr, target: Expr = 5) -> list[str]:
        return [axis.name for axis in independent_axes(scatter(size, X0, at, target, None, "float32"))]

    assert free((3, 8), 8 * I0 + X1) == ["x1"]
    assert free((3, 9), 8 * I0 + X1) == []  # a row reaches into the next
    assert free((3, 8), 5 * X1 + I0) == ["x1"]
    assert free((3, 8), 4 * X1 + I0) == []
    assert free((3, 8), 40 * X0 + 5 * X1 + I0) == ["x0", "x1"]
    assert free((3, N), N * I0 + X1) == ["x1"]
    assert free((3, N), 8 * I0 + X1) == []
    assert free((3, N), N * X0 + X1) == ["x0", "x1"]


def test_bad_indices_raise_and_write_nowhere(store: FileStore) -> None:
    kernels = [scatter(size, index, at, target, "add", "int64") for size, index, at, target, _, _ in SHAPES.values()]
    for bad in (-1, 10_000):
        given = [data(s[0] * (s[1] if len(s) > 1 else 1), s[0] * (s[1] if index.has(X1) else 1), target, out, "int64")
                 for s, index, _, target, out, _ in SHAPES.values()]  # fmt: skip
        for tensors in given:
            tensors[0][2] = bad
        sources = [PLUGIN.emit(kernel, f"kernel_{n}") for n, kernel in enumerate(kernels)]
        built = PLUGIN.build(sources, store)
        for n, tensors in enumerate(given):
            with pytest.raises(IndexError, match="out of range"):
                built.callables[f"kernel_{n}"](*(t.data_ptr() for t in tensors))
