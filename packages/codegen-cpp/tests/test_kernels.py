"""Loop structures: folds along rows and down columns, scans, scratch, indirect indices, symbolic sizes, the emitted text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpp_kernels import R0, X0, X1, interpret, layer_norm, pointwise, reduction, run

from fxloom_codegen_cpp.emit import emit_kernel
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.dtypes import torch_dtype
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import symbol, value_symbol
from fxloom_interfaces.program import (
    Accumulate,
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Kernel,
    KernelBuffer,
    Load,
    Reduce,
    Stage,
    Store,
)

SHAPES = [(3, 5), (40, 70), (2, 9001)]


@pytest.mark.parametrize("by_columns", [False, True])
def test_folds(by_columns: bool, store: FileStore) -> None:
    cases = []
    for kind, dtype, result in [
        ("sum", "float32", "float32"),
        ("sum", "float64", "float64"),
        ("sum", "int64", "int64"),
        ("prod", "float32", "float32"),
        ("max", "float32", "float32"),
        ("min", "float32", "float32"),
        ("max", "int32", "int32"),
        ("min", "int64", "int64"),
        ("any", "bool", "bool"),
        ("all", "bool", "bool"),
        ("argmax", "float32", "int64"),
        ("argmin", "float32", "int64"),
        ("argmax", "int64", "int64"),
        ("welford", "float32", "float32"),
        ("xor_sum", "int64", "int64"),
    ]:
        cases += [(kind, dtype, result, rows, width) for rows, width in SHAPES]
    kernels = [reduction(*case, by_columns=by_columns) for case in cases]
    arguments, expected = [], []
    generator = torch.Generator().manual_seed(0)
    for kind, dtype, result, rows, width in cases:
        values = torch.rand(rows * width, generator=generator)
        if dtype == "bool":
            values = values > (0.9 if kind == "any" else 0.02)
        elif dtype.startswith("int"):
            values = (values * 20 - 10).to(torch_dtype(dtype))
        elif kind == "prod":
            values = values * 0.1 + 0.95
        outs = [torch.zeros(rows, dtype=torch_dtype(result)) for _ in range(2 if kind == "welford" else 1)]
        arguments.append([values.to(torch_dtype(dtype)), *outs])
        expected.append([values.to(torch_dtype(dtype)), *(o.clone() for o in outs)])
    run(kernels, arguments, store)
    interpret(kernels, expected)
    for case, got, want in zip(cases, arguments, expected, strict=True):
        for a, b in zip(got[1:], want[1:], strict=True):
            exact = not a.is_floating_point()
            close = torch.equal(a, b) if exact else torch.allclose(a, b, rtol=2e-6 if case[0] != "prod" else 1e-4)
            assert close, (case, a, b)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_wins(kind: str, store: FileStore) -> None:
    x = torch.randn(4, 100)
    x[1, 37] = float("nan")
    out = torch.empty(4)
    run([reduction(kind, "float32", "float32", 4, 100)], [[x, out]], store)
    assert torch.equal(torch.isnan(out), torch.tensor([False, True, False, False]))


def test_first_position_wins_and_nan_counts_as_extreme(store: FileStore) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [1.0, float("nan"), 5.0, float("nan")], [float("-inf")] * 4])
    out = torch.empty(3, dtype=torch.int64)
    run([reduction("argmax", "float32", "int64", 3, 4)], [[x, out]], store)
    assert out.tolist() == [1, 1, 0]


@pytest.mark.parametrize("kind", ["argmax", "welford"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_a_value_folds_twice_in_one_loop(kind: str, by_columns: bool, store: FileStore) -> None:
    """Each fold has names of its own, also where both fold the same value."""
    other, rows, width = {"argmax": "argmin", "welford": "welford"}[kind], 70, 9
    index = R0 * rows + X0 if by_columns else X0 * width + R0
    stages = (
        Stage(
            True,
            (
                Load(0, "in0", index, "float32"),
                Reduce((1, 2, 3) if kind == "welford" else (1,), kind, 0, "float32"),
                Reduce((4, 5, 6) if kind == "welford" else (4,), other, 0, "float32"),
                Reduce((7,), "max", 0, "float32"),
            ),
        ),
        Stage(False, (Store("out0", X0, 1), Store("out1", X0, 4))),
    )
    result = "float32" if kind == "welford" else "int64"
    buffers = (KernelBuffer("in0", "float32", "in"), KernelBuffer("out0", result, "out"), KernelBuffer("out1", result, "out"))
    kernel = Kernel((Axis("x0", rows),), (Axis("r0", width),), stages, buffers)
    x = torch.randn(rows * width)
    got = [x, *(torch.zeros(rows, dtype=torch_dtype(result)) for _ in range(2))]
    want = [t.clone() for t in got]
    run([kernel], [got], store)
    interpret([kernel], [want])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_long_sums_stay_accurate(store: FileStore) -> None:
    x = torch.rand(1 << 20)
    by_row, by_column = torch.empty(1), torch.empty(16)
    kernels = [
        reduction("sum", "float32", "float32", 1, 1 << 20),
        reduction("sum", "float32", "float32", 16, 1 << 16, by_columns=True),
    ]
    run(kernels, [[x, by_row], [x, by_column]], store)
    exact = x.double()
    assert abs(by_row.double().item() / exact.sum().item() - 1) < 1e-6
    assert ((by_column.double() / exact.view(1 << 16, 16).sum(0)) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("by_columns", [False, True])
def test_values_cross_stages(by_columns: bool, store: FileStore) -> None:
    rows, width = 70, 96
    x, out = torch.randn(rows * width), torch.empty(rows * width)
    run([layer_norm(rows, width, by_columns=by_columns)], [[x, out]], store)
    shaped = x.view(width, rows).t() if by_columns else x.view(rows, width)
    got = out.view(width, rows).t() if by_columns else out.view(rows, width)
    torch.testing.assert_close(got, torch.nn.functional.layer_norm(shaped, (width,)), rtol=1e-5, atol=1e-5)


def test_layer_norm_reads_as_written_by_hand(golden: Callable[[Path, str], None]) -> None:
    golden(Path(__file__).parent / "golden" / "layer_norm.cpp", emit_kernel(layer_norm(512, 768), "layer_norm_0"))


def test_scan_keeps_a_double(store: FileStore) -> None:
    body = (Load(0, "in0", X0 * 1000 + R0, "float32"), Accumulate(1, "sum", 0, "float32"), Store("out0", X0 * 1000 + R0, 1))
    buffers = (KernelBuffer("in0", "float32", "in"), KernelBuffer("out0", "float32", "out"))
    kernel = Kernel((Axis("x0", 3),), (Axis("r0", 1000),), (Stage(True, body),), buffers)
    x, out = torch.rand(3, 1000), torch.empty(3, 1000)
    run([kernel], [[x, out]], store)
    torch.testing.assert_close(out, x.double().cumsum(1).float(), rtol=1e-7, atol=0)


def gather(numel: int) -> Kernel:
    i0 = value_symbol("i0")
    body = (
        Load(0, "in0", X0, "int64"),
        Indirect("i0", 0, 4, check=True, wrap=True),
        Load(1, "in1", i0, "float32"),
        Store("out0", X0, 1),
    )
    buffers = (KernelBuffer("in0", "int64", "in"), KernelBuffer("in1", "float32", "in"), KernelBuffer("out0", "float32", "out"))
    return Kernel((Axis("x0", numel),), (), (Stage(False, body),), buffers, (), ("gather",))


def test_bad_indices_raise(store: FileStore) -> None:
    for numel in (3, 200_000):  # one thread, several threads
        index = torch.zeros(numel, dtype=torch.int64)
        index[1] = -1
        out, table = torch.empty(numel), torch.arange(4.0)
        run([gather(numel)], [[index, table, out]], store)
        assert out[:3].tolist() == [0.0, 3.0, 0.0]
        for bad in (4, -5):
            index[-1] = bad
            with pytest.raises(IndexError, match="index out of range in kernel kernel_0"):
                run([gather(numel)], [[index, table, out]], store)


def test_symbolic_sizes(store: FileStore) -> None:
    n = symbol("s0")
    stages = (
        Stage(True, (Load(0, "in0", X0 * n + R0, "float32"), Reduce((1,), "sum", 0, "float32"))),
        Stage(
            False,
            (
                IndexValue(2, n, "int64"),
                Compute(3, "to_dtype", (2,), "float32"),
                Compute(4, "div", (1, 3), "float32"),
                Store("out0", X0, 4),
            ),
        ),
    )
    buffers = (KernelBuffer("in0", "float32", "in"), KernelBuffer("out0", "float32", "out"))
    kernel = Kernel((Axis("x0", symbol("s1")),), (Axis("r0", n),), stages, buffers, ("s0", "s1"), ("mean",))
    built = PLUGIN.build([PLUGIN.emit(kernel, "mean")], store)
    for rows, width in [(3, 5), (200, 333)]:
        x, out = torch.randn(rows, width), torch.empty(rows)
        built.callables["mean"](x.data_ptr(), out.data_ptr(), width, rows)
        torch.testing.assert_close(out, x.mean(1))


def test_masked_loads_stay_inside(store: FileStore) -> None:
    body = (
        IndexValue(0, X1, "int64"),
        Constant(1, 3, "int64"),
        Compute(2, "lt", (0, 1), "bool"),
        Load(3, "in0", X0 * 3 + X1 * (1 << 40), "float32", mask=2),
        Load(4, "in0", X0 * 3 + X1, "float32", mask=2),
        Constant(5, -1.0, "float32"),
        Compute(6, "where", (2, 4, 5), "float32"),
        Store("out0", X0 * 5 + X1, 6),
    )
    kernel = Kernel(
        (Axis("x0", 2), Axis("x1", 5)),
        (),
        (Stage(False, body[:3] + body[4:]),),
        (KernelBuffer("in0", "float32", "in"), KernelBuffer("out0", "float32", "out")),
    )
    x, out = torch.arange(6.0), torch.empty(10)
    run([kernel], [[x, out]], store)
    assert out.tolist() == [0.0, 1.0, 2.0, -1.0, -1.0, 3.0, 4.0, 5.0, -1.0, -1.0]


def test_what_the_target_lacks_is_an_error_at_emit() -> None:
    with pytest.raises(PluginError, match="complex64"):
        PLUGIN.emit(pointwise("add", ["complex64"] * 2, "complex64"), "k")


def test_emission_is_deterministic() -> None:
    assert emit_kernel(layer_norm(8, 9), "k") == emit_kernel(layer_norm(8, 9), "k")


@pytest.mark.parametrize("by_columns", [False, True])
def test_an_index_made_outside_the_fold_is_used_inside(by_columns: bool, store: FileStore) -> None:
    """out[i] = sum over r of in0[where[i], r], also with lanes along i."""
    rows, width = 70, 6
    picked = value_symbol("i0")
    stages = (
        Stage(False, (Load(0, "in1", X0, "int64"), Indirect("i0", 0, rows, check=True, wrap=True))),
        Stage(True, (Load(1, "in0", R0 * rows + picked if by_columns else picked * width + R0, "float64"),
                     Load(2, "in0", R0 * rows + X0 if by_columns else X0 * width + R0, "float64"),
                     Compute(3, "add", (1, 2), "float64"), Reduce((4,), "sum", 3, "float64"))),
        Stage(False, (Store("out0", X0, 4),)),
    )  # fmt: skip
    buffers = (KernelBuffer("in0", "float64", "in"), KernelBuffer("in1", "int64", "in"), KernelBuffer("out0", "float64", "out"))
    kernel = Kernel((Axis("x0", rows),), (Axis("r0", width),), stages, buffers)
    got = [torch.randn(rows * width, dtype=torch.float64), torch.randint(-rows, rows, (rows,)), torch.zeros(rows).double()]
    want = [t.clone() for t in got]
    run([kernel], [got], store)
    interpret([kernel], [want])
    torch.testing.assert_close(got[2], want[2])
