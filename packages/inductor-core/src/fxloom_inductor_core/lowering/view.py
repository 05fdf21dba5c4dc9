"""Views: index transformations, and the same transformations on layouts for operands of library calls. Nothing is copied.

In: a lowered value, and the operator's sizes, dims or bounds. Out: a lowered value that loads from the same one at other indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import as_expr, layout_of, order_or_plain, same_strides
from fxloom_inductor_core.ir.tensors import AnyTensor, Index, Tensor, View, contiguous_strides, flat_index
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces import meta
from fxloom_interfaces.expr import Expr, floor_div, mod, normalize
from fxloom_interfaces.loop_ir import Layout
from fxloom_shapes.fake.sizes import clip, wrapped

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


def _relaid(layout: Layout, size: Index, stride: Sequence[Expr], offset: Expr | None = None) -> Layout:
    return replace(layout, size=size, stride=tuple(stride), offset=layout.offset if offset is None else normalize(offset))


def permuted(x: AnyTensor, dims: Sequence[int]) -> View:
    rank = len(x.size)
    order = [d % rank for d in dims] if rank else []
    size = tuple(x.size[d] for d in order)

    def reindex(index: Index) -> Index:
        result: list[Expr] = [0] * rank
        for position, dim in zip(index, order, strict=True):
            result[dim] = position
        return tuple(result)

    return View(x, size, reindex, lambda layout: _relaid(layout, size, [layout.stride[d] for d in order]))


@lowering(aten.permute.default)
def permute(cx: LoweringContext, x: Any, dims: Sequence[int]) -> Any:
    return permuted(x, dims)


@lowering(aten.t.default)
def t(cx: LoweringContext, x: Any) -> Any:
    return permuted(x, range(len(x.size))[::-1])


@lowering(aten.transpose.int)
def transpose(cx: LoweringContext, x: Any, a: int, b: int) -> Any:
    dims = list(range(len(x.size)))
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return permuted(x, dims)


def expand_to(x: AnyTensor, size: Index) -> AnyTensor:
    """`x` broadcast to `size`."""
    if x.size == size:
        return x
    lead = len(size) - len(x.size)
    stretched = [lead + d for d, extent in enumerate(x.size) if extent == 1 and size[lead + d] != 1]

    def reindex(index: Index) -> Index:
        return tuple(0 if lead + d in stretched else index[lead + d] for d in range(len(x.size)))

    def relayout(layout: Layout) -> Layout:
        stride = [0] * lead + [0 if lead + d in stretched else s for d, s in enumerate(layout.stride)]
        return _relaid(layout, size, stride)

    return View(x, size, reindex, relayout)


@lowering(aten.expand.default)
def expand(cx: LoweringContext, x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    wanted = tuple(as_expr(s) for s in cx.fake.size())
    if x.base.body is not None and x.cost.heavy and wanted != x.size:
        cx.realize(x)  # every repetition would compute it again
    return expand_to(x, wanted)


@lowering(aten.unsqueeze.default)
def unsqueeze(cx: LoweringContext, x: Any, dim: int) -> Any:
    dim = dim % (len(x.size) + 1)
    size = (*x.size[:dim], 1, *x.size[dim:])

    def relayout(layout: Layout) -> Layout:
        step = layout.size[dim] * layout.stride[dim] if dim < len(layout.size) else 1
        return _relaid(layout, size, [*layout.stride[:dim], step, *layout.stride[dim:]])

    return View(x, size, lambda index: (*index[:dim], *index[dim + 1 :]), relayout)


def _squeezed(x: AnyTensor, dims: Sequence[int]) -> AnyTensor:
    gone = {d % len(x.size) for d in dims if x.size and x.size[d] == 1}
    if not gone:
        return x
    kept = [d for d in range(len(x.size)) if d not in gone]
    size = tuple(x.size[d] for d in kept)

    def reindex(index: Index) -> Index:
        result: list[Expr] = [0] * len(x.size)
        for position, dim in zip(index, kept, strict=True):
            result[dim] = position
        return tuple(result)

    return View(x, size, reindex, lambda layout: _relaid(layout, size, [layout.stride[d] for d in kept]))


@lowering(aten.squeeze.default)
def squeeze(cx: LoweringContext, x: Any) -> Any:
    return _squeezed(x, range(len(x.size)))


@lowering(aten.squeeze.dim, aten.squeeze.dims)
def squeeze_dims(cx: LoweringContext, x: Any, dims: Any) -> Any:
    return _squeezed(x, [dims] if isinstance(dims, int) else dims)


def sliced(x: AnyTensor, dim: int, start: Expr, extent: Expr, step: int = 1) -> AnyTensor:
    """Elements start, start + step, ... along `dim`, `extent` of them."""
    dim = dim % len(x.size)
    if start == 0 and step == 1 and extent == x.size[dim]:
        return x
    size = (*x.size[:dim], extent, *x.size[dim + 1 :])

    def reindex(index: Index) -> Index:
        return (*index[:dim], index[dim] * step + start, *index[dim + 1 :])

    def relayout(layout: Layout) -> Layout:
        stride = [*layout.stride[:dim], layout.stride[dim] * step, *layout.stride[dim + 1 :]]
        return _relaid(layout, size, stride, layout.offset + start * layout.stride[dim])

    return View(x, size, reindex, relayout)


@lowering(aten.slice.Tensor)
def slice_(cx: LoweringContext, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    begin = 0 if start is None else as_expr(clip(cx.given(2, "start"), cx.given(0, "self").size()[dim]))
    return sliced(x, dim, begin, as_expr(cx.fake.size()[dim]), step)


@lowering(aten.select.int)
def select(cx: LoweringContext, x: Any, dim: int, index: Any) -> Any:
    dim = dim % len(x.size)
    position = as_expr(wrapped(cx.given(2, "index"), cx.given(0, "self").size()[dim]))
    return _squeezed_one(sliced(x, dim, position, 1), dim)


def _squeezed_one(x: AnyTensor, dim: int) -> View:
    size = (*x.size[:dim], *x.size[dim + 1 :])

    def relayout(layout: Layout) -> Layout:
        return _relaid(layout, size, [*layout.stride[:dim], *layout.stride[dim + 1 :]])

    return View(x, size, lambda index: (*index[:dim], 0, *index[dim:]), relayout)


def _pieces(cx: LoweringContext, x: AnyTensor, dim: int) -> list[AnyTensor]:
    start: Expr = 0
    result = []
    for fake in cx.fake:
        extent = as_expr(fake.size()[dim])
        result.append(sliced(x, dim, start, extent))
        start = start + extent
    return result


@lowering(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def split(cx: LoweringContext, x: Any, sizes: Any, dim: int = 0) -> Any:
    if x.base.body is not None and x.cost.ops:
        cx.realize(x)
    return _pieces(cx, x, dim)


@lowering(aten.unbind.int)
def unbind(cx: LoweringContext, x: Any, dim: int = 0) -> Any:
    dim = dim % len(x.size)
    if not isinstance(x.size[dim], int):
        return NotImplemented
    return [_squeezed_one(sliced(x, dim, i, 1), dim) for i in range(x.size[dim])]


@lowering(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default)
def alias(cx: LoweringContext, x: Any) -> Any:
    return x


@lowering(aten.diagonal.default)
def diagonal(cx: LoweringContext, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(x.size)
    dim1, dim2 = dim1 % rank, dim2 % rank
    kept = [d for d in range(rank) if d not in (dim1, dim2)]
    size = tuple(as_expr(s) for s in cx.fake.size())
    down, right = max(-offset, 0), max(offset, 0)

    def reindex(index: Index) -> Index:
        result: list[Expr] = [0] * rank
        for position, dim in zip(index, kept, strict=False):
            result[dim] = position
        result[dim1], result[dim2] = index[-1] + down, index[-1] + right
        return tuple(result)

    def relayout(layout: Layout) -> Layout:
        stride = [*(layout.stride[d] for d in kept), layout.stride[dim1] + layout.stride[dim2]]
        return _relaid(layout, size, stride, layout.offset + down * layout.stride[dim1] + right * layout.stride[dim2])

    return View(x, size, reindex, relayout)


# ------------------------------------------------------------------------------------------------------- reshape


def match_dims(old: Index, new: Index) -> list[tuple[list[int], list[int]]] | None:
    """Groups of (old dims, new dims) of equal extent, outermost first; dims of extent 1 are left out. None: no match."""
    a = [d for d, e in enumerate(old) if e != 1]
    b = [d for d, e in enumerate(new) if e != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while a or b:
        if not a or not b:
            return None
        left, right = [a.pop()], [b.pop()]
        p, q = old[left[0]], new[right[0]]
        while p != q:
            if isinstance(p, int) and isinstance(q, int):
                grow_left = p < q
            else:
                grow_left = len(left) <= len(right) and bool(a)
            if grow_left:
                if not a:
                    return None
                left.insert(0, a.pop())
                p = normalize(old[left[0]] * p)
            else:
                if not b:
                    return None
                right.insert(0, b.pop())
                q = normalize(new[right[0]] * q)
        groups.insert(0, (left, right))
    return groups


def reshaped(x: AnyTensor, size: Index) -> AnyTensor | None:
    """`x` with another size of the same number of elements, in row-major order. None where extents can't be matched."""
    if x.size == size:
        return x
    if any(e == 0 for e in size):
        return View(
            x, size, lambda index: tuple(0 for _ in x.size), lambda layout: _relaid(layout, size, contiguous_strides(size))
        )
    groups = match_dims(x.size, size)
    if groups is None:
        return None

    def reindex(index: Index) -> Index:
        result: list[Expr] = [0] * len(x.size)
        for old, new in groups:
            flat = flat_index(tuple(index[d] for d in new), contiguous_strides(tuple(size[d] for d in new)))
            for dim, position in zip(old, unflatten(flat, tuple(x.size[d] for d in old)), strict=True):
                result[dim] = position
        return tuple(result)

    def relayout(layout: Layout) -> Layout | None:
        stride: list[Expr] = [1] * len(size)
        for old, new in groups:
            for outer, inner in pairwise(old):
                if normalize(layout.stride[inner] * layout.size[inner]) != layout.stride[outer]:
                    return None
            step = layout.stride[old[-1]]
            for dim in reversed(new):
                stride[dim] = step
                step = normalize(step * size[dim])
        return _relaid(layout, size, stride)

    return View(x, size, reindex, relayout)


def unflatten(flat: Expr, size: Index) -> list[Expr]:
    """Row-major position `flat` as an index into `size`."""
    result: list[Expr] = []
    for extent in reversed(size[1:]):
        result.insert(0, mod(flat, extent))
        flat = floor_div(flat, extent)
    result.insert(0, flat)
    return result


@lowering(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(cx: LoweringContext, x: Any, size: Sequence[Any]) -> Any:
    result = reshaped(x, tuple(as_expr(s) for s in cx.fake.size()))
    return NotImplemented if result is None else result


@lowering(aten.as_strided.default)
def as_strided(cx: LoweringContext, x: Any, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Any:
    """Speaks about memory, so the base has to lie as the graph's fake does."""
    fake = meta.get_fake(cx.current.all_input_nodes[0])  # the base's, for its strides and offset
    strides = tuple(as_expr(s) for s in fake.stride())
    held = cx.operand(x, lambda layout: same_strides(layout, strides), order_or_plain(fake))
    if not same_strides(held.layout, strides):
        return NotImplemented
    start = held.layout.offset if offset is None else held.layout.offset + offset - as_expr(fake.storage_offset())
    layout = replace(held.layout, size=tuple(size), stride=tuple(stride), offset=normalize(start))
    return Tensor(layout.size, layout.dtype, layout.device, buffer=held.buffer, layout=layout)


# --------------------------------------------------------------------------------------------------------- joins


#: pieces up to which a joined tensor is computed where it is read. Each element asks for each piece whether it lies there, so
#: more of them cost less as one copy by the library
_COMPUTED_PIECES = 4


@lowering(aten.cat.default)
def cat(cx: LoweringContext, tensors: Sequence[Any], dim: int = 0) -> Any:
    fake = cx.fake
    layout = layout_of(fake)
    parts = [p for p in tensors if not (len(p.size) == 1 and p.size[0] == 0 and len(layout.size) != 1)]
    rank = len(layout.size)
    dim = dim % rank
    if not parts:
        return NotImplemented
    if len(parts) == 1:
        return cx.copy_of(parts[0])
    if len(parts) > min(_COMPUTED_PIECES, cx.most_arguments(layout.device) - 1):
        pieces = [cx.operand(part) for part in parts]
        return cx.library("torch.cat", (pieces, dim), [layout], out=True, op="aten.cat")[0]
    starts: list[Expr] = []
    total: Expr = 0
    for part in parts:
        starts.append(total)
        total = normalize(total + part.size[dim])
    heavy = False
    for part in parts:
        heavy = heavy or part.cost.heavy
        if part.base.body is not None and part.cost.heavy:
            cx.realize(part)

    def piece(part: AnyTensor, start: Expr) -> Callable[[Any, Index], Any]:
        def load(ops: Any, index: Index) -> Any:
            inside = (*index[:dim], index[dim] - start, *index[dim + 1 :])
            return ops.to_dtype(part.load(ops, inside), layout.dtype)

        return load

    loads = [piece(part, start) for part, start in zip(parts, starts, strict=True)]

    def body(ops: Any, index: Index) -> Any:
        position = ops.index_expr(index[dim], "int64")
        result = None
        for part, start, load in reversed(list(zip(parts, starts, loads, strict=True))):
            end = ops.lt(position, ops.index_expr(normalize(start + part.size[dim]), "int64"))
            if result is None:
                begin = ops.ge(position, ops.index_expr(start, "int64"))
                result = ops.masked(begin, lambda load=load: load(ops, index), 0)
                continue
            inside = end if start == 0 else ops.logical_and(end, ops.ge(position, ops.index_expr(start, "int64")))
            result = ops.where(end, ops.masked(inside, lambda load=load: load(ops, index), 0), result)
        return result

    return cx.compute(layout.size, layout.dtype, layout.device, body, parts, ops=3 * len(parts))


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(cx: LoweringContext, x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    size = tuple(as_expr(s) for s in cx.fake.size())
    rank = len(size)
    before: list[Expr] = [0] * rank
    for position in range(len(pad) // 2):
        before[rank - 1 - position] = pad[2 * position]

    def body(ops: Any, index: Index) -> Any:
        inner = tuple(i - b for i, b in zip(index, before, strict=True))
        mask = None
        for dim in range(rank):
            if size[dim] == x.size[dim] and before[dim] == 0:
                continue
            at = ops.index_expr(inner[dim], "int64")
            inside = ops.logical_and(ops.ge(at, ops.constant(0, "int64")), ops.lt(at, ops.index_expr(x.size[dim], "int64")))
            mask = inside if mask is None else ops.logical_and(mask, inside)
        return x.load(ops, inner) if mask is None else ops.masked(mask, lambda: x.load(ops, inner), value)

    return cx.compute(size, x.dtype, x.device, body, [x], ops=4)


@lowering(aten.flip.default)
def flip(cx: LoweringContext, x: Any, dims: Sequence[int]) -> Any:
    turned = {d % len(x.size) for d in dims} if x.size else set()

    def body(ops: Any, index: Index) -> Any:
        return x.load(ops, tuple(x.size[d] - 1 - i if d in turned else i for d, i in enumerate(index)))

    return cx.compute(x.size, x.dtype, x.device, body, [x], ops=0)


@lowering(aten.repeat.default)
def repeat(cx: LoweringContext, x: Any, repeats: Sequence[Any]) -> Any:
    size = tuple(as_expr(s) for s in cx.fake.size())
    lead = len(size) - len(x.size)
    if x.base.body is not None and x.cost.heavy:
        cx.realize(x)

    def body(ops: Any, index: Index) -> Any:
        return x.load(ops, tuple(mod(i, e) for i, e in zip(index[lead:], x.size, strict=True)))

    return cx.compute(size, x.dtype, x.device, body, [x], ops=1)
