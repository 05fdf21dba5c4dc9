"""Tensors during lowering: stored in a buffer, not yet computed (a loop body), or a view of either.

In: sizes, strides and bodies. Out: `Tensor` and `View`, which rules load from. Invariant: a tensor has a body or a buffer.
A `Tensor` is a box: `realize` turns a body into a stored buffer in place, so that views made before see the buffer too.
Views are index transformations; `Layout`s of views over stored tensors are found by the same transformation on strides,
for library calls that take strided operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from fxloom_inductor_core.ir.cost import NOTHING, BodyCost
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.expr import Expr, normalize, product
from fxloom_interfaces.loop_ir import Body, Layout

Index: TypeAlias = tuple[Expr, ...]


def contiguous_strides(size: Index) -> Index:
    """Row-major strides, in elements. Extents of 0 count as 1, as in eager."""
    strides: list[Expr] = []
    step: Expr = 1
    for extent in reversed(size):
        strides.append(step)
        step = step * (1 if extent == 0 else extent)
    return tuple(reversed(strides))


def strides_in_order(size: Index, order: tuple[int, ...]) -> Index:
    """Dense strides where `order` lists the dims from the outermost to the innermost."""
    strides: list[Expr] = [1] * len(size)
    step: Expr = 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * (1 if size[dim] == 0 else size[dim])
    return tuple(strides)


def span(size: Sequence[Expr], stride: Sequence[Expr]) -> Expr:
    """Elements of memory from the first element to the last."""
    if any(extent == 0 for extent in size):
        return 0
    last: Any = 0
    for extent, step in zip(size, stride, strict=True):
        last = last + (extent - 1) * step
    return normalize(last + 1)


@lru_cache(maxsize=1 << 14)
def flat_index(index: Index, strides: Index, offset: Expr = 0) -> Expr:
    """offset + sum(index * stride), skipping what is visibly zero."""
    total: Expr = offset
    for position, stride in zip(index, strides, strict=True):
        if stride != 0 and position != 0:
            total = total + position * stride
    return total


@dataclass(slots=True)
class Tensor:
    """A tensor value: a body (not computed yet), or a buffer and the layout in which it holds the value (stored).

    order: preferred dim order, outermost first, for when it gets stored; None: that of the graph's fake tensor.
    inputs: what the body loads.
    """

    size: Index
    dtype: str
    device: str
    body: Body | None = None
    buffer: str | None = None
    layout: Layout | None = None
    cost: BodyCost = NOTHING
    order: tuple[int, ...] | None = None
    origins: tuple[str, ...] = ()
    inputs: tuple[Tensor | View, ...] = ()

    @property
    def is_stored(self) -> bool:
        return self.buffer is not None

    def load(self, ops: Any, index: Index) -> Any:
        """The element at `index`, under a handler."""
        if self.body is not None:
            return self.body(ops, index)
        if self.layout is None or self.buffer is None:
            raise AssertionError("a tensor has a body or a buffer")
        return ops.load(self.buffer, flat_index(index, self.layout.stride, self.layout.offset))

    def store_at(self, buffer: str, layout: Layout) -> None:
        """From now on this tensor is what `buffer` holds."""
        self.body, self.buffer, self.layout, self.inputs = None, buffer, layout, ()

    @property
    def base(self) -> Tensor:
        return self

    def stored_layout(self) -> Layout | None:
        """The layout in its buffer; None when it is not stored."""
        return self.layout


@dataclass(slots=True)
class View:
    """`base` seen through an index transformation.

    relayout: the same on layouts; it gives None where strides can't express the view.
    """

    source: Tensor | View
    size: Index
    reindex: Callable[[Index], Index]
    relayout: Callable[[Layout], Layout | None]

    @property
    def dtype(self) -> str:
        return self.source.dtype

    @property
    def device(self) -> str:
        return self.source.device

    @property
    def base(self) -> Tensor:
        return self.source.base

    @property
    def buffer(self) -> str | None:
        return self.base.buffer

    @property
    def is_stored(self) -> bool:
        return self.base.is_stored

    @property
    def cost(self) -> BodyCost:
        return self.base.cost

    @property
    def order(self) -> tuple[int, ...] | None:
        layout = self.stored_layout()
        return None if layout is None else dim_order(layout)

    def load(self, ops: Any, index: Index) -> Any:
        return self.source.load(ops, self.reindex(index))

    def stored_layout(self) -> Layout | None:
        layout = self.source.stored_layout()
        return None if layout is None else self.relayout(layout)


AnyTensor: TypeAlias = Tensor | View


def dim_order(layout: Layout) -> tuple[int, ...] | None:
    """Dims from outermost to innermost by stride; None where strides are not plain ints."""
    if not all(isinstance(s, int) for s in layout.stride):
        return None
    return tuple(sorted(range(len(layout.stride)), key=lambda d: (-layout.stride[d], d)))


def numel(size: Index) -> Expr:
    return product(size)


def nbytes(size: Index, dtype: str) -> int | None:
    """Bytes of the elements; None where they depend on symbols."""
    elements = product(size)
    return elements * dtype_info(dtype).nbytes if isinstance(elements, int) else None


def cost_of(tensor: AnyTensor) -> BodyCost:
    """What reading one element of the tensor takes."""
    if tensor.buffer is not None:
        return BodyCost(reads=frozenset([tensor.buffer]))
    return tensor.cost
