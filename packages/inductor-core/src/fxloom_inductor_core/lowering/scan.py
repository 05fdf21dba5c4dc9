"""Lowerings of running folds along one dim (cumsum, cumprod, cummax, cummin, logcumsumexp): loops whose inner axis runs in order.

In: a context, a tensor and the dim. Out: new buffers that the loop writes; a library call where the plugin can't scan so many
elements (`Capabilities.max_scan_numel`), or where eager is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.loops import Loop, drop_dead
from fxloom_inductor_core.ir.tensors import AnyTensor, Index, Tensor, contiguous_strides, flat_index
from fxloom_inductor_core.lowering.registry import library_call, lowering
from fxloom_interfaces.dtypes import dtype_info, dtype_name, is_float, is_low_precision, opmath
from fxloom_interfaces.expr import Expr, symbol
from fxloom_interfaces.loop_ir import Buffer, Layout, Scan

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


def _can_scan(cx: LoweringContext, x: AnyTensor, kind: str, length: Expr) -> bool:
    able = cx.codegens[x.device.split(":")[0]].capabilities
    longest = able.max_scan_numel
    return kind in able.scans and (longest is None or (isinstance(length, int) and length <= longest))


def _scanned(
    cx: LoweringContext, x: AnyTensor, dim: int, kind: str, acc: str, dtypes: Sequence[str], body: Callable[[Any, Index], Sequence[Any]]
) -> tuple[Tensor, ...]:
    """New tensors of these dtypes: the values that `body(ops, index)` gives, which has `ops.accumulate` for running folds."""
    layouts = [Layout(x.device, dtype, x.size, contiguous_strides(x.size)) for dtype in dtypes]
    names = [cx.new_buffer(layout) for layout in layouts]
    axes = [(symbol("q0") if d == dim else symbol(f"d{d}"), extent) for d, extent in enumerate(x.size)]
    index = tuple(0 if extent == 1 and d != dim else s for d, (s, extent) in enumerate(axes))
    recorder = cx.recorder(dict(axes), x.device)
    for name, layout, value in zip(names, layouts, body(recorder, index), strict=True):
        recorder.store(name, flat_index(index, layout.stride), value)
    outer = tuple(axis for d, axis in enumerate(axes) if d != dim and axis[1] != 1)
    cx.add_loop(Loop(names[0], outer, (axes[dim],), drop_dead(recorder.instructions), x.device, (str(cx.current.name),), ordered=True))
    if cx.keep_ir:
        cx.out.nodes.append(Scan(Buffer(names[0], layouts[0]), kind, acc, x.load, origins=(str(cx.current.name),)))
    return tuple(cx.stored(name) for name in names)


def _scan(kind: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, dim: int, *, dtype: Any = None) -> Any:
        result = dtype_name(cx.fake.dtype)
        if dtype_info(result).kind in ("complex", "bool"):
            return NotImplemented
        if not x.size:
            return cx.compute((), result, x.device, lambda ops, index: ops.to_dtype(x.load(ops, index), result), [x])
        dim = dim % len(x.size)
        if not _can_scan(cx, x, kind, x.size[dim]):
            return library_call(cx)  # longer than what one program of a kernel holds
        acc = opmath(result)

        def body(ops: Any, index: Index) -> list[Any]:  # eager converts to the type of the result first
            value = ops.to_dtype(ops.to_dtype(x.load(ops, index), result), acc)
            return [ops.to_dtype(ops.accumulate(kind, acc, value), result)]

        return _scanned(cx, x, dim, kind, acc, [result], body)[0]

    rule.__qualname__ = kind
    return rule


lowering(aten.cumsum.default)(_scan("sum"))
lowering(aten.cumprod.default)(_scan("prod"))


@lowering(aten.logcumsumexp.default)
def logcumsumexp(cx: LoweringContext, x: Any, dim: int) -> Any:
    return _scan("logsumexp")(cx, x, dim) if is_float(x.dtype) else NotImplemented


def _extreme(kind: str) -> Callable[..., Any]:
    """The running extreme, and where it was last met: the largest position so far of an element that equals the extreme up to it. A NaN
    is larger and smaller than all numbers."""

    def rule(cx: LoweringContext, x: Any, dim: int) -> Any:
        if not x.size:
            return cx.copy_of(x), cx.compute((), "int64", x.device, lambda ops, index: ops.constant(0, "int64"), ops=0)
        dim = dim % len(x.size)
        acc = "uint8" if x.dtype == "bool" else opmath(x.dtype)
        if not _can_scan(cx, x, kind, x.size[dim]) or not _can_scan(cx, x, "max", x.size[dim]):
            return library_call(cx)
        if is_low_precision(x.dtype) and x.device == "cpu" and dim == len(x.size) - 1:
            return library_call(cx)  # along rows our kernel rounds each extreme again: eager takes 0.7 of its time

        def body(ops: Any, index: Index) -> list[Any]:
            value = ops.to_dtype(x.load(ops, index), acc)
            extreme = ops.accumulate(kind, acc, value)
            here = ops.eq(value, extreme)
            if is_float(acc):
                here = ops.logical_or(here, ops.isnan(value))
            position = ops.where(here, ops.index_expr(index[dim], "int64"), ops.constant(0, "int64"))
            return [ops.to_dtype(extreme, x.dtype), ops.accumulate("max", "int64", position)]

        return _scanned(cx, x, dim, kind, acc, [x.dtype, "int64"], body)

    rule.__qualname__ = f"cum{kind}"
    return rule


lowering(aten.cummax.default)(_extreme("max"))
lowering(aten.cummin.default)(_extreme("min"))
