"""The reference interpreter against torch and against plain Python loops."""

from __future__ import annotations

import pytest
import torch

from fxloom_codegen_common.interpreter import compute, interpret
from fxloom_interfaces.expr import symbol, value_symbol
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

X, R = symbol("x0"), symbol("r0")
FLOATS = torch.tensor([-2.5, -0.0, 0.0, 0.4, 3.0, float("inf"), float("nan")])
INTS = torch.tensor([-7, -1, 1, 2, 5])


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_a_meaning(name: str) -> None:
    info = OPS[name]
    if info.accepts == "bool":
        values, dtype = torch.tensor([True, False]), "bool"
    elif info.accepts in ("integer", "bits"):
        values, dtype = INTS, "int64"
    else:
        values, dtype = FLOATS, "float32"
    result = compute(name, [values] * info.arity, "bool" if info.result == "bool" else dtype)
    assert result.shape == values.shape
    assert result.dtype == (torch.bool if info.result == "bool" or dtype == "bool" else values.dtype)


def test_integer_ops_round_as_the_table_says() -> None:
    a, b = torch.tensor([-7, 7, -7, 7]), torch.tensor([2, -2, -2, 2])
    assert compute("floor_div", [a, b], "int64").tolist() == [-4, -4, 3, 3]
    assert compute("trunc_div", [a, b], "int64").tolist() == [-3, -3, 3, 3]
    assert compute("remainder", [a, b], "int64").tolist() == [1, -1, -1, 1]
    assert compute("fmod", [a, b], "int64").tolist() == [-1, 1, -1, 1]
    assert compute("shift_left", [a, torch.tensor([1, 64, -1, 2])], "int64").tolist() == [-14, 0, 0, 28]
    assert compute("shift_right", [a, torch.tensor([1, 64, 64, -1])], "int64").tolist() == [-4, 0, -1, 0]


def softmax_kernel(rows: int, width: int) -> Kernel:
    stages = (
        Stage(True, (Load(0, "in0", X * width + R, "float32"), Reduce((1,), "max", 0, "float32"))),
        Stage(
            True,
            (
                Load(2, "in0", X * width + R, "float32"),
                Compute(3, "sub", (2, 1), "float32"),
                Compute(4, "exp", (3,), "float32"),
                Store("tmp0", R, 4),
                Reduce((5,), "sum", 4, "float32"),
            ),
        ),
        Stage(
            True,
            (
                Load(6, "tmp0", R, "float32"),
                Compute(7, "div", (6, 5), "float32"),
                Store("out0", X * width + R, 7),
            ),
        ),
    )
    buffers = (
        KernelBuffer("in0", "float32", "in"),
        KernelBuffer("out0", "float32", "out"),
        KernelBuffer("tmp0", "float32", "scratch", width),
    )
    return Kernel((Axis("x0", rows),), (Axis("r0", width),), stages, buffers)


def test_stages_and_scratch() -> None:
    x, out = torch.randn(5, 7), torch.empty(5, 7)
    interpret(softmax_kernel(5, 7), {"in0": x.flatten(), "out0": out.view(-1)})
    torch.testing.assert_close(out, torch.softmax(x, 1))


def test_masked_loads_touch_nothing_outside() -> None:
    body = (
        IndexValue(0, X, "int64"),
        Constant(1, 3, "int64"),
        Compute(2, "lt", (0, 1), "bool"),
        Load(3, "in0", X * 1000, "float32", mask=2),
        Constant(4, -1.0, "float32"),
        Compute(5, "where", (2, 3, 4), "float32"),
        Store("out0", X, 5),
    )
    kernel = Kernel(
        (Axis("x0", 5),),
        (),
        (Stage(False, body),),
        (KernelBuffer("in0", "float32", "in"), KernelBuffer("out0", "float32", "out")),
    )
    out = torch.empty(5)
    interpret(kernel, {"in0": torch.arange(2001.0), "out0": out})
    assert out.tolist() == [0.0, 1000.0, 2000.0, -1.0, -1.0]


def gather_kernel() -> Kernel:
    i0 = value_symbol("i0")
    body = (
        Load(0, "in0", X, "int64"),
        Indirect("i0", 0, 4, check=True, wrap=True),
        Load(1, "in1", i0, "float32"),
        Store("out0", X, 1),
    )
    buffers = (KernelBuffer("in0", "int64", "in"), KernelBuffer("in1", "float32", "in"), KernelBuffer("out0", "float32", "out"))
    return Kernel((Axis("x0", 3),), (), (Stage(False, body),), buffers)


def test_indirect_indices_wrap_and_are_checked() -> None:
    out = torch.empty(3)
    table = torch.arange(4.0)
    interpret(gather_kernel(), {"in0": torch.tensor([0, -1, 2]), "in1": table, "out0": out})
    assert out.tolist() == [0.0, 3.0, 2.0]
    with pytest.raises(IndexError, match="out of range"):
        interpret(gather_kernel(), {"in0": torch.tensor([0, 4, 2]), "in1": table, "out0": out})


def test_scan_and_symbolic_sizes() -> None:
    n = symbol("s0")
    body = (Load(0, "in0", X * n + R, "int64"), Accumulate(1, "sum", 0, "int64"), Store("out0", X * n + R, 1))
    buffers = (KernelBuffer("in0", "int64", "in"), KernelBuffer("out0", "int64", "out"))
    kernel = Kernel((Axis("x0", 2),), (Axis("r0", n),), (Stage(True, body),), buffers, ("s0",))
    x, out = torch.arange(10).view(2, 5), torch.empty(2, 5, dtype=torch.int64)
    interpret(kernel, {"in0": x.flatten(), "out0": out.view(-1)}, {"s0": 5})
    assert torch.equal(out, x.cumsum(1))
