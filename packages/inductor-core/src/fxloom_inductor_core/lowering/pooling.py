"""Pooling as elementwise loops over an unrolled window, which is small.

In: the context, the operator's arguments as lowered values. Out: a lowered value, or NotImplemented to have eager's kernel called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr, order_or_plain
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.reduction import mean_dims
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_info, is_float, opmath
from fxloom_interfaces.expr import Expr, clamped

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

_LARGEST_WINDOW = 25


def _pair(value: Sequence[int] | int) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def _window(ops: Any, x: Any, index: Index, at: tuple[int, int], stride: Any, padding: Any, dilation: Any, outside: Any) -> Any:
    """The element at offset `at` of the window of output `index`; `outside` in the padding."""
    row = index[-2] * stride[0] + at[0] * dilation[0] - padding[0]
    column = index[-1] * stride[1] + at[1] * dilation[1] - padding[1]
    where = (*index[:-2], row, column)
    mask = None
    for position, extent, padded in ((row, x.size[-2], padding[0]), (column, x.size[-1], padding[1])):
        if padded == 0:
            continue
        inside = _inside(ops, position, extent)
        mask = inside if mask is None else ops.logical_and(mask, inside)
    return x.load(ops, where) if mask is None else ops.masked(mask, lambda: x.load(ops, where), outside)


def _held(position: Expr, offset: int, step: int, extent: Expr, count: Expr) -> Expr:
    """position * step + offset, held in [0, extent) where it could leave it for a position in [0, count)."""
    index = position * step + offset
    static = isinstance(extent, int) and isinstance(count, int)
    if static and offset >= 0 and (count - 1) * step + offset < extent:
        return index
    return clamped(index, 0, extent - 1)


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    cx: LoweringContext, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    kernel, padding, dilation = _pair(kernel), _pair(padding), _pair(dilation)
    step = _pair(stride) if stride else kernel
    positions_used = any(user.args[1] == 1 and user.users for user in cx.current.users)
    if kernel[0] * kernel[1] > _LARGEST_WINDOW or x.dtype == "bool":
        return NotImplemented
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake[0].size())
    window = [(i, j) for i in range(kernel[0]) for j in range(kernel[1])]
    # Without dilation an index held inside the image stays in its window (padding is at most half of it, and a window begins in
    # the image), so it adds nothing new to the maximum, and no load needs a mask.
    held = dilation == (1, 1)
    if not held and not is_float(x.dtype):
        return NotImplemented
    acc, numbers = opmath(x.dtype), x.size[-2] * x.size[-1]
    counted = "int32" if isinstance(numbers, int) and numbers < 1 << 31 else "int64"  # as wide as float32: as many in a vector

    def place(index: Index, at: tuple[int, int]) -> tuple[Expr, Expr]:
        if held:
            row = _held(index[-2], at[0] - padding[0], step[0], x.size[-2], size[-2])
            return row, _held(index[-1], at[1] - padding[1], step[1], x.size[-1], size[-1])
        return index[-2] * step[0] + at[0] * dilation[0] - padding[0], index[-1] * step[1] + at[1] * dilation[1] - padding[1]

    def load(ops: Any, index: Index, at: tuple[int, int]) -> tuple[Any, Any]:
        """(value, where it lies in the image; None: it does)"""
        row, column = place(index, at)
        if held:
            return ops.to_dtype(x.load(ops, (*index[:-2], row, column)), acc), None
        inside = _inside(ops, row, x.size[-2])
        inside = ops.logical_and(inside, _inside(ops, column, x.size[-1]))
        value = ops.masked(inside, lambda: x.load(ops, (*index[:-2], row, column)), float("-inf"))
        return ops.to_dtype(value, acc), inside

    def body(ops: Any, index: Index) -> Any:
        return ops.to_dtype(reduce(ops.maximum, [load(ops, index, at)[0] for at in window]), x.dtype)

    def position(ops: Any, index: Index) -> Any:
        """Of the last NaN, or of the first of the largest."""
        best, where = None, ops.constant(-1, counted)
        for at in window:
            row, column = place(index, at)
            value, inside = load(ops, index, at)
            here = ops.index_expr(row * x.size[-1] + column, counted)
            if best is None and inside is None:
                best, where = value, here
                continue
            best = ops.constant(float("-inf"), acc) if best is None else best
            better = ops.gt(value, best)
            if is_float(x.dtype):
                better = ops.logical_or(better, ops.ne(value, value))
            if inside is not None:
                better = ops.logical_and(inside, ops.logical_or(better, ops.lt(where, ops.constant(0, counted))))
            best, where = ops.where(better, value, best), ops.where(better, here, where)
        return ops.to_dtype(where, "int64")

    pooled = cx.compute(size, x.dtype, x.device, body, [x], ops=len(window), heavy=True)
    order = order_or_plain(cx.fake[0])
    cx.realize(pooled, order)
    if not positions_used:
        return pooled, None
    positions = cx.compute(size, "int64", x.device, position, [x], ops=4 * len(window), heavy=True)
    cx.realize(positions, order)
    return pooled, positions


def _inside(ops: Any, position: Expr, extent: Expr) -> Any:
    """Whether a position lies in [0, extent)."""
    value = ops.index_expr(position, "int64")
    return ops.logical_and(ops.ge(value, ops.constant(0, "int64")), ops.lt(value, ops.index_expr(extent, "int64")))


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
    plain = divisor_override is None and not ceil_mode and (count_include_pad or padding == (0, 0))
    if not plain or kernel[0] * kernel[1] > _LARGEST_WINDOW or not is_float(x.dtype):
        return NotImplemented
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake.size())
    acc = opmath(x.dtype)

    def body(ops: Any, index: Index) -> Any:
        total = None
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                value = ops.to_dtype(_window(ops, x, index, (i, j), step, padding, (1, 1), 0), acc)
                total = value if total is None else ops.add(total, value)
        return ops.to_dtype(ops.div(total, ops.constant(kernel[0] * kernel[1], acc)), x.dtype)

    pooled = cx.compute(size, x.dtype, x.device, body, [x], ops=kernel[0] * kernel[1], heavy=True)
    pooled.order = x.order
    return pooled


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


def _library(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    return cx.eager(cx.current, library=True)


#: what their decompositions leave alone: on the CPU eager's kernels are faster than gathers
lowering(
    aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default,
    aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default, aten._upsample_nearest_exact3d.default,
    aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default,
    aten.grid_sampler_2d.default, aten.grid_sampler_3d.default,
)(_library)  # fmt: skip
