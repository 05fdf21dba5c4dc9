"""Maxima of windows and where they lie: max pooling along one to three axes, adaptive and fractional too.

In: the context, the operator's arguments as lowered values. Out: the maxima and their positions (positions in the last axes,
flattened), or NotImplemented. Small windows are written out element by element, others and those of symbolic size are reductions.
Invariant: a position that would lie outside of a window or of the image is held inside of both. It comes a second time then, which
adds nothing to a maximum, so no load needs a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product as points
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr, fake_order, order_or_plain
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_inductor_core.lowering.view import unflatten
from fxloom_interfaces.dtypes import is_float, is_low_precision, opmath
from fxloom_interfaces.expr import Expr, clamped, floor_div, normalize, product

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

#: positions of a window that are written out one by one
_LARGEST_WINDOW = 27

#: (ops, index of the result, number in the window) -> position along the axis
Place = Callable[[Any, Index, Expr], Expr]


@dataclass(frozen=True, slots=True)
class Windows:
    """Along one axis: of `size` positions at most, each at a place."""

    size: Expr
    place: Place


def _library_is_faster(device: str) -> bool:
    """On the CPU eager's kernels for large windows take 0.3 (channels last) to 0.9 of the time of reductions."""
    return device.partition(":")[0] == "cpu"


def _spread(value: Any, axes: int) -> tuple[int, ...]:
    """A number for each axis."""
    given = [value] if isinstance(value, int) else list(value)
    return tuple(given * axes if len(given) == 1 else given)


def maxima(cx: LoweringContext, x: Any, windows: Sequence[Windows]) -> Any:
    """(maxima, positions), of which positions that nobody uses are None."""
    if x.dtype == "bool":
        return NotImplemented
    cx.realize(x)
    axes = len(windows)
    plane = x.size[-axes:]
    size = tuple(as_expr(s) for s in cx.fake[0].size())
    order = order_or_plain(cx.fake[0])
    used = any(user.args[1] == 1 and user.users for user in cx.current.users)
    acc, numbers = opmath(x.dtype), product(plane)
    counted = "int32" if isinstance(numbers, int) and numbers < 1 << 31 else "int64"  # as wide as float32: as many in a vector

    def places(ops: Any, index: Index, number: Index) -> Index:
        return tuple(w.place(ops, index, n) for w, n in zip(windows, number, strict=True))

    def read(ops: Any, index: Index, where: Index) -> Any:
        return ops.to_dtype(x.load(ops, (*index[:-axes], *where)), acc)

    def flat(ops: Any, where: Index, dtype: str) -> Any:
        return ops.index_expr(reduce(lambda sum, pair: normalize(sum * pair[1] + pair[0]), zip(where, plane, strict=True), 0), dtype)

    extents = tuple(w.size for w in windows)
    if isinstance(product(extents), int) and product(extents) <= _LARGEST_WINDOW:
        window = list(points(*(range(extent) for extent in extents)))

        def largest(ops: Any, index: Index) -> Any:
            return ops.to_dtype(reduce(ops.maximum, [read(ops, index, places(ops, index, at)) for at in window]), x.dtype)

        def position(ops: Any, index: Index) -> Any:
            """Of the last NaN, or of the first of the largest."""
            best, found = None, None
            for at in window:
                where = places(ops, index, at)
                value, here = read(ops, index, where), flat(ops, where, counted)
                if best is None:
                    best, found = value, here
                    continue
                better = ops.gt(value, best)
                if is_float(x.dtype):
                    better = ops.logical_or(better, ops.ne(value, value))
                best, found = ops.where(better, value, best), ops.where(better, here, found)
            return ops.to_dtype(found, "int64")

        pooled = cx.compute(size, x.dtype, x.device, largest, [x], ops=len(window), heavy=True)
        cx.realize(pooled, order)
        if not used:
            return pooled, None
        positions = cx.compute(size, "int64", x.device, position, [x], ops=4 * len(window), heavy=True)
        cx.realize(positions, order)
        return pooled, positions

    if _library_is_faster(x.device):
        return cx.eager(cx.current, library=True)
    rank = len(size)

    def element(ops: Any, index: Index) -> Any:
        return read(ops, index[:rank], places(ops, index[:rank], index[rank:]))

    def nan(ops: Any, index: Index) -> Any:
        value = element(ops, index)
        number = reduce(lambda sum, pair: normalize(sum * pair[1] + pair[0]), zip(index[rank:], extents, strict=True), 0)
        return ops.where(ops.ne(value, value), ops.index_expr(number, "int64"), ops.constant(-1, "int64"))

    pooled = cx.reduce("max", size, extents, x.dtype, acc, x.device, element, order=order)
    if not used:
        return pooled, None
    first = cx.reduce("argmax", size, extents, "int64", "int64", x.device, element, order=order)
    last = cx.reduce("max", size, extents, "int64", "int64", x.device, nan, order=order) if is_float(x.dtype) else None

    def position_of_number(ops: Any, index: Index) -> Any:
        number = first.load(ops, index)
        if last is not None:
            other = last.load(ops, index)
            number = ops.where(ops.ge(other, ops.constant(0, "int64")), other, number)
        place = ops.indirect_indexing(number, product(extents), check=False, wrap=False)
        return flat(ops, places(ops, index, tuple(unflatten(place, extents))), "int64")

    positions = cx.compute(size, "int64", x.device, position_of_number, [first, *([] if last is None else [last])], ops=4)
    cx.realize(positions, order)
    return pooled, positions


# ---- windows at fixed distances ---------------------------------------------------------------------------------------------


def _regular(axis: int, extent: Expr, count: Expr, size: int, step: int, pad: int, dilation: int) -> Windows:
    """One every `step` positions, the first at -pad, of positions `dilation` apart. Each begins in the image or before it."""

    def place(ops: Any, index: Index, number: Expr) -> Expr:
        start = index[axis] * step - pad
        if isinstance(number, int):
            offset = number * dilation - pad
            if isinstance(extent, int) and isinstance(count, int) and offset >= 0 and (count - 1) * step + offset < extent:
                return normalize(index[axis] * step + offset)
        if dilation == 1:
            return clamped(start + number, 0, extent - 1)
        first = floor_div(normalize(dilation - 1 - start), dilation) if pad else 0
        last = floor_div(normalize(extent - 1 - start), dilation)
        return normalize(start + clamped(number, first, last) * dilation)

    return Windows(size, place)


def _pooling(axes: int) -> Callable[..., Any]:
    def rule(
        cx: LoweringContext, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        kernel, padding, dilation = (_spread(value, axes) for value in (kernel, padding, dilation))
        step = _spread(stride, axes) if stride else kernel
        extents = cx.given(0, "self").size()[-axes:]
        if any(pad and apart > 1 and not extent >= apart for extent, pad, apart in zip(extents, padding, dilation, strict=True)):
            return NotImplemented  # a window may lie outside of the image
        counts = [as_expr(s) for s in cx.fake[0].size()[-axes:]]
        windows = [
            _regular(n - axes, x.size[n - axes], counts[n], kernel[n], step[n], padding[n], dilation[n]) for n in range(axes)
        ]
        return maxima(cx, x, windows)

    return rule


lowering(aten.max_pool2d_with_indices.default)(_pooling(2))
lowering(aten.max_pool3d_with_indices.default)(_pooling(3))


# ---- windows that share an axis ---------------------------------------------------------------------------------------------


def _shared(axis: int, extent: Expr, count: int) -> Windows:
    """Window i goes from floor(i * extent / count) to ceil((i + 1) * extent / count)."""
    if isinstance(extent, int):
        size: Expr = max(-(-(i + 1) * extent // count) - i * extent // count for i in range(count))
    else:
        size = normalize(floor_div(extent, count) + 2) if count > 1 else extent

    def place(ops: Any, index: Index, number: Expr) -> Expr:
        if count == 1:
            return number
        if isinstance(extent, int) and extent % count == 0:
            return normalize(index[axis] * (extent // count) + number)
        start = floor_div(normalize(index[axis] * extent), count)
        end = floor_div(normalize((index[axis] + 1) * extent + count - 1), count)
        return clamped(start + number, 0, end - 1)

    return Windows(size, place)


def _adaptive(axes: int) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, output_size: Sequence[Any]) -> Any:
        counts = _spread(output_size, axes)
        if any(type(count) is not int or count < 1 for count in counts) or any(extent == 0 for extent in x.size):
            return NotImplemented
        if _library_is_faster(x.device) and fake_order(cx.fake[0]) is not None:  # 0.75 of the time of our kernels
            return cx.eager(cx.current, library=True)
        return maxima(cx, x, [_shared(n - axes, x.size[n - axes], counts[n]) for n in range(axes)])

    return rule


lowering(aten.adaptive_max_pool2d.default)(_adaptive(2))
lowering(aten.adaptive_max_pool3d.default)(_adaptive(3))


# ---- windows at random distances --------------------------------------------------------------------------------------------


def _fractional(axes: int, samples_of: Sequence[int]) -> Callable[..., Any]:
    """samples_of: for each axis, which of the numbers that are given for a plane places its windows."""

    def rule(cx: LoweringContext, x: Any, kernel: Any, output_size: Any, samples: Any) -> Any:
        kernel, counts, extents = _spread(kernel, axes), _spread(output_size, axes), x.size[-axes:]
        if not is_float(x.dtype) or x.dtype != samples.dtype or any(type(e) is not int for e in (*extents, *counts)):
            return NotImplemented
        cx.realize(samples)
        windows = [_at_samples(n - axes, extents[n], counts[n], kernel[n], samples, samples_of[n]) for n in range(axes)]
        return maxima(cx, x, windows)

    return rule


lowering(aten.fractional_max_pool2d.default)(_fractional(2, (1, 0)))
lowering(aten.fractional_max_pool3d.default)(_fractional(3, (0, 1, 2)))


def _at_samples(axis: int, extent: int, count: int, size: int, samples: Any, which: int) -> Windows:
    """Window i begins at int((i + u) * a) - int(u * a), the last one at the end; u: the sample, a: (extent - size) / (count - 1)."""
    acc = opmath(samples.dtype)
    on_cpu = samples.device.partition(":")[0] == "cpu"

    def rounded(ops: Any, value: Any) -> Any:
        """Eager's kernel for the CPU computes in the type of the tensor, the one for GPUs in float32."""
        return ops.to_dtype(ops.to_dtype(value, samples.dtype), acc) if on_cpu and is_low_precision(samples.dtype) else value

    def start(ops: Any, index: Index) -> Any:
        axes = samples.size[-1]  # a number for each
        batch = index[0] if len(index) == axes + 2 else 0
        u = ops.to_dtype(samples.load(ops, (batch, index[-axes - 1], which)), acc)
        share = rounded(ops, ops.div(rounded(ops, ops.constant(extent - size, acc)), rounded(ops, ops.constant(count - 1, acc))))
        number = rounded(ops, ops.to_dtype(ops.index_expr(index[axis], "int64"), acc))
        there = ops.to_dtype(rounded(ops, ops.mul(rounded(ops, ops.add(number, u)), share)), "int64")
        begin = ops.sub(there, ops.to_dtype(rounded(ops, ops.mul(u, share)), "int64"))
        last = ops.eq(ops.index_expr(index[axis], "int64"), ops.constant(count - 1, "int64"))
        return ops.where(last, ops.constant(extent - size, "int64"), begin)

    def place(ops: Any, index: Index, number: Expr) -> Expr:
        if count == 1 or extent == size:
            return normalize(extent - size + number)
        return normalize(ops.indirect_indexing(start(ops, index), extent, check=False, wrap=False) + number)

    return Windows(size, place)
