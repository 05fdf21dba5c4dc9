"""Average pooling as elementwise loops over an unrolled window, which is small.

In: the context, the operator's arguments as lowered values. Out: a lowered value, or NotImplemented to have eager's kernel called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.reduction import mean_dims
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_info, is_float, opmath
from fxloom_interfaces.expr import Expr

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
