"""Kernels made by hand for the tests, and running them on the plugin and on the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fxloom_codegen_common.interpreter import interpret_positional
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.expr import symbol
from fxloom_interfaces.program import (
    Axis,
    Compute,
    Constant,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Reduce,
    Stage,
    Store,
)

X0, X1, R0 = symbol("x0"), symbol("x1"), symbol("r0")


def pointwise(op: str, dtypes: Sequence[str], result: str, numel: int = 67) -> Kernel:
    """out[i] = op(in0[i], in1[i], ...)."""
    loads: list[Instruction] = [Load(n, f"in{n}", X0, d) for n, d in enumerate(dtypes)]
    count = len(dtypes)
    body = (*loads, Compute(count, op, tuple(range(count)), result), Store("out0", X0, count))
    buffers = (*(KernelBuffer(f"in{n}", d, "in") for n, d in enumerate(dtypes)), KernelBuffer("out0", result, "out"))
    return Kernel((Axis("x0", numel),), (), (Stage(False, body),), buffers, (), (op,))


def reduction(kind: str, dtype: str, result: str, rows: int, width: int, *, by_columns: bool = False) -> Kernel:
    """out[i] = fold over r of in[i, r], or of in[r, i] by columns. Welford stores mean and deviations."""
    index = R0 * rows + X0 if by_columns else X0 * width + R0
    results = (1, 2, 3) if kind == "welford" else (1,)
    stores = [Store("out0", X0, 1)] + ([Store("out1", X0, 2)] if kind == "welford" else [])
    stages = (
        Stage(True, (Load(0, "in0", index, dtype), Reduce(results, kind, 0, dtype))),
        Stage(False, tuple(stores)),
    )
    outs = [KernelBuffer(f"out{n}", result, "out") for n in range(len(stores))]
    return Kernel((Axis("x0", rows),), (Axis("r0", width),), stages, (KernelBuffer("in0", dtype, "in"), *outs), (), (kind,))


def layer_norm(rows: int, width: int, *, by_columns: bool = False) -> Kernel:
    """Normalise rows (or columns) by mean and variance; four stages, the input read three times."""
    index = R0 * rows + X0 if by_columns else X0 * width + R0
    f = "float32"
    stages = (
        Stage(True, (Load(0, "in0", index, f), Reduce((1,), "sum", 0, f))),
        Stage(False, (Constant(2, float(width), f), Compute(3, "div", (1, 2), f))),
        Stage(
            True,
            (
                Load(4, "in0", index, f),
                Compute(5, "sub", (4, 3), f),
                Compute(6, "mul", (5, 5), f),
                Reduce((7,), "sum", 6, f),
            ),
        ),
        Stage(
            False,
            (
                Compute(8, "div", (7, 2), f),
                Constant(9, 1e-5, f),
                Compute(10, "add", (8, 9), f),
                Compute(11, "rsqrt", (10,), f),
            ),
        ),
        Stage(
            True,
            (
                Load(12, "in0", index, f),
                Compute(13, "sub", (12, 3), f),
                Compute(14, "mul", (13, 11), f),
                Store("out0", index, 14),
            ),
        ),
    )
    buffers = (KernelBuffer("in0", f, "in"), KernelBuffer("out0", f, "out"))
    return Kernel((Axis("x0", rows),), (Axis("r0", width),), stages, buffers, (), ("layer_norm",))


def run(kernels: Sequence[Kernel], arguments: Sequence[Sequence[torch.Tensor]], store: FileStore) -> None:
    """Build all kernels in one go and run each on its tensors."""
    sources = [PLUGIN.emit(kernel, f"kernel_{n}") for n, kernel in enumerate(kernels)]
    built = PLUGIN.build(sources, store)
    for n, tensors in enumerate(arguments):
        built.callables[f"kernel_{n}"](*(t.data_ptr() for t in tensors))


def interpret(kernels: Sequence[Kernel], arguments: Sequence[Sequence[torch.Tensor]]) -> None:
    """The same on the reference interpreter."""
    for kernel, tensors in zip(kernels, arguments, strict=True):
        interpret_positional(kernel, *tensors)
