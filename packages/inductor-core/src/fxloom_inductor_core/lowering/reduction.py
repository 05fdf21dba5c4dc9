"""Reductions: folds over chosen dims. Variance is two sums where the capabilities allow it, Welford for long rows.

In: lowered tensors, dims, the dtype of the result. Out: lowered tensors, whose loops are added to the graph. Invariant: elements are
converted first, as in eager, and folded in a type at least as wide; a fold of no elements gives the identity. A fold over few outer
points but many elements is split in two (`split`), for parallelism and for accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.tensors import AnyTensor, Index, Tensor
from fxloom_inductor_core.lowering.promote import elementwise
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_inductor_core.lowering.split import Split, folds_columns, split_fold
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.dtypes import dtype_info, dtype_name, is_float, opmath
from fxloom_interfaces.expr import Expr, product
from fxloom_interfaces.ops import ReductionKind

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten

_SPLITTABLE = ("sum", "prod", "max", "min", "any", "all")


def fold(
    cx: LoweringContext,
    x: AnyTensor,
    dims: Sequence[int],
    keepdim: bool,
    kind: ReductionKind,
    *,
    dtype: str,
    acc_dtype: str,
    load: Callable[[Any, Index], Any] | None = None,
    result: int = 0,
) -> Tensor | Any:
    """Fold `load` (default: x's elements) over dims of x."""
    if kind not in _able(cx, x).reductions:
        return NotImplemented
    rank = len(x.size)
    gone = sorted({d % rank for d in dims}) if rank else []
    read = load or x.load
    reduced = tuple(x.size[d] for d in gone)
    if any(e == 0 for e in x.size):
        return _fold_of_none(cx, x, gone, keepdim, kind, dtype)
    if not gone or all(e == 1 for e in reduced):
        return _fold_of_one(cx, x, gone, keepdim, kind, dtype, read) if kind in _SPLITTABLE else NotImplemented
    kept = [d for d in range(rank) if d not in gone]
    size = tuple(1 if d in gone else x.size[d] for d in range(rank)) if keepdim else tuple(x.size[d] for d in kept)

    def place(index: Index, inner: Index) -> Index:
        outer = [i for d, i in enumerate(index) if not keepdim or d not in gone]
        full: list[Expr] = [0] * rank
        for d, i in zip(kept, outer, strict=True):
            full[d] = i
        for d, i in zip(gone, inner, strict=True):
            full[d] = i
        return tuple(full)

    split = split_fold(_able(cx, x), size, reduced, folds_columns(x, gone)) if kind in _SPLITTABLE else None
    if split is None:
        body = lambda ops, index: read(ops, place(index[: len(size)], index[len(size) :]))  # noqa: E731
        return cx.reduce(kind, size, reduced, dtype, acc_dtype, x.device, body, result=result)
    halfway_dtype = acc_dtype if dtype != "bool" else "bool"

    def element(ops: Any, outer: Index, position: Index, chunk: Index) -> Any:
        inside = split.inside(ops, position, reduced)
        if inside is None:
            return read(ops, place(outer, position))
        return ops.masked(inside, lambda: read(ops, place(outer, position)), _identity(kind, acc_dtype))

    halfway = fold_chunks(cx, x, split, size, kind, halfway_dtype, acc_dtype, element)
    return cx.reduce(kind, size, split.chunks, dtype, acc_dtype, x.device, halfway)


def fold_chunks(
    cx: LoweringContext, x: AnyTensor, split: Split, size: Index, kind: ReductionKind, dtype: str, acc_dtype: str,
    element: Callable[[Any, Index, Index, Index], Any],
) -> Callable[[Any, Index], Any]:  # fmt: skip
    """What reads the folds of the chunks, at (position in `size` + chunk). element: of a position in `size`, one in the fold's axes and
    the chunk that it is in."""
    chunks = len(split.chunks)
    lead = len(size)
    if split.columns:

        def body(ops: Any, index: Index) -> Any:
            inner = split.place((*index[:chunks], *index[chunks + lead :]))
            return element(ops, index[chunks : chunks + lead], inner, index[:chunks])

        stored = cx.reduce(kind, (*split.chunks, *size), split.rest, dtype, acc_dtype, x.device, body)
        return lambda ops, index: stored.load(ops, (*index[lead:], *index[:lead]))
    body = lambda ops, index: element(ops, index[:lead], split.place(index[lead:]), index[lead : lead + chunks])  # noqa: E731
    return cx.reduce(kind, (*size, *split.chunks), split.rest, dtype, acc_dtype, x.device, body).load


def _identity(kind: str, dtype: str) -> bool | int | float:
    """What changes no fold of the kind."""
    match kind:
        case "any":
            return False
        case "all":
            return True
        case "sum" | "prod":
            return int(kind == "prod")
    if is_float(dtype):
        return -math.inf if kind == "max" else math.inf
    if dtype == "bool":
        return kind == "min"
    info = torch.iinfo(getattr(torch, dtype))
    return info.min if kind == "max" else info.max


def _able(cx: LoweringContext, x: AnyTensor) -> Capabilities:
    return cx.codegens[_device_type(x.device)].capabilities


def _fold_of_none(cx: LoweringContext, x: AnyTensor, gone: list[int], keepdim: bool, kind: str, dtype: str) -> Tensor | Any:
    """The identity everywhere, for kinds that have one."""
    if kind not in ("sum", "prod", "any", "all"):
        return NotImplemented
    kept = [d for d in range(len(x.size)) if d not in gone]
    size = tuple(1 if d in gone else e for d, e in enumerate(x.size)) if keepdim else tuple(x.size[d] for d in kept)
    value = _identity(kind, dtype)
    return cx.compute(size, dtype, x.device, lambda ops, index: ops.constant(value, dtype), ops=0)


def _fold_of_one(cx: LoweringContext, x: AnyTensor, gone: list[int], keepdim: bool, kind: str, dtype: str, read: Any) -> Tensor:
    kept = [d for d in range(len(x.size)) if d not in gone]
    size = x.size if keepdim else tuple(x.size[d] for d in kept)

    def body(ops: Any, index: Index) -> Any:
        full: list[Expr] = [0] * len(x.size)
        for d, i in zip(range(len(x.size)) if keepdim else kept, index, strict=True):
            full[d] = i
        return ops.to_dtype(read(ops, tuple(full)), dtype)

    return cx.compute(size, dtype, x.device, body, [x])


def _device_type(device: str) -> str:
    return device.split(":")[0]


def _dims(x: AnyTensor, dims: Any) -> list[int]:
    if not x.size:
        return []  # whatever is asked for: -1 and 0 are all that a tensor without dimensions allows
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(len(x.size)))
    return [dims] if isinstance(dims, int) else list(dims)


def _accumulator(dtype: str) -> str:
    return opmath(dtype)


def _converted(x: AnyTensor, dtype: str) -> Callable[[Any, Index], Any]:
    return lambda ops, index: ops.to_dtype(x.load(ops, index), dtype)


def _sum(cx: LoweringContext, x: Any, dims: Any, keepdim: bool, kind: ReductionKind) -> Any:
    dtype = dtype_name(cx.fake.dtype)
    if dtype_info(dtype).kind == "complex":
        return NotImplemented
    acc = _accumulator(dtype)
    if dtype == "bool":
        kind = "any" if kind == "sum" else "all"

    def load(ops: Any, index: Index) -> Any:  # eager converts first, to what may be narrower than what it adds in
        return ops.to_dtype(ops.to_dtype(x.load(ops, index), dtype), acc)

    return fold(cx, x, _dims(x, dims), keepdim, kind, dtype=dtype, acc_dtype=acc, load=load)


@lowering(aten.sum.default)
def sum_all(cx: LoweringContext, x: Any, *, dtype: Any = None) -> Any:
    return _sum(cx, x, None, False, "sum")


@lowering(aten.sum.dim_IntList)
def sum_dims(cx: LoweringContext, x: Any, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _sum(cx, x, dims, keepdim, "sum")


@lowering(aten.prod.default)
def prod_all(cx: LoweringContext, x: Any, *, dtype: Any = None) -> Any:
    return _sum(cx, x, None, False, "prod")


@lowering(aten.prod.dim_int)
def prod_dim(cx: LoweringContext, x: Any, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _sum(cx, x, dim, keepdim, "prod")


def _mean(cx: LoweringContext, x: Any, dims: Any, keepdim: bool) -> Any:
    dtype = dtype_name(cx.fake.dtype)
    if not is_float(dtype):
        return NotImplemented
    acc = opmath(dtype)
    chosen = _dims(x, dims)
    count = product(x.size[d] for d in chosen)
    total = fold(cx, x, chosen, keepdim, "sum", dtype=acc, acc_dtype=acc, load=_converted(x, acc))
    return NotImplemented if total is NotImplemented else _divided(cx, total, count, dtype)


def _divided(cx: LoweringContext, total: Tensor, count: Expr, dtype: str) -> Tensor:
    acc = total.dtype

    def body(ops: Any, index: Index) -> Any:
        divisor = ops.constant(count, acc) if isinstance(count, int) else ops.to_dtype(ops.index_expr(count, "int64"), acc)
        return ops.to_dtype(ops.div(total.load(ops, index), divisor), dtype)

    return cx.compute(total.size, dtype, total.device, body, [total])


@lowering(aten.mean.default)
def mean_all(cx: LoweringContext, x: Any, *, dtype: Any = None) -> Any:
    return _mean(cx, x, None, False)


@lowering(aten.mean.dim)
def mean_dims(cx: LoweringContext, x: Any, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _mean(cx, x, dims, keepdim)


def _extreme(kind: ReductionKind) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, dims: Any = (), keepdim: bool = False) -> Any:
        return fold(cx, x, _dims(x, dims), keepdim, kind, dtype=x.dtype, acc_dtype=opmath(x.dtype))

    rule.__qualname__ = kind
    return rule


lowering(aten.amax.default, aten.max.default)(_extreme("max"))
lowering(aten.amin.default, aten.min.default)(_extreme("min"))


def _truth(kind: ReductionKind) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
        dtype = dtype_name(cx.fake.dtype)
        return fold(cx, x, _dims(x, dims), keepdim, kind, dtype=dtype, acc_dtype="bool", load=_converted(x, "bool"))

    rule.__qualname__ = kind
    return rule


lowering(aten.any.default, aten.any.dim, aten.any.dims)(_truth("any"))
lowering(aten.all.default, aten.all.dim, aten.all.dims)(_truth("all"))


def _position(kind: ReductionKind) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if x.dtype == "bool":
            return NotImplemented  # eager refuses it
        return fold(cx, x, _dims(x, dim), keepdim, kind, dtype="int64", acc_dtype="int64", load=_converted(x, opmath(x.dtype)))

    rule.__qualname__ = kind
    return rule


lowering(aten.argmax.default)(_position("argmax"))
lowering(aten.argmin.default)(_position("argmin"))


def _with_position(value_kind: ReductionKind, position_kind: ReductionKind) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, dim: int, keepdim: bool = False) -> Any:
        if x.base.body is not None and (x.cost.heavy or cx.is_dear(x, 2)):
            cx.realize(x)
        acc = opmath(x.dtype)
        values = fold(cx, x, _dims(x, dim), keepdim, value_kind, dtype=x.dtype, acc_dtype=acc, load=_converted(x, acc))
        positions = fold(cx, x, _dims(x, dim), keepdim, position_kind, dtype="int64", acc_dtype="int64", load=_converted(x, acc))
        return NotImplemented if positions is NotImplemented or values is NotImplemented else (values, positions)

    rule.__qualname__ = f"{value_kind}.dim"
    return rule


lowering(aten.max.dim)(_with_position("max", "argmax"))
lowering(aten.min.dim)(_with_position("min", "argmin"))


def variance(cx: LoweringContext, x: Any, dims: Any, correction: Any, keepdim: bool) -> Any:
    """(variance, mean) over dims."""
    if not is_float(x.dtype) or not isinstance(correction, (int, float, type(None))):
        return NotImplemented
    correction = 1 if correction is None else correction
    acc = opmath(x.dtype)
    chosen = _dims(x, dims)
    count = product(x.size[d % len(x.size)] for d in chosen)
    if x.base.body is not None and (x.cost.heavy or cx.is_dear(x, 2)):
        cx.realize(x)
    wide = _converted(x, acc)
    moments = _moments(cx, x, chosen, keepdim, acc) if isinstance(count, int) else None
    if moments is None:
        total = fold(cx, x, chosen, True, "sum", dtype=acc, acc_dtype=acc, load=wide)
        if total is NotImplemented:
            return NotImplemented
        gone = {d % len(x.size) for d in chosen}
        first = lambda index: tuple(0 if d in gone else i for d, i in enumerate(index))  # noqa: E731
        value, center = wide, total
        if correction and isinstance(count, int):  # from the row's first element on, which a row of unknown length may lack: equal
            # elements then deviate by exactly 0, and the deviation may be divided by; normalizations, with none, add to it first
            value = lambda ops, index: ops.sub(wide(ops, index), wide(ops, first(index)))  # noqa: E731
            center = fold(cx, x, chosen, True, "sum", dtype=acc, acc_dtype=acc, load=value)
        mean = _divided(cx, center, count, acc)

        def deviation(ops: Any, index: Index) -> Any:
            difference = ops.sub(value(ops, index), mean.load(ops, first(index)))
            return ops.mul(difference, difference)

        squares = fold(cx, x, chosen, keepdim, "sum", dtype=acc, acc_dtype=acc, load=deviation)
        mean_total = total if keepdim else _without_ones(total, chosen)
        mean_out = _divided(cx, mean_total, count, x.dtype)
    else:
        mean_acc, squares = moments
        mean_out = elementwise(cx, [mean_acc], lambda ops, m: m, dtype=x.dtype, compute=acc, ops=0)
    return _normalized(cx, squares, count, correction, x.dtype), mean_out


def _moments(cx: LoweringContext, x: Any, dims: Sequence[int], keepdim: bool, acc: str) -> tuple[Any, Any] | None:
    """(mean, sum of squared deviations): of chunks by two passes over each, of others by Welford; None to take two passes over all, as
    over short rows, and where chunks have unequal lengths."""
    able = _able(cx, x)
    gone = sorted({d % len(x.size) for d in dims})
    reduced = tuple(x.size[d] for d in gone)
    size = tuple(1 if d in gone else e for d, e in enumerate(x.size))
    columns = folds_columns(x, gone)
    if split_fold(able, size, reduced, columns) is None:
        if product(reduced) <= able.two_pass_numel or "welford" not in able.reductions:
            return None
        mean = fold(cx, x, dims, keepdim, "welford", dtype=acc, acc_dtype=acc, load=_converted(x, acc), result=0)
        squares = fold(cx, x, dims, keepdim, "welford", dtype=acc, acc_dtype=acc, load=_converted(x, acc), result=1)
        return None if mean is NotImplemented or squares is NotImplemented else (mean, squares)
    split = split_fold(able, size, reduced, columns, even=True)
    if split is None:
        return None
    wide = _converted(x, acc)
    number, length = product(split.chunks), product(split.rest)

    def element(ops: Any, outer: Index, position: Index, chunk: Index) -> Any:
        at = list(outer)
        for d, i in zip(gone, position, strict=True):
            at[d] = i
        return wide(ops, tuple(at))

    def mean_of(ops: Any, index: Index) -> Any:
        return ops.div(totals(ops, index), ops.constant(length, acc))

    def spread(ops: Any, outer: Index, position: Index, chunk: Index) -> Any:
        difference = ops.sub(element(ops, outer, position, chunk), mean_of(ops, (*outer, *chunk)))
        return ops.mul(difference, difference)

    totals = fold_chunks(cx, x, split, size, "sum", acc, acc, element)
    parts = fold_chunks(cx, x, split, size, "sum", acc, acc, spread)
    mean = _divided(cx, cx.reduce("sum", size, split.chunks, acc, acc, x.device, totals), number * length, acc)
    rank = len(size)

    def deviation(ops: Any, index: Index) -> Any:  # of a chunk: from its own mean, and of that mean from the mean of all
        difference = ops.sub(mean_of(ops, index), mean.load(ops, index[:rank]))
        return ops.add(parts(ops, index), ops.mul(ops.constant(length, acc), ops.mul(difference, difference)))

    squares = cx.reduce("sum", size, split.chunks, acc, acc, x.device, deviation)
    return (mean, squares) if keepdim else (_without_ones(mean, gone), _without_ones(squares, gone))


def _without_ones(total: Tensor, dims: Sequence[int]) -> Any:
    from fxloom_inductor_core.lowering.view import _squeezed

    return _squeezed(total, dims)


def _normalized(cx: LoweringContext, squares: Tensor, count: Expr, correction: float, dtype: str) -> Tensor:
    """squares / max(count - correction, 0)."""
    acc = squares.dtype

    def body(ops: Any, index: Index) -> Any:
        if isinstance(count, int):
            divisor = ops.constant(max(count - correction, 0), acc)
        else:
            whole = ops.to_dtype(ops.index_expr(count, "int64"), acc)
            divisor = ops.maximum(ops.sub(whole, ops.constant(correction, acc)), ops.constant(0, acc))
        return ops.to_dtype(ops.div(squares.load(ops, index), divisor), dtype)

    return cx.compute(squares.size, dtype, squares.device, body, [squares])


@lowering(aten.var_mean.correction)
def var_mean(cx: LoweringContext, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return variance(cx, x, dims, correction, keepdim)


@lowering(aten.var.correction)
def var(cx: LoweringContext, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    result = variance(cx, x, dims, correction, keepdim)
    return result if result is NotImplemented else result[0]
