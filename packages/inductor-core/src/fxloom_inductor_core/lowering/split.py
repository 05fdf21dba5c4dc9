"""Folds over few points but many elements, cut in two: chunks are folded first, side by side, and then what came of them.

In: the extents of a fold, and how many points the device wants. Out: a `Split`, or None to fold in one go. Invariant: chunks together
cover every element once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxloom_inductor_core.ir.tensors import AnyTensor, Index, dim_order
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.expr import Expr, product

#: Elements of a fold from which on a second kernel costs less than the device's idle processors; of one over columns, whose rows
#: share a processor.
_MIN_NUMEL = 1 << 13
_MIN_COLUMN_NUMEL = 1 << 9

#: Lengths of the chunks of a fold over one axis, where one of them divides it.
_LENGTHS = (4096, 2048, 1024, 512, 3072, 1536, 768, 1000, 500, 100, 64, 32)


@dataclass(frozen=True, slots=True)
class Split:
    """chunks: axes folded last. rest: axes folded first. place: (position in chunks + position in rest) -> position in the fold's axes.

    cut: the axis of the fold that was cut in chunks of which the last one may go beyond its end; None where all are of one length.
    columns: the rest is folded for points that lie side by side in memory, which are then the innermost axes of the loop.
    """

    chunks: Index
    rest: Index
    place: Callable[[Index], Index]
    cut: int | None = None
    columns: bool = False

    def inside(self, ops: Any, position: Index, extents: Index) -> Any:
        """Whether a position in the fold's axes is one; None where all are."""
        if self.cut is None:
            return None
        return ops.lt(ops.index_expr(position[self.cut], "int64"), ops.index_expr(extents[self.cut], "int64"))


def folds_columns(x: AnyTensor, gone: list[int]) -> bool:
    """Whether neighbours in memory belong to different points of a fold over the dims `gone` of x."""
    layout = x.stored_layout()
    order = dim_order(layout) if layout is not None else x.order
    dims = [d for d in (order or range(len(x.size))) if x.size[d] != 1]
    kept = [d for d in range(len(x.size)) if d not in gone and x.size[d] != 1]
    return bool(kept) and dims[-1] == kept[-1]


def split_fold(able: Capabilities, size: Index, reduced: Index, columns: bool, *, even: bool = False) -> Split | None:
    """How to fold `reduced` for each point of `size`. even: all chunks have to have the same length."""
    outer, inner = product(size), product(reduced)
    columns = columns and able.column_tile > 1
    if not isinstance(outer, int) or not isinstance(inner, int) or not outer or inner < (_MIN_COLUMN_NUMEL if columns else _MIN_NUMEL):
        return None
    together = able.column_tile if columns else 1
    if outer >= (able.enough_rows or able.parallelism) * together:
        return None
    axes = [(number, extent) for number, extent in enumerate(reduced) if extent != 1]
    wanted = -(-able.parallelism * together // outer)
    if len(axes) == 1 and not columns:
        length = next((n for n in _LENGTHS if inner % n == 0 and inner // n > 1), None)
        if length is None:
            return None if even or not able.uneven_chunks else _cut(reduced, axes[0][0], -(-inner // _LENGTHS[0]), columns)
        return _cut(reduced, axes[0][0], inner // length, columns)
    wanted = min(wanted, inner // 64)  # enough for a chunk to be worth its result
    if wanted < 2:
        return None
    chunks = 1
    for place, (number, extent) in enumerate(axes):
        if chunks * extent >= wanted or place == len(axes) - 1:
            pieces = _divisor(extent, -(-wanted // chunks))
            if pieces is None:
                if chunks > 1 and (even or chunks * 4 >= wanted):
                    return _cut(reduced, number, 1, columns)
                if even or not able.uneven_chunks:
                    return _cut(reduced, number, extent, columns) if place < len(axes) - 1 else None
                pieces = min(-(-wanted // chunks), extent)
            return _cut(reduced, number, pieces, columns)
        chunks *= extent
    return None


def _divisor(extent: int, wanted: int) -> int | None:
    """The smallest divisor that is at least `wanted`, unless it is far more."""
    return next((n for n in range(wanted, min(extent, 4 * wanted) + 1) if extent % n == 0), None)


def _cut(reduced: Index, number: int, pieces: Expr, columns: bool) -> Split:
    """The axes before `number`, and `pieces` of that one, are chunks."""
    extent = reduced[number]
    length: Any = -(-extent // pieces)
    if length == 1:
        return Split(reduced[: number + 1], reduced[number + 1 :] or (1,), lambda index: index[: len(reduced)], None, columns)

    def place(index: Index) -> Index:
        at = index[number] * length + index[number + 1]
        return (*index[:number], at, *index[number + 2 :])

    uneven = number if pieces * length != extent else None
    return Split((*reduced[:number], pieces), (length, *reduced[number + 1 :]), place, uneven, columns)
