"""Kernels check themselves when made, hash by content and pickle."""

from __future__ import annotations

import pickle

import pytest

from fxloom_interfaces.errors import IRError
from fxloom_interfaces.expr import symbol
from fxloom_interfaces.loop_ir import Layout, Reduction
from fxloom_interfaces.program import (
    Axis,
    Compute,
    Constant,
    Kernel,
    KernelBuffer,
    Load,
    Program,
    Reduce,
    Stage,
    Store,
)

X, R = symbol("x0"), symbol("r0")


def row_sum(title: tuple[str, ...] = ("sum",), width: int = 8) -> Kernel:
    inner = Stage(True, (Load(0, "in0", X * width + R, "float32"), Reduce((1,), "sum", 0, "float32")))
    buffers = (KernelBuffer("in0", "float32", "in"), KernelBuffer("out0", "float32", "out"))
    return Kernel((Axis("x0", 4),), (Axis("r0", width),), (inner, Stage(False, (Store("out0", X, 1),))), buffers, (), title)


def test_digest_is_that_of_the_content() -> None:
    assert row_sum(("a",)).digest() == row_sum(("b",)).digest()
    assert row_sum().digest() != row_sum(width=16).digest()
    assert pickle.loads(pickle.dumps(row_sum())).digest() == row_sum().digest()  # noqa: S301  # our own bytes


def test_text_can_be_read() -> None:
    assert "    for r0 < 8:\n      %0: f32 = in0[r0 + 8*x0]\n      %1: f32 = reduce sum %0\n" in row_sum().text()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((Stage(True, (Load(0, "in0", R, "float32"),)), Stage(False, (Store("out0", X, 0),))), "%0 is not visible"),
        ((Stage(False, (Load(0, "in0", X, "float32"), Reduce((1,), "sum", 0, "float32"))),), "folds in an outer stage"),
        ((Stage(False, (Constant(0, 1.0, "float32"), Constant(0, 2.0, "float32"))),), "assigned twice"),
        ((Stage(False, (Load(0, "nowhere", X, "float32"),)),), "unknown buffer"),
    ],
)
def test_ill_formed_kernels_are_refused(stages: tuple[Stage, ...], message: str) -> None:
    good = row_sum()
    with pytest.raises(IRError, match=message):
        Kernel(good.outer, good.inner, stages, good.buffers)


def test_instructions_check_their_arity() -> None:
    with pytest.raises(IRError, match="add takes 2 operands"):
        Compute(2, "add", (0,), "float32")
    with pytest.raises(IRError, match="welford"):
        Reduce((1,), "welford", 0, "float32")


def test_nodes_check_themselves() -> None:
    with pytest.raises(IRError, match="expected 2 strides"):
        Layout("cpu", "float32", (8, 4), (1,))
    layout = Layout("cpu", "float32", (8,), (1,))
    from fxloom_interfaces.loop_ir import Buffer

    with pytest.raises(IRError, match="over no axes"):
        Reduction(Buffer("b", layout), "sum", (8,), (), "float32", lambda ops, index: None)


def test_a_program_ends_with_return() -> None:
    with pytest.raises(IRError, match="ends with Return"):
        Program((), (), (), ())
