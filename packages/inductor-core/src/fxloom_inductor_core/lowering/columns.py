"""`im2col`, which lays the windows of an image out as columns, and `col2im`, its adjoint, which adds columns up to an image.

In: the context, the operator's arguments as lowered values. Out: a lowered value, or NotImplemented to have eager's kernel called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_inductor_core.lowering.view import reshaped
from fxloom_interfaces.dtypes import opmath
from fxloom_interfaces.expr import Expr, floor_div, mod, normalize

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

#: windows that share a position, as far as they are written out one by one
_MOST_TERMS = 64


@dataclass(frozen=True, slots=True)
class _Axis:
    """Windows of `size` positions, `dilation` apart, one every `step`, the first at -pad, along an axis of `extent`."""

    extent: Expr
    size: int
    dilation: int
    pad: int
    step: int

    @property
    def count(self) -> Expr:
        return normalize(floor_div(normalize(self.extent + 2 * self.pad - self.dilation * (self.size - 1) - 1), self.step) + 1)

    def position(self, window: Expr, number: Expr) -> Expr:
        return normalize(window * self.step + number * self.dilation - self.pad)

    def shared(self) -> range:
        """As many numbers as windows share a position at most."""
        return range(-(-self.size // self.step) if self.dilation == 1 else self.size)

    def reading(self, ops: Any, place: Expr, term: int) -> tuple[Expr, Expr, list[Any]]:
        """(window, number in it, conditions) of one of the windows that read the position `place`; numbers grow with the term."""
        if self.dilation == 1:
            window = normalize(floor_div(normalize(place + self.pad), self.step) - term)
            number = normalize(place + self.pad - window * self.step)
            conditions = _in_range(ops, window, self.count)
            if self.size % self.step:
                conditions.append(ops.lt(ops.index_expr(number, "int64"), ops.constant(self.size, "int64")))
            return window, number, conditions
        distance = normalize(place + self.pad - term * self.dilation)
        window = floor_div(distance, self.step)
        conditions = _in_range(ops, window, self.count)
        if self.step > 1:
            conditions.append(ops.eq(ops.index_expr(mod(distance, self.step), "int64"), ops.constant(0, "int64")))
        return window, term, conditions

    def may_leave(self) -> bool:
        return self.pad > 0  # windows end in the padding behind at the latest


def _library_is_faster(device: str, axes: Sequence[_Axis]) -> bool:
    """On the CPU eager's kernel takes half of the time for windows that overlap and don't begin at every position."""
    return device.partition(":")[0] == "cpu" and any(axis.step > 1 and len(axis.shared()) > 1 for axis in axes)


def _axes(extents: Sequence[Expr], kernel: Any, dilation: Any, padding: Any, stride: Any) -> list[_Axis]:
    spread = [tuple(v) * 2 if len(v) == 1 else tuple(v) for v in (kernel, dilation, padding, stride)]
    return [_Axis(extent, *numbers) for extent, *numbers in zip(extents, *spread, strict=True)]


def _all(ops: Any, conditions: Sequence[Any]) -> Any:
    total = conditions[0]
    for condition in conditions[1:]:
        total = ops.logical_and(total, condition)
    return total


def _in_range(ops: Any, position: Expr, extent: Expr) -> list[Any]:
    value = ops.index_expr(position, "int64")
    return [ops.ge(value, ops.constant(0, "int64")), ops.lt(value, ops.index_expr(extent, "int64"))]


@lowering(aten.im2col.default)
def im2col(cx: LoweringContext, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    axes = _axes(x.size[-2:], kernel, dilation, padding, stride)
    size = tuple(as_expr(s) for s in cx.fake.size())
    if x.base.body is not None and x.cost.ops > 1:
        cx.realize(x)  # each element is read once for each window that it lies in

    def body(ops: Any, at: Index) -> Any:
        *lead, channel, row, column, down, along = at
        where = (axes[0].position(down, row), axes[1].position(along, column))
        inside = [c for axis, p in zip(axes, where, strict=True) if axis.may_leave() for c in _in_range(ops, p, axis.extent)]
        read = lambda: x.load(ops, (*lead, channel, *where))  # noqa: E731
        return ops.masked(_all(ops, inside), read, 0) if inside else read()

    # stored with an axis for each part of the window, and seen as columns: no index is taken apart by divisions
    apart = (*x.size[:-2], axes[0].size, axes[1].size, axes[0].count, axes[1].count)
    columns = cx.compute(apart, x.dtype, x.device, body, [x], ops=4)
    cx.realize(columns)
    found = reshaped(columns, size)
    return NotImplemented if found is None else found


@lowering(aten.col2im.default)
def col2im(cx: LoweringContext, x: Any, output_size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    size = tuple(as_expr(s) for s in cx.fake.size())
    axes = _axes(size[-2:], kernel, dilation, padding, stride)
    many = len(axes[0].shared()) * len(axes[1].shared()) > _MOST_TERMS
    if many or _library_is_faster(x.device, axes):
        return cx.eager(cx.current, library=True)
    cx.realize(x)
    acc = opmath(x.dtype)
    terms = list(product(*(axis.shared() for axis in axes)))

    def body(ops: Any, at: Index) -> Any:
        total = None
        for term in terms:
            windows, numbers, inside = [], [], []
            for axis, place, at_most in zip(axes, at[-2:], term, strict=True):
                window, number, conditions = axis.reading(ops, place, at_most)
                windows.append(window)
                numbers.append(number)
                inside += conditions
            row = normalize((at[-3] * axes[0].size + numbers[0]) * axes[1].size + numbers[1])
            column = normalize(windows[0] * axes[1].count + windows[1])
            read = lambda row=row, column=column: x.load(ops, (*at[:-3], row, column))  # noqa: E731
            value = ops.to_dtype(ops.masked(_all(ops, inside), read, 0), acc)
            total = value if total is None else ops.add(total, value)
        return ops.to_dtype(total, x.dtype)

    return cx.compute(size, x.dtype, x.device, body, [x], ops=4 * len(terms), heavy=True)
