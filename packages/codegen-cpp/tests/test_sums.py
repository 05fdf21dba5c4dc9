"""Sums are as accurate as eager's, on this processor's vectors and on narrower ones, whatever stands beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fxloom_codegen_cpp.emit import emit_kernel
from fxloom_codegen_cpp.plugin import PLUGIN
from fxloom_interfaces.artifacts import FileStore
from fxloom_interfaces.expr import Expr, symbol
from fxloom_interfaces.program import Axis, Compute, Constant, Instruction, Kernel, KernelBuffer, Load, Reduce, Stage, Store

X0, R0, R1, WIDTH = symbol("x0"), symbol("r0"), symbol("r1"), symbol("s0")
SIZES = (1, 7, 5000, 100_003)
ROWS = 48

#: the rounding of the result itself may differ from eager's by this; relative
FLOOR = {"float32": 2.0**-23, "float64": 2.0**-52}

#: of errors over 48 rows, which chance moves a little
SLACK = 1.1



def _kernel(inner: tuple[Axis, ...], index: Expr, dtype: str, kind: str = "") -> Kernel:
    """out0[i] = sum over the inner axes of in0[index]. kind: what is computed beside it, or instead."""
    body: list[Instruction] = [Load(0, "in0", index, dtype)]
    after: list[Instruction] = [Store("out0", X0, 2)]
    match kind:
        case "norm":
            body += [Compute(1, "mul", (0, 0), dtype), Reduce((3,), "sum", 1, dtype)]
            after.insert(0, Compute(2, "sqrt", (3,), dtype))
        case "mean":
            count = 1
            for axis in inner:
                count *= int(axis.size)  # type: ignore[arg-type]
            body.append(Reduce((3,), "sum", 0, dtype))
            after[:0] = [Constant(1, float(count), dtype), Compute(2, "div", (3, 1), dtype)]
        case "welford":
            body.append(Reduce((2, 3, 4), "welford", 0, dtype))
        case _:
            body.append(Reduce((2,), "sum", 0, dtype))
    if kind in ("argmax", "max"):
        body.append(Reduce((5,), kind, 0, dtype))
        after.append(Store("out1", X0, 5))
    outs = [KernelBuffer("out0", dtype, "out")]
    outs += [KernelBuffer("out1", "int64" if kind == "argmax" else dtype, "out")] if kind in ("argmax", "max") else []
    sizes = ("s0",) if any(not isinstance(axis.size, int) for axis in inner) else ()
    buffers = (KernelBuffer("in0", dtype, "in"), *outs)
    return Kernel((Axis("x0", ROWS),), inner, (Stage(True, tuple(body)), Stage(False, tuple(after))), buffers, sizes, ("sum",))


def _along(size: int, dtype: str, kind: str) -> Kernel:
    return _kernel((Axis("r0", size),), size * X0 + R0, dtype, kind)


def _of_any(index: Callable[[Expr], Expr]) -> Callable[[int, str], Kernel]:
    return lambda _, dtype: _kernel((Axis("r0", WIDTH),), index(WIDTH), dtype)


_ROWS_OF_3 = 3 * 5000 * X0

#: name -> sizes, what makes the kernel for a size
KERNELS: dict[str, tuple[tuple[int, ...], Callable[[int, str], Kernel]]] = {
    "rows": (SIZES, lambda n, d: _along(n, d, "")),
    "rows of any size": (SIZES, _of_any(lambda width: width * X0 + R0)),
    "columns": ((5000,), lambda n, d: _kernel((Axis("r0", n),), ROWS * R0 + X0, d)),
    "columns of any size": (SIZES, _of_any(lambda width: ROWS * R0 + X0)),
    "short last axis": ((15000,), lambda n, d: _kernel((Axis("r0", 5000), Axis("r1", 3)), _ROWS_OF_3 + 3 * R0 + R1, d)),
    "short first axis": ((15000,), lambda n, d: _kernel((Axis("r0", 3), Axis("r1", 5000)), _ROWS_OF_3 + 5000 * R0 + R1, d)),
    "argmax": ((5000,), lambda n, d: _along(n, d, "argmax")),
    "max": ((5000,), lambda n, d: _along(n, d, "max")),
    "norm": ((5000,), lambda n, d: _along(n, d, "norm")),
    "mean": ((5000,), lambda n, d: _along(n, d, "mean")),
    "welford": ((5000,), lambda n, d: _along(n, d, "welford")),
}
_EAGER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "norm": lambda t: torch.linalg.vector_norm(t, 2, -1),
    "mean": lambda t: t.mean(-1),
    "welford": lambda t: t.mean(-1),
}


def _exactly(x: torch.Tensor, name: str) -> torch.Tensor:
    terms = x.double().square() if name == "norm" else x
    sums = (
        terms.double().sum(-1)
        if x.dtype is torch.float32
        else torch.tensor([math.fsum(row) for row in terms.tolist()], dtype=torch.float64)
    )
    return sums.sqrt() if name == "norm" else sums / x.shape[-1] if name in ("mean", "welford") else sums


def _error(result: torch.Tensor, truth: torch.Tensor) -> float:
    return float(((result.double() - truth) / truth).square().mean().sqrt())


@pytest.mark.parametrize(
    ("isa", "dtype"), [("native", "float32"), ("avx2", "float32"), ("sse2", "float32"), ("native", "float64")], indirect=["isa"]
)
def test_sums_are_as_accurate_as_eagers(isa: str, dtype: str, tmp_path: Path) -> None:
    """Root mean square of the relative errors of the rows, against sums in a wider type."""
    torch.manual_seed(0)
    rows = {size: torch.rand(ROWS, size, dtype=getattr(torch, dtype)) for size in (*SIZES, 15000)}
    truths = {(size, name): _exactly(x, name) for size, x in rows.items() for name in ("rows", *(_EAGER if size == 5000 else ()))}
    kernels = {(name, size): make(size, dtype) for name, (sizes, make) in KERNELS.items() for size in sizes}
    names = {case: f"k{number}" for number, case in enumerate(kernels)}
    built = PLUGIN.build([PLUGIN.emit(kernel, names[case]) for case, kernel in kernels.items()], FileStore(tmp_path))
    worse = []
    for (name, size), kernel in kernels.items():
        x, truth = rows[size], truths[size, name if name in _EAGER else "rows"]
        laid = x.t().contiguous() if name.startswith("columns") else x
        outs = [torch.zeros(ROWS, dtype=getattr(torch, buffer.dtype)) for buffer in kernel.buffers[1:]]
        built.callables[names[name, size]](laid.data_ptr(), *(out.data_ptr() for out in outs), *((size,) if kernel.sizes else ()))
        eager = _EAGER.get(name, lambda t: t.sum(-1))(laid.t() if name.startswith("columns") else x)
        ours, eagers = _error(outs[0], truth), _error(eager, truth)
        if ours > max(SLACK * eagers, FLOOR[dtype]):
            worse.append(f"{name} of {size}: {ours:.2e}, eager's {eagers:.2e}")
        if name in ("argmax", "max"):
            assert torch.equal(outs[1], x.argmax(-1) if name == "argmax" else x.amax(-1))
    assert worse == []


def test_short_rows_stay_in_their_type() -> None:
    """A row of 100 is one block."""
    assert "double" not in emit_kernel(_along(100, "float32", ""), "k")
    assert "FXLOOM_SUM_BLOCK" in emit_kernel(_along(200, "float32", ""), "k")
