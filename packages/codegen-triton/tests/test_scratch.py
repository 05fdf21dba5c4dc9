"""Scratch memory in kernels whose rows fit into a tile: it is no memory there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fxloom_codegen_common.interpreter import interpret_positional
from fxloom_codegen_triton import PLUGIN, tiles
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import symbol
from fxloom_interfaces.program import Axis, Compute, Kernel, KernelBuffer, Load, Reduce, Stage, Store

X, R = symbol("x0"), symbol("r0")


def scratch_softmax(rows: int, width: int, dtype: str = "float32") -> Kernel:
    """Keeps e^x of a row in scratch memory, and folds what it reads back twice."""
    at = width * X + R
    first = (Load(0, "x", at, dtype), Compute(1, "exp", (0,), dtype), Store("tmp0", R, 1), Reduce((2,), "sum", 1, dtype))
    second = (Load(3, "tmp0", R, dtype), Compute(4, "div", (3, 2), dtype), Reduce((5,), "max", 3, dtype), Reduce((6,), "min", 3, dtype))
    third = (Load(7, "tmp0", R, dtype), Compute(8, "div", (7, 2), dtype), Compute(9, "sub", (8, 5), dtype), Compute(10, "add", (9, 6), dtype))
    buffers = (KernelBuffer("x", dtype, "in"), KernelBuffer("out", dtype, "out"), KernelBuffer("tmp0", dtype, "scratch", width))
    stages = (Stage(True, first), Stage(True, second), Stage(True, (*third, Store("out", at, 10))))
    return Kernel((Axis("x0", rows),), (Axis("r0", width),), stages, buffers, title=("scratch",))


@pytest.mark.parametrize("width", [1, 64, 100])
def test_scratch_memory_stays_in_registers(width: int, device: str, tmp_path: Path) -> None:
    kernel = scratch_softmax(9, width)
    x, expected = torch.randn(9, width), torch.empty(9, width)
    interpret_positional(kernel, x, expected)
    source = PLUGIN.emit(kernel, "kernel_0")
    got = torch.empty(9, width, device=device)
    PLUGIN.build([source], FileStore(tmp_path)).callables["kernel_0"](x.to(device), got)
    torch.testing.assert_close(got.cpu(), expected)
    assert tuple(map(source.text.count, ("tl.load", "tl.store", "libdevice.exp("))) == (1, 1, 1)
    assert "barrier" not in source.text and "tmp0" not in source.text


def test_scratch_memory_for_long_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PLUGIN.capabilities.max_scratch_nbytes <= tiles.PERSISTENT_NUMEL  # so the scheduler never asks for it
    monkeypatch.setattr(tiles, "PERSISTENT_NUMEL", 0)
    with pytest.raises(PluginError, match="scratch"):
        PLUGIN.emit(scratch_softmax(3, 5000), "kernel_0")
