"""Lowerings of reads whose index is data (`embedding`, `index`, `gather`), and of writes into a slice or one position of an axis.

In: a context and the node's tensors and indices. Out: a tensor that is not stored yet, or NotImplemented for a call of eager's
kernel. Such a read stops the kernel where the index is out of range, as in eager; what is read from is realized first, unless few
elements of it are taken. Writes whose index is data are in `scatter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr
from fxloom_inductor_core.ir.tensors import Index
from fxloom_inductor_core.lowering.promote import broadcast_index, broadcast_sizes
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_inductor_core.lowering.view import expand_to
from fxloom_interfaces.dtypes import is_integer
from fxloom_interfaces.expr import product
from fxloom_ops.choices import CHOOSE_CLASS
from fxloom_shapes.fake.sizes import clip, wrapped

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


@lowering(aten.embedding.default)
def embedding(cx: LoweringContext, weight: Any, index: Any, padding: int = -1, scale: bool = False, sparse: bool = False) -> Any:
    cx.realize(weight)
    rank = len(index.size)

    def body(ops: Any, at: Index) -> Any:
        row = ops.indirect_indexing(index.load(ops, at[:rank]), weight.size[0], check=True, wrap=False)
        return weight.load(ops, (row, *at[rank:]))

    return cx.compute((*index.size, *weight.size[1:]), weight.dtype, weight.device, body, [weight, index], ops=2)


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(cx: LoweringContext, x: Any, indices: Sequence[Any]) -> Any:
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(not is_integer(indices[d].dtype) or indices[d].dtype == "uint8" for d in used) or any(
        indices[d].device != x.device for d in used
    ):
        return NotImplemented
    size = broadcast_sizes([indices[d].size for d in used])
    if any(e == 0 for e in size):
        none = tuple(as_expr(s) for s in cx.fake.size())
        return cx.compute(none, x.dtype, x.device, lambda ops, at: ops.constant(0, x.dtype), ops=0)
    if any(e == 0 for e in x.size):
        return NotImplemented
    cx.realize(x)
    adjacent = used == list(range(used[0], used[-1] + 1))
    lead = used[0] if adjacent else 0
    rest = [d for d in range(len(x.size)) if d not in used]
    result = tuple(as_expr(s) for s in cx.fake.size())

    def body(ops: Any, at: Index) -> Any:
        shared = at[lead : lead + len(size)]
        others = [*at[:lead], *at[lead + len(size) :]]
        where: list[Any] = [0] * len(x.size)
        for dim, position in zip(rest, others, strict=True):
            where[dim] = position
        for dim in used:
            value = indices[dim].load(ops, broadcast_index(indices[dim].size, shared))
            where[dim] = ops.indirect_indexing(ops.to_dtype(value, "int64"), x.size[dim])
        return x.load(ops, tuple(where))

    return cx.compute(result, x.dtype, x.device, body, [x, *(indices[d] for d in used)], ops=2 * len(used))


@lowering(aten.index_select.default)
def index_select(cx: LoweringContext, x: Any, dim: int, index: Any) -> Any:
    dim = dim % len(x.size) if x.size else 0
    if x.size and x.size[dim] == 0:
        return NotImplemented
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake.size())

    def body(ops: Any, at: Index) -> Any:
        place = (at[dim] if size else 0,) if index.size else ()
        value = ops.to_dtype(index.load(ops, place), "int64")
        row = ops.indirect_indexing(value, x.size[dim] if x.size else 1, wrap=False)
        return x.load(ops, (*at[:dim], row, *at[dim + 1 :]) if x.size else ())

    return cx.compute(size, x.dtype, x.device, body, [x, index], ops=2)


@lowering(aten.gather.default)
def gather(cx: LoweringContext, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    return _gathered(cx, x, dim, index, "RuntimeError")


@lowering(CHOOSE_CLASS)
def choose_class(cx: LoweringContext, x: Any, dim: int, index: Any) -> Any:
    return _gathered(cx, x, dim, index, "IndexError")


def _gathered(cx: LoweringContext, x: Any, dim: int, index: Any, error: str) -> Any:
    if any(e == 0 for e in index.size):  # which may then have other axes than x
        return cx.compute(index.size, x.dtype, x.device, lambda ops, at: ops.constant(0, x.dtype), ops=0)
    if any(e == 0 for e in x.size):
        return NotImplemented
    dim = dim % len(x.size) if x.size else 0
    if not _takes_few(index.size, x.size):
        cx.realize(x)

    def body(ops: Any, at: Index) -> Any:
        extent = x.size[dim] if x.size else 1
        row = ops.indirect_indexing(ops.to_dtype(index.load(ops, at), "int64"), extent, wrap=False, error=error)
        return x.load(ops, (*at[:dim], row, *at[dim + 1 :]) if x.size else ())

    return cx.compute(index.size, x.dtype, x.device, body, [x, index], ops=2)


def _takes_few(size: Index, source: Index) -> bool:
    """Whether so few elements are taken that computing these takes less than storing all, as of the scores of a batch of classes."""
    taken, there = product(size), product(source)
    return isinstance(taken, int) and isinstance(there, int) and taken * 16 <= there


@lowering(aten._unsafe_masked_index.default)
def masked_index(cx: LoweringContext, x: Any, mask: Any, indices: Sequence[Any], fill: Any) -> Any:
    """x at the indices where the mask holds, and `fill` elsewhere, where indices may be out of range."""
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(not is_integer(indices[d].dtype) for d in used) or used != list(range(len(x.size))) or mask.dtype != "bool":
        return NotImplemented
    if any(e == 0 for e in x.size):
        return NotImplemented
    cx.realize(x)
    size = tuple(as_expr(s) for s in cx.fake.size())

    def body(ops: Any, at: Index) -> Any:
        def inside() -> Any:
            values = [ops.to_dtype(i.load(ops, broadcast_index(i.size, at)), "int64") for i in indices]
            return x.load(ops, tuple(ops.indirect_indexing(v, e) for v, e in zip(values, x.size, strict=True)))

        return ops.masked(mask.load(ops, broadcast_index(mask.size, at)), inside, fill)

    return cx.compute(size, x.dtype, x.device, body, [x, mask, *(indices[d] for d in used)], ops=2 * len(used))


@lowering(aten.slice_scatter.default)
def slice_scatter(cx: LoweringContext, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if step != 1:
        return NotImplemented
    dim = dim % len(x.size)
    begin = 0 if start is None else as_expr(clip(cx.given(3, "start"), cx.given(0, "self").size()[dim]))
    extent = source.size[dim]

    def body(ops: Any, at: Index) -> Any:
        position = ops.index_expr(at[dim], "int64")
        inside = ops.lt(position, ops.index_expr(begin + extent, "int64"))
        if begin != 0:
            inside = ops.logical_and(inside, ops.ge(position, ops.index_expr(begin, "int64")))
        shifted = (*at[:dim], at[dim] - begin, *at[dim + 1 :])
        taken = ops.masked(inside, lambda: ops.to_dtype(source.load(ops, shifted), x.dtype), 0)
        return ops.where(inside, taken, x.load(ops, at))

    return cx.compute(x.size, x.dtype, x.device, body, [x, source], ops=4)


@lowering(aten.select_scatter.default)
def select_scatter(cx: LoweringContext, x: Any, source: Any, dim: int, index: Any) -> Any:
    dim = dim % len(x.size)
    position = as_expr(wrapped(cx.given(3, "index"), cx.given(0, "self").size()[dim]))
    wide = expand_to(source, (*x.size[:dim], *x.size[dim + 1 :]))

    def body(ops: Any, at: Index) -> Any:
        here = ops.eq(ops.index_expr(at[dim], "int64"), ops.index_expr(position, "int64"))
        value = ops.to_dtype(wide.load(ops, (*at[:dim], *at[dim + 1 :])), x.dtype)
        return ops.where(here, value, x.load(ops, at))

    return cx.compute(x.size, x.dtype, x.device, body, [x, source], ops=3)
