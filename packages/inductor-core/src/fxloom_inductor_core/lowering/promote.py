"""Broadcasting and type promotion for lowering rules, as eager does them.

In: lowered values of several sizes and dtypes, and a body for one element of a common type. Out: a lowered value of the broadcast
size and the promoted dtype, not yet stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sympy
import torch

from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.ir.tensors import AnyTensor, Index, Tensor, View
from fxloom_interfaces.dtypes import dtype_name, is_float, opmath, torch_dtype
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.expr import Expr, at_most_one
from fxloom_interfaces.ops import OPS
from fxloom_ops.wide_numbers import takes_wide_number

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext


def is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, View))


def broadcast_sizes(sizes: Sequence[Index]) -> Index:
    """The common size; extents that differ from 1 must agree (symbolic ones are never 1)."""
    rank = max((len(s) for s in sizes), default=0)
    result: list[Expr] = [1] * rank
    for size in sizes:
        for position, extent in enumerate(size, rank - len(size)):
            if extent != 1:
                if (
                    result[position] != 1
                    and result[position] != extent
                    and isinstance(extent, int)
                    and isinstance(result[position], int)
                ):
                    raise ValueError(f"sizes {list(sizes)} do not broadcast")
                if at_most_one(result[position]) or isinstance(extent, int):
                    result[position] = extent
    return tuple(result)


def broadcast_index(size: Index, index: Index) -> Index:
    """The index into a tensor of `size` for an index of the broadcast result."""
    tail = index[len(index) - len(size) :]
    return tuple(0 if at_most_one(extent) else i for extent, i in zip(size, tail, strict=True))


@lru_cache(maxsize=256)
def _sample(dtype: str, zero_dim: bool) -> torch.Tensor:
    return torch.empty(() if zero_dim else (1,), dtype=torch_dtype(dtype), device="cpu")


def promote(values: Sequence[Any]) -> str:
    """The dtype in which eager computes on these tensors and Python numbers."""
    result: Any = None
    zero_dim = True
    tensors = [v for v in values if is_tensor(v)]
    for tensor in sorted(tensors, key=lambda t: len(t.size) == 0):
        sample = _sample(tensor.dtype, len(tensor.size) == 0)
        if result is None:
            result, zero_dim = tensor.dtype, len(tensor.size) == 0
        else:
            result = dtype_name(torch.result_type(_sample(result, zero_dim), sample))
            zero_dim = zero_dim and len(tensor.size) == 0
    for number in values:
        if isinstance(number, (bool, int, float, complex)):
            result = (
                dtype_name(torch.result_type(_sample(result, zero_dim), number))
                if result
                else dtype_name(torch.result_type(number, number))
            )
        elif isinstance(number, sympy.Basic) and result is not None:
            result = dtype_name(torch.result_type(_sample(result, zero_dim), 1))
        elif isinstance(number, Float) and result is not None:
            result = dtype_name(torch.result_type(_sample(result, zero_dim), 1.0))
    return str(result)


def to_float(dtype: str) -> str:
    """Integers and bool become the default float type."""
    return dtype if is_float(dtype) else dtype_name(torch.get_default_dtype())


def elementwise(
    cx: LoweringContext,
    inputs: Sequence[Any],
    function: Callable[..., Any],
    *,
    dtype: str,
    compute: str | Sequence[str],
    op: str = "",
    ops: int = 1,
    heavy: bool = False,
) -> Tensor:
    """A tensor of `function(ops, *values)` over broadcast inputs (tensors, numbers, size expressions).

    compute: the dtype that every value is converted to first, or one for each; low-precision floats go on to float32. Numbers
    and tensors without axes skip that first step where `takes_wide_number` says so of `op`.
    """
    device = result_device([v for v in inputs if is_tensor(v)]) if any(map(is_tensor, inputs)) else "cpu"
    wide = [is_number_on_cpu(cx, v) and takes_wide_number(op, position, device) for position, v in enumerate(inputs)]
    inputs = [cx.float_tensor(value, device) if isinstance(value, Float) else value for value in inputs]
    tensors: list[AnyTensor] = [v for v in inputs if is_tensor(v)]
    if not tensors:
        raise GraphRejected(cx.current, "elementwise op without a tensor operand")
    size = broadcast_sizes([t.size for t in tensors])
    wanted = [compute] * len(inputs) if isinstance(compute, str) else list(compute)
    for tensor in tensors:
        if tensor.base.body is not None and tensor.cost.heavy and tensor.size != size:
            cx.realize(tensor)  # broadcast: every repetition would compute it again
    if any(torch_dtype(d).is_complex for d in (*wanted, dtype, *(t.dtype for t in tensors))):
        return NotImplemented

    def body(ops_: Any, index: Index) -> Any:
        values = [load_as(ops_, v, index, opmath(d) if w else d) for v, d, w in zip(inputs, wanted, wide, strict=True)]
        values = [ops_.to_dtype(value, opmath(d)) for value, d in zip(values, wanted, strict=True)]
        return ops_.to_dtype(function(ops_, *values), dtype)

    return cx.compute(size, dtype, result_device(tensors), body, tensors, ops=ops, heavy=heavy)


def is_number_on_cpu(cx: LoweringContext, value: Any) -> bool:
    """Also a tensor without axes, where the kernel that eager launches reads it as a number."""
    return not is_tensor(value) or (value.size == () and (value.device == "cpu" or value.buffer in cx.moved_scalars))


def load_as(ops: Any, value: Any, index: Index, dtype: str) -> Any:
    """`value` (tensor, number or size) at an index of the broadcast result, converted."""
    if is_tensor(value):
        return ops.to_dtype(value.load(ops, broadcast_index(value.size, index)), dtype)
    if isinstance(value, sympy.Basic):
        return ops.to_dtype(ops.index_expr(value, "int64"), dtype)
    return ops.constant(value, dtype)


def result_device(tensors: Sequence[AnyTensor]) -> str:
    """Zero-dim CPU tensors mix with tensors of any device."""
    for tensor in tensors:
        if len(tensor.size) > 0:
            return tensor.device
    return next((t.device for t in tensors if t.device != "cpu"), tensors[0].device)


def result_dtype(cx: LoweringContext) -> str:
    """Of the result of the node that is being lowered."""
    return dtype_name(cx.fake.dtype)


def binary(name: str) -> Callable[..., Any]:
    """The rule of an operator that is one loop op of two operands, converted to the result's dtype."""

    def rule(cx: LoweringContext, a: Any, b: Any) -> Any:
        dtype = result_dtype(cx)
        return elementwise(cx, [a, b], lambda ops, x, y: getattr(ops, name)(x, y), dtype=dtype, compute=dtype, heavy=OPS[name].heavy)

    rule.__qualname__ = name
    return rule
