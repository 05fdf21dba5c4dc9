"""Average pooling as elementwise loops over an unrolled window, which is small.

In: the context, the operator's arguments as lowered values. Out: a lowered value, or NotImplemented to have eager's kernel called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr, fake_order
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.reduction import mean_dims
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_info, is_float, opmath
from fxloom_interfaces.expr import Expr, clamped, normalize

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

_LARGEST_WINDOW = 25


def _pair(value: Sequence[int] | int) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def _inside(ops: Any, position: Expr, extent: Expr) -> Any:
    """Whether a position lies in [0, extent)."""
    value = ops.index_expr(position, "int64")
    return ops.logical_and(ops.ge(value, ops.constant(0, "int64")), ops.lt(value, ops.index_expr(extent, "int64")))


def _library_is_faster(device: str, large: bool, masked_channels_last: bool) -> bool:
    """On the CPU eager's kernel takes the time of ours for large windows, and 0.2 to 0.4 of it where channels are last and masked."""
    return device.partition(":")[0] == "cpu" and (large or masked_channels_last)


@lowering(aten.avg_pool2d.default)
def avg_pool2d(
    cx: LoweringContext,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    kernel, padding = _pair(kernel), _pair(padding)
    step = _pair(stride) if stride else kernel
    if divisor_override == 0 or x.dtype == "bool":
        return NotImplemented
    may_leave = [pad > 0 or ceil_mode for pad in padding]
    large = kernel[0] * kernel[1] > _LARGEST_WINDOW
    if _library_is_faster(x.device, large, any(may_leave) and fake_order(cx.fake) is not None):
        return cx.eager(cx.current, library=True)
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake.size())
    acc, plane = opmath(x.dtype), x.size[-2:]

    def element(ops: Any, index: Index, number: Sequence[Expr]) -> Any:
        where = tuple(normalize(i * s - p + n) for i, s, p, n in zip(index[-2:], step, padding, number, strict=True))
        inside = [_inside(ops, at, extent) for at, extent, masked in zip(where, plane, may_leave, strict=True) if masked]
        read = lambda: x.load(ops, (*index[:-2], *where))  # noqa: E731
        return ops.to_dtype(ops.masked(reduce(ops.logical_and, inside), read, 0) if inside else read(), acc)

    def average(ops: Any, index: Index, total: Any) -> Any:
        count: Expr = kernel[0] * kernel[1] if divisor_override is None else divisor_override
        if divisor_override is None and any(may_leave):
            count = _numbers_in(index[-2:], plane, kernel, step, padding, count_include_pad)
        if is_float(acc):
            divisor = ops.constant(count, acc) if isinstance(count, int) else ops.to_dtype(ops.index_expr(count, "int64"), acc)
            return ops.to_dtype(ops.div(total, divisor), x.dtype)
        whole = ops.trunc_div(ops.to_dtype(total, "int64"), ops.index_expr(count, "int64"))
        return ops.to_dtype(whole, x.dtype)

    if large:
        total = cx.reduce("sum", size, kernel, acc, acc, x.device, lambda ops, at: element(ops, at[: len(size)], at[len(size) :]))
        return cx.compute(size, x.dtype, x.device, lambda ops, at: average(ops, at, total.load(ops, at)), [total])

    def body(ops: Any, index: Index) -> Any:
        numbers = [(i, j) for i in range(kernel[0]) for j in range(kernel[1])]
        return average(ops, index, reduce(ops.add, [element(ops, index, number) for number in numbers]))

    pooled = cx.compute(size, x.dtype, x.device, body, [x], ops=kernel[0] * kernel[1], heavy=True)
    pooled.order = x.order
    return pooled


def _numbers_in(index: Index, plane: Index, kernel: Any, step: Any, padding: Any, include_pad: bool) -> Expr:
    """How many positions the window of an output averages over: those in the image, with those of the padding or without."""
    counts: list[Expr] = []
    for i, extent, width, every, pad in zip(index, plane, kernel, step, padding, strict=True):
        start = normalize(i * every - pad)
        low, high = (start, extent + pad) if include_pad else (clamped(start, 0, extent), extent)
        counts.append(normalize(clamped(start + width, 0, high) - low))
    return normalize(counts[0] * counts[1])


@lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(cx: LoweringContext, x: Any, output: Sequence[int]) -> Any:
    if dtype_info(x.dtype).kind != "float":
        return NotImplemented
    if tuple(output) == (1, 1):
        return mean_dims(cx, x, [-2, -1], True)
    height, width = x.size[-2], x.size[-1]
    if not isinstance(height, int) or not isinstance(width, int) or height % output[0] or width % output[1]:
        return NotImplemented
    return avg_pool2d(cx, x, (height // output[0], width // output[1]))
