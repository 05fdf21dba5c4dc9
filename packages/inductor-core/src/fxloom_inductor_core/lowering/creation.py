"""Tensors made from nothing: full, arange and their kin are bodies without loads; they are never stored for their own sake.

In: the context, sizes and numbers. Out: lowered values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch

from fxloom_inductor_core.ir.layouts import as_expr
from fxloom_inductor_core.ir.numbers import Float, is_number
from fxloom_inductor_core.ir.tensors import Tensor
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_info, dtype_name, is_float, opmath

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


def _constant(cx: LoweringContext, value: Any) -> Any:
    fake = cx.fake
    dtype = dtype_name(fake.dtype)
    if dtype_info(dtype).kind == "complex" or not is_number(value):
        return NotImplemented
    if isinstance(value, Float):
        value = cx.float_tensor(value, str(fake.device))
    size = tuple(as_expr(s) for s in fake.size())

    def body(ops: Any, index: Any) -> Any:
        if isinstance(value, Tensor):
            return ops.to_dtype(value.load(ops, ()), dtype)
        if isinstance(value, sympy.Basic):
            return ops.to_dtype(ops.index_expr(value, "int64"), dtype)
        return ops.constant(value, dtype)

    return cx.compute(size, dtype, str(fake.device), body, [value] if isinstance(value, Tensor) else [], ops=0)


@lowering(aten.full.default, aten.full_like.default)
def full(cx: LoweringContext, like: Any, value: Any, **kwargs: Any) -> Any:
    return _constant(cx, value)


@lowering(aten.new_full.default)
def new_full(cx: LoweringContext, x: Any, size: Any, value: Any, **kwargs: Any) -> Any:
    return _constant(cx, value)


@lowering(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    return _constant(cx, 0)


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    return _constant(cx, 1)


@lowering(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default)
def empty(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    """Any values will do; zeros are reproducible and cost nothing when they are overwritten."""
    return _constant(cx, 0)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(cx: LoweringContext, value: Any, **kwargs: Any) -> Any:
    return _constant(cx, value)


def _iota(cx: LoweringContext, start: Any, step: Any) -> Any:
    fake = cx.fake
    dtype = dtype_name(fake.dtype)
    size = tuple(as_expr(s) for s in fake.size())
    numbers = (bool, int, float) if is_float(dtype) else (int, sympy.Basic)
    if not isinstance(start, numbers) or not isinstance(step, numbers):
        return NotImplemented

    def body(ops: Any, index: Any) -> Any:
        if not is_float(dtype):
            return ops.index_expr(start + index[0] * step, dtype)
        wide = opmath(dtype)
        position = ops.to_dtype(ops.index_expr(index[0], "int64"), wide)
        value = ops.add(ops.constant(start, wide), ops.mul(position, ops.constant(step, wide)))
        return ops.to_dtype(value, dtype)

    return cx.compute(size, dtype, str(fake.device), body, ops=1)


@lowering(aten.arange.default)
def arange(cx: LoweringContext, end: Any, **kwargs: Any) -> Any:
    return _iota(cx, 0, 1)


@lowering(aten.arange.start)
def arange_start(cx: LoweringContext, start: Any, end: Any, **kwargs: Any) -> Any:
    return _iota(cx, start, 1)


@lowering(aten.arange.start_step)
def arange_step(cx: LoweringContext, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Any:
    return _iota(cx, start, step)


if hasattr(torch.ops.prims, "iota"):

    @lowering(torch.ops.prims.iota.default)
    def iota(cx: LoweringContext, length: Any, *, start: Any, step: Any, **kwargs: Any) -> Any:
        return _iota(cx, start, step)


def _triangle(cx: LoweringContext, x: Any, diagonal: int, lower: bool) -> Any:
    def body(ops: Any, index: Any) -> Any:
        row, column = ops.index_expr(index[-2], "int64"), ops.index_expr(index[-1], "int64")
        edge = ops.add(row, ops.constant(diagonal, "int64"))
        keep = ops.le(column, edge) if lower else ops.ge(column, edge)
        return ops.where(keep, x.load(ops, index), ops.constant(0, x.dtype))

    return cx.compute(x.size, x.dtype, x.device, body, [x], ops=3)


@lowering(aten.tril.default)
def tril(cx: LoweringContext, x: Any, diagonal: int = 0) -> Any:
    return _triangle(cx, x, diagonal, lower=True)


@lowering(aten.triu.default)
def triu(cx: LoweringContext, x: Any, diagonal: int = 0) -> Any:
    return _triangle(cx, x, diagonal, lower=False)
