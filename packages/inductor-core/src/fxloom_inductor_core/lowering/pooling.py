"""Average pooling as elementwise loops over an unrolled window, which is small.

In: the context, the operator's arguments as lowered values. Out: a lowered value, or NotImplemented to have eager's kernel called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr, fake_order
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.reduction import mean_dims
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_info, is_float, is_low_precision, opmath
from fxloom_interfaces.expr import Expr, clamped, normalize

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

_LARGEST_WINDOW = 27


def _along_axes(value: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """A number for each axis."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * axes if len(numbers) == 1 else numbers


def _inside(ops: Any, position: Expr, extent: Expr) -> Any:
    """Whether a position lies in [0, extent)."""
    value = ops.index_expr(position, "int64")
    return ops.logical_and(ops.ge(value, ops.constant(0, "int64")), ops.lt(value, ops.index_expr(extent, "int64")))


def _eager_has(dtype: str, device: str, axes: int) -> bool:
    """Whether eager has a kernel for averages of that type: of int64 on the CPU, of halves not along three axes there."""
    if device.partition(":")[0] != "cpu":
        return is_float(dtype)
    return dtype == "int64" or (is_float(dtype) and not (axes == 3 and is_low_precision(dtype)))


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
    return _average_pool(cx, x, 2, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)


@lowering(aten.avg_pool3d.default)
def avg_pool3d(
    cx: LoweringContext,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    return _average_pool(cx, x, 3, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _average_pool(
    cx: LoweringContext,
    x: Any,
    axes: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Averages over windows along the last `axes` axes."""
    kernel, padding = _along_axes(kernel, axes), _along_axes(padding, axes)
    step = _along_axes(stride, axes) if stride else kernel
    if divisor_override == 0 or not _eager_has(x.dtype, x.device, axes):
        return NotImplemented  # it raises
    may_leave = [pad > 0 or ceil_mode for pad in padding]
    large = prod(kernel) > _LARGEST_WINDOW
    if _library_is_faster(x.device, large, any(may_leave) and fake_order(cx.fake) is not None):
        return cx.eager(cx.current, library=True)
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake.size())
    acc, plane = opmath(x.dtype), x.size[-axes:]

    def element(ops: Any, index: Index, number: Sequence[Expr]) -> Any:
        where = tuple(normalize(i * s - p + n) for i, s, p, n in zip(index[-axes:], step, padding, number, strict=True))
        inside = [_inside(ops, at, extent) for at, extent, masked in zip(where, plane, may_leave, strict=True) if masked]
        read = lambda: x.load(ops, (*index[:-axes], *where))  # noqa: E731
        return ops.to_dtype(ops.masked(reduce(ops.logical_and, inside), read, 0) if inside else read(), acc)

    def average(ops: Any, index: Index, total: Any) -> Any:
        count: Expr = prod(kernel) if divisor_override is None else divisor_override
        if divisor_override is None and any(may_leave):
            count = _numbers_in(index[-axes:], plane, kernel, step, padding, count_include_pad)
        if is_float(acc):
            divisor = ops.constant(count, acc) if isinstance(count, int) else ops.to_dtype(ops.index_expr(count, "int64"), acc)
            return ops.to_dtype(ops.div(total, divisor), x.dtype)
        whole = ops.trunc_div(ops.to_dtype(total, "int64"), ops.index_expr(count, "int64"))
        return ops.to_dtype(whole, x.dtype)

    if large:
        total = cx.reduce("sum", size, kernel, acc, acc, x.device, lambda ops, at: element(ops, at[: len(size)], at[len(size) :]))
        return cx.compute(size, x.dtype, x.device, lambda ops, at: average(ops, at, total.load(ops, at)), [total])

    def body(ops: Any, index: Index) -> Any:
        numbers = product(*(range(extent) for extent in kernel))
        return average(ops, index, reduce(ops.add, [element(ops, index, number) for number in numbers]))

    pooled = cx.compute(size, x.dtype, x.device, body, [x], ops=prod(kernel), heavy=True)
    pooled.order = x.order
    return pooled


def _numbers_in(index: Index, plane: Index, kernel: Any, step: Any, padding: Any, include_pad: bool) -> Expr:
    """How many positions the window of an output averages over: those in the image, with those of the padding or without."""
    counts: list[Expr] = []
    for i, extent, width, every, pad in zip(index, plane, kernel, step, padding, strict=True):
        start = normalize(i * every - pad)
        low, high = (start, extent + pad) if include_pad else (clamped(start, 0, extent), extent)
        counts.append(normalize(clamped(start + width, 0, high) - low))
    return normalize(reduce(mul, counts))


@lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(cx: LoweringContext, x: Any, output: Sequence[int]) -> Any:
    if dtype_info(x.dtype).kind != "float":
        return NotImplemented
    if tuple(output) == (1, 1):
        return mean_dims(cx, x, [-2, -1], True)
    height, width = x.size[-2], x.size[-1]
    if not isinstance(height, int) or not isinstance(width, int) or height % output[0] or width % output[1]:
        return NotImplemented
    if height == 0 or width == 0:
        return NotImplemented  # eager raises, unless nothing is averaged
    return avg_pool2d(cx, x, (height // output[0], width // output[1]))
