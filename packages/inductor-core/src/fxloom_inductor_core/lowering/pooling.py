"""Pooling as elementwise loops over an unrolled window, which is small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr
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
        value = ops.index_expr(position, "int64")
        inside = ops.logical_and(ops.ge(value, ops.constant(0, "int64")), ops.lt(value, ops.index_expr(extent, "int64")))
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
    if positions_used or ceil_mode or kernel[0] * kernel[1] > _LARGEST_WINDOW or not is_float(x.dtype):
        return NotImplemented
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake[0].size())
    # Without dilation an index held inside the image stays in its window (padding is at most half of it), so it adds
    # nothing new to the maximum, and no load needs a mask.
    held = dilation == (1, 1)

    def body(ops: Any, index: Index) -> Any:
        result = None
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                if held:
                    row = _held(index[-2], i - padding[0], step[0], x.size[-2], size[-2])
                    column = _held(index[-1], j - padding[1], step[1], x.size[-1], size[-1])
                    value = x.load(ops, (*index[:-2], row, column))
                else:
                    value = _window(ops, x, index, (i, j), step, padding, dilation, float("-inf"))
                result = value if result is None else ops.maximum(result, value)
        return result

    pooled = cx.compute(size, x.dtype, x.device, body, [x], ops=kernel[0] * kernel[1], heavy=True)
    pooled.order = x.order
    cx.realize(pooled)
    return pooled, None


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
