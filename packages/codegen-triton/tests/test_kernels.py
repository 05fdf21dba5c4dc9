"""Generated kernels against the reference interpreter of the loop IR, in Triton's interpreter."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fxloom_codegen_common.interpreter import interpret_positional
from fxloom_codegen_triton import PLUGIN, emit, tiles
from fxloom_codegen_triton.spelling import BOOL, COMPARE, FLOAT, INTEGER
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.dtypes import torch_dtype
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import floor_div, mod, symbol, value_symbol
from fxloom_interfaces.ops import OPS
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

DEVICE = "cuda" if os.environ.get("FXLOOM_TEST_GPU") == "1" else "cpu"
X, Y, R, Q = symbol("x0"), symbol("x1"), symbol("r0"), symbol("r1")


def check(kernel: Kernel, tensors: list[torch.Tensor], tmp_path: Path, sizes: tuple[int, ...] = (), **tolerance: Any) -> str:
    """Run `kernel` both ways on copies of `tensors`; returns the source."""
    expected = [tensor.clone() for tensor in tensors]
    actual = [tensor.clone().to(DEVICE) for tensor in tensors]
    interpret_positional(kernel, *expected, *sizes)
    source = PLUGIN.emit(kernel, "kernel_0")
    built = PLUGIN.build([source], FileStore(tmp_path))
    built.callables["kernel_0"](*actual, *sizes)
    for buffer, want, got in zip(kernel.arguments, expected, actual, strict=True):
        torch.testing.assert_close(got.cpu(), want, equal_nan=True, msg=lambda m, b=buffer: f"{b}: {m}\n{built.source}", **tolerance)
    assert any(not torch.equal(before, after.cpu()) for before, after in zip(tensors, actual, strict=True)) or len(tensors) == 0
    return built.source


def bias_relu(n: int, m: int, dtype: str = "float32") -> Kernel:
    body = (
        Load(0, "x", m * X + Y, dtype),
        Load(1, "bias", Y, dtype),
        Compute(2, "add", (0, 1), dtype),
        Constant(3, 0.0, dtype),
        Compute(4, "maximum", (2, 3), dtype),
        Store("out", m * X + Y, 4),
    )
    buffers = (KernelBuffer("x", dtype, "in"), KernelBuffer("bias", dtype, "in"), KernelBuffer("out", dtype, "out"))
    return Kernel((Axis("x0", n), Axis("x1", m)), (), (Stage(False, body),), buffers, title=("add", "relu"))


def test_pointwise_with_broadcast(tmp_path: Path) -> None:
    check(bias_relu(37, 50), [torch.randn(37, 50), torch.randn(50), torch.empty(37, 50)], tmp_path)


def test_nan_passes_through_maximum(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    x[1, 2] = float("nan")
    check(bias_relu(4, 8), [x, torch.zeros(8), torch.empty(4, 8)], tmp_path)


def softmax(rows: int, width: int) -> Kernel:
    at = width * X + R
    first = (Load(0, "x", at, "float32"), Reduce((1,), "max", 0, "float32"))
    second = (
        Load(2, "x", at, "float32"),
        Compute(3, "sub", (2, 1), "float32"),
        Compute(4, "exp", (3,), "float32"),
        Reduce((5,), "sum", 4, "float32"),
    )
    third = (
        Load(6, "x", at, "float32"),
        Compute(7, "sub", (6, 1), "float32"),
        Compute(8, "exp", (7,), "float32"),
        Compute(9, "div", (8, 5), "float32"),
        Store("out", at, 9),
    )
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float32", "out"))
    return Kernel(
        (Axis("x0", rows),), (Axis("r0", width),), tuple(Stage(True, body) for body in (first, second, third)), buffers, title=("softmax",)
    )


@pytest.mark.parametrize("width", [1, 64, 100])
def test_persistent_softmax_loads_and_computes_once(width: int, tmp_path: Path) -> None:
    source = check(softmax(9, width), [torch.randn(9, width), torch.empty(9, width)], tmp_path)
    assert source.count("tl.load") == 1  # three stages, one tile
    assert source.count("libdevice.exp(") == 1
    assert "for inner_start" not in source


def test_looped_softmax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PERSISTENT_NUMEL", 0)
    source = check(softmax(3, 5000), [torch.randn(3, 5000), torch.empty(3, 5000)], tmp_path)
    assert source.count("for inner_start") == 3


def reduction(kind: str, dtype: str, acc: str, rows: int, inner: tuple[int, int], results: int = 1) -> Kernel:
    a, b = inner
    result_dtype = {"argmax": "int64", "argmin": "int64", "any": "bool", "all": "bool"}.get(kind, acc)
    values = tuple(range(2, 2 + results))
    body: list[Any] = [Load(0, "x", a * b * X + b * R + Q, dtype)]
    value = 0
    if acc != dtype and kind not in ("argmax", "argmin", "any", "all"):
        body.append(Compute(1, "to_dtype", (0,), acc))
        value = 1
    body.append(Reduce(values, kind, value, "bool" if kind in ("any", "all") else acc))
    outs = tuple(Store(f"out{i}", X, v) for i, v in enumerate(values))
    buffers = (KernelBuffer("x", dtype, "in"), *(KernelBuffer(f"out{i}", result_dtype, "out") for i in range(results)))
    return Kernel((Axis("x0", rows),), (Axis("r0", a), Axis("r1", b)), (Stage(True, tuple(body)), Stage(False, outs)), buffers)


KINDS = [
    ("sum", "float32", "float32"), ("sum", "float16", "float32"), ("sum", "int64", "int64"), ("prod", "float32", "float32"),
    ("max", "float32", "float32"), ("min", "float32", "float32"), ("max", "int32", "int32"), ("min", "int64", "int64"),
    ("any", "bool", "bool"), ("all", "bool", "bool"), ("argmax", "float32", "int64"), ("argmin", "float32", "int64"),
    ("max", "bfloat16", "bfloat16"), ("min", "float16", "float16"), ("argmax", "bfloat16", "int64"), ("argmin", "float16", "int64"),
    ("argmax", "int64", "int64"), ("welford", "float32", "float32"), ("xor_sum", "int64", "int64"),
]  # fmt: skip


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "looped"])
@pytest.mark.parametrize(("kind", "dtype", "acc"), KINDS)
def test_reductions(kind: str, dtype: str, acc: str, persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not persistent:
        monkeypatch.setattr(tiles, "PERSISTENT_NUMEL", 0)
        monkeypatch.setattr(emit, "choose_tiles", lambda kernel: tiles.Tiles(2, 16, 4, False))
    rows, inner = 3, (7, 5)
    if dtype == "bool":
        x = torch.zeros(rows, *inner, dtype=torch.bool)
        x[1, 3, 2] = True
        x[2] = True
    elif dtype.startswith("int"):
        x = torch.randint(-9, 9, (rows, *inner), dtype=torch_dtype(dtype))
    else:
        x = torch.randn(rows, *inner).to(torch_dtype(dtype))
        if kind in ("max", "min", "argmax", "argmin"):
            x[1, 4, 1] = float("nan")
            x[1, 5, 0] = float("nan")
            x[2, 2, 2] = x[2, 6, 4] = x[2].amax() + (1 if "max" in kind else -9)
    results = 3 if kind == "welford" else 1
    kernel = reduction(kind, dtype, acc, rows, inner, results)
    out_dtypes = [torch_dtype(buffer.dtype) for buffer in kernel.arguments[1:]]
    outs = [torch.full((rows,), 3).to(d) if d is not torch.bool else torch.tensor([True, True, False]) for d in out_dtypes]
    check(kernel, [x, *outs], tmp_path)


SCANS = [
    ("sum", "float32", "float32"), ("sum", "bfloat16", "float32"), ("sum", "int64", "int64"), ("sum", "bool", "int64"),
    ("prod", "float32", "float32"), ("prod", "int32", "int32"), ("max", "float32", "float32"), ("min", "int64", "int64"),
]  # fmt: skip


@pytest.mark.parametrize("width", [1, 32, 45])
@pytest.mark.parametrize(("kind", "dtype", "acc"), SCANS)
def test_scans(kind: str, dtype: str, acc: str, width: int, tmp_path: Path) -> None:
    """Over two inner axes in row-major order, between what is computed before and after in the same kernel."""
    at = 3 * width * X + width * R + Q
    body = (
        Load(0, "x", at, dtype),
        *([Compute(1, "to_dtype", (0,), acc)] if acc != dtype else []),
        Accumulate(2, kind, int(acc != dtype), acc),
        Constant(3, 3, acc),
        Compute(4, "add", (2, 3), acc),
        Store("out", at, 4),
    )
    buffers = (KernelBuffer("x", dtype, "in"), KernelBuffer("out", acc, "out"))
    kernel = Kernel((Axis("x0", 5),), (Axis("r0", 3), Axis("r1", width)), (Stage(True, body),), buffers)
    x = torch.randn(5, 3, width) if "float" in dtype else torch.randint(-2, 3, (5, 3, width))
    if kind in ("max", "min") and "float" in dtype:
        x[1, 1, width // 2] = float("nan")
    check(kernel, [x.to(torch_dtype(dtype)), torch.full((5, 3, width), 9).to(torch_dtype(acc))], tmp_path)


def test_scan_of_a_number(tmp_path: Path) -> None:
    body = (Constant(0, 1, "int64"), Accumulate(1, "sum", 0, "int64"), Store("out", 10 * X + R, 1))
    buffers = (KernelBuffer("out", "int64", "out"),)
    kernel = Kernel((Axis("x0", 2),), (Axis("r0", 10),), (Stage(True, body),), buffers)
    out = torch.zeros(2, 10, dtype=torch.int64)
    check(kernel, [out], tmp_path)


def test_scan_too_long_is_refused() -> None:
    width = PLUGIN.capabilities.max_scan_numel + 1
    body = (Load(0, "x", R, "float32"), Accumulate(1, "sum", 0, "float32"), Store("out", R, 1))
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float32", "out"))
    with pytest.raises(PluginError, match=f"scans {width} elements"):
        PLUGIN.emit(Kernel((), (Axis("r0", width),), (Stage(True, body),), buffers), "k")


@pytest.mark.parametrize("persistent", [True, False])
def test_threads_meet_between_a_store_and_a_load_of_it(persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU another thread may have stored what a thread loads; the interpreter has one thread, so the text is looked at."""
    monkeypatch.setattr(tiles, "PERSISTENT_NUMEL", 1 << 14 if persistent else 0)
    rows, width = 5, 3000
    at = width * X + R
    first = (
        Load(0, "x", at, "float32"),
        Compute(1, "exp", (0,), "float32"),
        Store("out", at, 1),
        Reduce((2,), "sum", 1, "float32"),
    )
    second = (Load(3, "out", at, "float32"), Compute(4, "div", (3, 2), "float32"), Store("shares", at, 4))
    buffers = tuple(KernelBuffer(name, "float32", "in" if name == "x" else "out") for name in ("x", "out", "shares"))
    kernel = Kernel((Axis("x0", rows),), (Axis("r0", width),), (Stage(True, first), Stage(True, second)), buffers)
    source = check(kernel, [torch.randn(rows, width), torch.empty(rows, width), torch.empty(rows, width)], tmp_path)
    assert source.count("tl.debug_barrier()") == 1
    assert source.index("tl.store(out_ptr") < source.index("tl.debug_barrier()") < source.index("tl.load(out_ptr")
    if not persistent:  # it does not wait in every round
        assert source.index("tl.debug_barrier()") < source.rindex("for inner_start")


def test_threads_meet_before_what_they_read_is_written(tmp_path: Path) -> None:
    """An argument that is updated in place and read at other places of its row."""
    body = (Load(0, "x", 64 * X + (63 - R), "float32"), Reduce((1,), "max", 0, "float32"))
    update = (Load(2, "x", 64 * X + R, "float32"), Compute(3, "sub", (2, 1), "float32"), Store("x", 64 * X + R, 3))
    kernel = Kernel((Axis("x0", 9),), (Axis("r0", 64),), (Stage(True, body), Stage(True, update)), (KernelBuffer("x", "float32", "inout"),))
    source = check(kernel, [torch.randn(9, 64)], tmp_path)
    assert source.index("tl.debug_barrier()") < source.index("tl.store(x_ptr")


def test_strided_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column sum: contiguous along the outer axis."""
    monkeypatch.setattr(tiles, "PERSISTENT_NUMEL", 0)
    body = (Load(0, "x", 70 * R + X, "float32"), Reduce((1,), "sum", 0, "float32"))
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float32", "out"))
    kernel = Kernel((Axis("x0", 70),), (Axis("r0", 100),), (Stage(True, body), Stage(False, (Store("out", X, 1),))), buffers)
    assert tiles.choose_tiles(kernel).outer_tile == 64
    check(kernel, [torch.randn(100, 70), torch.empty(70)], tmp_path)


def test_reduction_of_everything(tmp_path: Path) -> None:
    body = (Load(0, "x", R, "float32"), Reduce((1,), "sum", 0, "float32"))
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float32", "out"))
    kernel = Kernel((), (Axis("r0", 300),), (Stage(True, body), Stage(False, (Store("out", 0, 1),))), buffers)
    check(kernel, [torch.randn(300), torch.empty(())], tmp_path)


def test_elements_stored_beside_a_reduction_of_everything(tmp_path: Path) -> None:
    """The addresses vary along the inner axis alone, the masks along both."""
    body = (Load(0, "x", R, "float32"), Compute(1, "neg", (0,), "float32"), Store("out", R, 1), Reduce((2,), "sum", 0, "float32"))
    buffers = tuple(KernelBuffer(name, "float32", role) for name, role in (("x", "in"), ("out", "out"), ("total", "out")))
    kernel = Kernel((), (Axis("r0", 300),), (Stage(True, body), Stage(False, (Store("total", 0, 2),))), buffers)
    assert "outer * 0" in check(kernel, [torch.randn(300), torch.empty(300), torch.empty(())], tmp_path)


def gather(check_index: bool = True) -> Kernel:
    index = value_symbol("i0")
    body = (
        Load(0, "index", X, "int64"),
        Indirect("i0", 0, 11, check_index, True),
        Load(1, "table", 8 * index + Y, "float32"),
        Store("out", 8 * X + Y, 1),
    )
    buffers = (KernelBuffer("index", "int64", "in"), KernelBuffer("table", "float32", "in"), KernelBuffer("out", "float32", "out"))
    return Kernel((Axis("x0", 5), Axis("x1", 8)), (), (Stage(False, body),), buffers)


def test_indirect_load_wraps(tmp_path: Path) -> None:
    check(gather(), [torch.tensor([0, 10, -1, -11, 3]), torch.randn(11, 8), torch.empty(5, 8)], tmp_path)


def test_integers_wrap_around_beside_checked_indices(tmp_path: Path) -> None:
    """Checks are compiled in Triton's debug mode, in which it would put a check behind every sum and product of small integers."""
    at = value_symbol("i0")
    body = (
        Load(0, "index", X, "int64"),
        Indirect("i0", 0, 4, True, True),
        Load(1, "x", at, "int32"),
        Compute(2, "mul", (1, 1), "int32"),
        Compute(3, "add", (2, 1), "int32"),
        Store("out", X, 3),
    )
    buffers = (KernelBuffer("index", "int64", "in"), KernelBuffer("x", "int32", "in"), KernelBuffer("out", "int32", "out"))
    kernel = Kernel((Axis("x0", 4),), (), (Stage(False, body),), buffers)
    x = torch.tensor([2**31 - 1, -(2**31), 65536, 3], dtype=torch.int32)
    check(kernel, [torch.tensor([0, 1, 2, 3]), x, torch.empty(4, dtype=torch.int32)], tmp_path)
    path = tmp_path / "kernel.pickle"
    path.write_bytes(pickle.dumps(PLUGIN.emit(kernel, "wrapping")))
    code = (
        "import pickle, sys; from pathlib import Path; from fxloom_codegen_triton.check import triton_ir; "
        "print(triton_ir(pickle.loads(Path(sys.argv[1]).read_bytes())))"
    )
    command = [sys.executable, "-c", code, str(path)]
    text = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=True).stdout
    assert "index out of range" in text
    assert "overflow" not in text


def test_padding_that_is_folded_needs_no_sums_of_16_bits(tmp_path: Path) -> None:
    """Such sums, of positions in rows, ptxas of CUDA 12.8 got wrong: the last element of a transposed, padded tensor was 0."""
    row, column = symbol("r0"), symbol("r1")
    body = (
        IndexValue(0, column - 1, "int64"),
        Constant(1, 0, "int64"),
        Compute(2, "ge", (0, 1), "bool"),
        Constant(3, 33, "int64"),
        Compute(4, "lt", (0, 3), "bool"),
        Compute(5, "logical_and", (2, 4), "bool"),
        Load(6, "x", row + 3 * column - 3, "float32", 5),
        Compute(7, "to_dtype", (6,), "float16"),
        Constant(8, 0.0, "float16"),
        Compute(9, "where", (5, 7, 8), "float16"),
        Store("out", 36 * row + column, 9),
        Compute(10, "to_dtype", (9,), "float32"),
        Constant(11, 3.0, "float32"),
        Compute(12, "remainder", (10, 11), "float32"),
        Reduce((13,), "max", 12, "float32"),
    )
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float16", "out"), KernelBuffer("most", "float32", "out"))
    kernel = Kernel((), (Axis("r0", 3), Axis("r1", 36)), (Stage(True, body), Stage(False, (Store("most", 0, 13),))), buffers)
    check(kernel, [torch.arange(1.0, 100.0), torch.empty(108, dtype=torch.float16), torch.empty(1)], tmp_path)
    path = tmp_path / "kernel.pickle"
    path.write_bytes(pickle.dumps([PLUGIN.emit(kernel, "padding")]))
    command = [sys.executable, "-m", "fxloom_codegen_triton.check", str(path), "--whole"]
    found = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.skipif(DEVICE == "cuda", reason="an assert in a kernel ends the CUDA context, and with it the other tests")
def test_one_number_beside_an_indirect_load(tmp_path: Path) -> None:
    """Its address is no tile: an index that is always 0, and a tensor without dimensions."""
    at = value_symbol("i0")
    body = (
        Load(0, "index", X, "int64"),
        Indirect("i0", 0, 1, True, True),
        Load(1, "x", 0 * at, "float32"),
        Load(2, "scale", 0 * X, "float32"),
        Compute(3, "mul", (1, 2), "float32"),
        Store("out", X, 3),
    )
    buffers = (
        KernelBuffer("index", "int64", "in"), KernelBuffer("x", "float32", "in"), KernelBuffer("scale", "float32", "in"),
        KernelBuffer("out", "float32", "out"),
    )  # fmt: skip
    kernel = Kernel((Axis("x0", 300),), (), (Stage(False, body),), buffers)
    check(kernel, [torch.zeros(300, dtype=torch.int64), torch.randn(1), torch.randn(()), torch.empty(300)], tmp_path)


def test_a_size_as_a_value(tmp_path: Path) -> None:
    """A number for all points, that Triton may take for a constant."""
    size = symbol("s0")
    body = (IndexValue(0, size, "int64"), IndexValue(1, size + X, "int64"), Compute(2, "mul", (0, 1), "int64"), Store("out", X, 2))
    kernel = Kernel((Axis("x0", size),), (), (Stage(False, body),), (KernelBuffer("out", "int64", "out"),), sizes=("s0",))
    for length in (1, 16, 77):
        check(kernel, [torch.empty(length, dtype=torch.int64)], tmp_path, (length,))


@pytest.mark.skipif(DEVICE == "cuda", reason="an assertion on the card ends the process; the interpreter raises")
def test_indirect_load_out_of_range_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    # the interpreter does not read `debug=True` of the decorator
    monkeypatch.setattr(interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(debug=True))
    source = PLUGIN.emit(gather(), "kernel_0")
    assert "device_assert" in source.text
    assert "debug=True" in source.text
    kernel = PLUGIN.build([source], FileStore(tmp_path)).callables["kernel_0"]
    with pytest.raises(Exception, match="index out of range"):
        kernel(torch.tensor([0, 11, 1, 1, 1]), torch.randn(11, 8), torch.empty(5, 8))


def test_masked_load_touches_nothing_outside(tmp_path: Path) -> None:
    """A padded read: out[i] = x[i - 2] where that exists, else 7."""
    body = (
        IndexValue(0, X, "int64"),
        Constant(1, 2, "int64"),
        Compute(2, "ge", (0, 1), "bool"),
        Load(3, "x", X - 2, "float32", mask=2),
        Constant(4, 7.0, "float32"),
        Compute(5, "where", (2, 3, 4), "float32"),
        Store("out", X, 5),
    )
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float32", "out"))
    check(Kernel((Axis("x0", 10),), (), (Stage(False, body),), buffers), [torch.randn(8), torch.empty(10)], tmp_path)


def scatter(mode: Any, dtype: str, rows: int = 20, width: int = 6) -> Kernel:
    """Rows added (or otherwise combined) to rows that `index` tells."""
    index = value_symbol("i0")
    body = (
        Load(0, "index", X, "int64"),
        Indirect("i0", 0, 4, True, False),
        Load(1, "x", width * X + Y, dtype),
        Store("out", width * index + Y, 1, mode),
    )
    buffers = (KernelBuffer("index", "int64", "in"), KernelBuffer("x", dtype, "in"), KernelBuffer("out", dtype, "inout"))
    return Kernel((Axis("x0", rows), Axis("x1", width)), (), (Stage(False, body),), buffers)


SCATTERS = sorted(tuple(name.split()) for name in PLUGIN.capabilities.scatters if not name.startswith("assign"))


@pytest.mark.parametrize(("mode", "dtype"), SCATTERS)
def test_scatters_to_repeated_indices(mode: str, dtype: str, plugin: Any, tmp_path: Path) -> None:
    if f"{mode} {dtype}" not in plugin.capabilities.scatters:
        PLUGIN.build([PLUGIN.emit(scatter(mode, dtype), "kernel_0")], FileStore(tmp_path))  # it is compiled at the end
        pytest.skip("runs on a GPU only")
    least, most = (-1, 2) if mode == "mul" else (-9, 9)  # products stay exact in any order
    x, out = (torch.randint(least, most, (n, 6)).to(torch_dtype(dtype)) for n in (20, 4))
    if mode in ("min", "max") and "float" in dtype:
        x[3, :2], out[1, 2] = torch.tensor([torch.nan, -torch.nan], dtype=x.dtype), torch.inf
        x[5, 3], x[6, 3] = -torch.inf, -0.0
    source = check(scatter(mode, dtype), [torch.randint(0, 4, (20,)), x, out], tmp_path)
    assert f"atomic_{mode}" in source


def test_a_number_is_scattered(tmp_path: Path) -> None:
    index = value_symbol("i0")
    body = (Load(0, "index", X, "int64"), Indirect("i0", 0, 4, True, False), Constant(1, 2, "float16"), Store("out", index, 1, "add"))
    buffers = (KernelBuffer("index", "int64", "in"), KernelBuffer("out", "float16", "inout"))
    kernel = Kernel((Axis("x0", 20),), (), (Stage(False, body),), buffers)
    check(kernel, [torch.randint(0, 4, (20,)), torch.zeros(4, dtype=torch.float16)], tmp_path)


@pytest.mark.parametrize(("mode", "dtype"), [("max", "float16"), ("mul", "bfloat16"), ("add", "int8")])
def test_scatters_that_triton_lacks_are_refused(mode: str, dtype: str) -> None:
    assert f"{mode} {dtype}" not in PLUGIN.capabilities.scatters
    with pytest.raises(PluginError, match=f"no atomic {mode} of {dtype}"):
        PLUGIN.emit(scatter(mode, dtype), "kernel_0")


def test_numbers_below_zero_divide_as_in_python(tmp_path: Path) -> None:
    """A number that the program reads out of a tensor, and what `x[n]` makes of it."""
    number = value_symbol("n0")
    body = (IndexValue(0, mod(number, 6), "int64"), IndexValue(1, floor_div(number, 6), "int64"), Compute(2, "add", (0, 1), "int64"))
    buffers = (KernelBuffer("out", "int64", "out"), KernelBuffer("quotient", "int64", "out"))
    stage = Stage(False, (*body, Store("out", X, 0), Store("quotient", X, 1)))
    kernel = Kernel((Axis("x0", 4),), (), (stage,), buffers, sizes=("n0",))
    for value in (-13, -6, -2, 0, 5, 7):
        check(kernel, [torch.empty(4, dtype=torch.int64), torch.empty(4, dtype=torch.int64)], tmp_path, (value,))


def test_symbolic_sizes_reuse_one_kernel(tmp_path: Path) -> None:
    n = symbol("s0")
    body = (Load(0, "x", X, "float32"), Compute(1, "neg", (0,), "float32"), Store("out", X, 1))
    buffers = (KernelBuffer("x", "float32", "in"), KernelBuffer("out", "float32", "out"))
    kernel = Kernel((Axis("x0", n),), (), (Stage(False, body),), buffers, sizes=("s0",))
    texts = {check(kernel, [torch.randn(m), torch.empty(m)], tmp_path, sizes=(m,)) for m in (1, 100, 3000)}
    assert len(texts) == 1


def elementwise(op: str, dtype: str) -> Kernel:
    """One op; what it makes of integers is halved, which shows whether they stand in a wider type than `dtype`."""
    arity = OPS[op].arity
    result = "bool" if OPS[op].result == "bool" else dtype
    loads = tuple(Load(i, f"in{i}", X, dtype) for i in range(arity))
    body: tuple[Any, ...] = (*loads, Compute(arity, op, tuple(range(arity)), result))
    if op in INTEGER and "int" in result:
        body = (*body, Constant(arity + 1, 2, dtype), Compute(arity + 2, "trunc_div", (arity, arity + 1), dtype))
    body = (*body, Store("out", X, body[-1].result))
    buffers = (*(KernelBuffer(f"in{i}", dtype, "in") for i in range(arity)), KernelBuffer("out", result, "out"))
    return Kernel((Axis("x0", 64),), (), (Stage(False, body),), buffers)


CASES = [(op, "float32") for op in {**FLOAT, **COMPARE}] + [(op, "int64") for op in {**INTEGER, **COMPARE}]
CASES += [(op, dtype) for op in INTEGER for dtype in ("int32", "int8", "uint8")] + [(op, "bool") for op in BOOL] + [("div", "float64"), ("exp", "float64"), ("tanh", "float64")]


@pytest.mark.parametrize("op", ["floor_div", "trunc_div", "remainder", "fmod"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8"])
def test_a_division_by_zero_spoils_nothing_else(op: str, dtype: str, tmp_path: Path) -> None:
    """A compiler may take it that no divisor is 0, and leave out what the kernel does where one is: shows on a GPU only."""
    zero = (Constant(2, 0, dtype), Compute(3, "eq", (1, 2), "bool"), Store("is_zero", X, 3))
    divided = (Compute(4, op, (0, 1), dtype), Store("quotient", X, 4), Compute(5, "where", (3, 0, 4), dtype), Store("chosen", X, 5))
    loads = (Load(0, "a", X, dtype), Load(1, "b", X, dtype))
    outs = (KernelBuffer("is_zero", "bool", "out"), KernelBuffer("quotient", dtype, "out"), KernelBuffer("chosen", dtype, "out"))
    buffers = (KernelBuffer("a", dtype, "in"), KernelBuffer("b", dtype, "in"), *outs)
    kernel = Kernel((Axis("x0", 64),), (), (Stage(False, (*loads, *zero, *divided)),), buffers)
    a, b = torch.arange(64).to(torch_dtype(dtype)), (torch.arange(64) % 4).to(torch_dtype(dtype))
    made = [torch.zeros(64, dtype=torch.bool), torch.zeros_like(a), torch.zeros_like(a)]
    built = PLUGIN.build([PLUGIN.emit(kernel, "kernel_0")], FileStore(tmp_path))
    given = [tensor.to(DEVICE) for tensor in (a, b, *made)]
    built.callables["kernel_0"](*given)
    is_zero, _, chosen = (tensor.cpu() for tensor in given[2:])
    meant = {"floor_div": "floor", "trunc_div": "trunc"}
    filled = torch.where(b == 0, 1, b)
    rest = torch.div(a, filled, rounding_mode=meant[op]) if op in meant else (torch.remainder if op == "remainder" else torch.fmod)(a, filled)
    assert torch.equal(is_zero, b == 0) and torch.equal(chosen, torch.where(b == 0, a, rest))


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_every_op_has_the_meaning_of_the_table(op: str, dtype: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    arity = OPS[op].arity
    tensors: list[torch.Tensor] = []
    for position in range(arity):
        if dtype == "bool":
            tensors.append(torch.rand(64, generator=generator) > 0.5)
        elif "int" in dtype:
            value = torch.randint(-20, 20, (64,), generator=generator).to(torch_dtype(dtype))
            divides = op in ("floor_div", "trunc_div", "remainder", "fmod") and position == 1
            tensors.append(torch.where(value == 0, 3, value) if divides else value)
        else:
            value = torch.randn(64, generator=generator).to(torch_dtype(dtype)) * 2
            if op in ("acosh",):
                value = value.abs() + 1
            elif op in ("asin", "acos", "atanh"):
                value = value.clamp(-0.9, 0.9)
            elif op in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "pow"):
                value = value.abs() + 0.1
            elif op not in ("remainder", "fmod", "nextafter", "fma", "atan2"):
                value[:3] = torch.tensor([float("nan"), float("inf"), 0.0])
            tensors.append(value)
    result = torch.bool if OPS[op].result == "bool" else torch_dtype(dtype)
    out = torch.full((64,), 5).to(result) if result is not torch.bool else torch.arange(64) % 2 == 0
    check(elementwise(op, dtype), [*tensors, out], tmp_path, rtol=2e-6, atol=1e-6)


def test_conversions(tmp_path: Path) -> None:
    dtypes = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool"]
    for source in dtypes:
        for target in dtypes:
            if source == target:
                continue
            body = (Load(0, "x", X, source), Compute(1, "to_dtype", (0,), target), Store("out", X, 1))
            buffers = (KernelBuffer("x", source, "in"), KernelBuffer("out", target, "out"))
            kernel = Kernel((Axis("x0", 16),), (), (Stage(False, body),), buffers)
            x = (torch.arange(16) * 3 % 7).to(torch_dtype(source))
            out = torch.arange(16).flip(0).to(torch_dtype(target))
            check(kernel, [x, out], tmp_path)


def test_64_bit_indices_where_32_do_not_reach() -> None:
    def source(stride: int) -> str:
        body = (Load(0, "x", stride * X, "int8"), Store("out", X, 0))
        buffers = (KernelBuffer("x", "int8", "in"), KernelBuffer("out", "int8", "out"))
        return PLUGIN.emit(Kernel((Axis("x0", 4096),), (), (Stage(False, body),), buffers), "k").text

    assert "tl.int32" in source(1)
    assert "tl.int64" in source(1 << 20)


def test_same_kernel_same_bytes() -> None:
    assert PLUGIN.emit(softmax(4, 10), "k") == PLUGIN.emit(softmax(4, 10), "k")


def test_second_build_finds_the_module(tmp_path: Path) -> None:
    source = PLUGIN.emit(bias_relu(3, 4), "k")
    assert not PLUGIN.build([source], FileStore(tmp_path)).cached
    assert PLUGIN.build([source], FileStore(tmp_path)).cached
