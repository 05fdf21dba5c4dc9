"""Layouts and sizes of fake tensors as expressions of the loop IR.

In: fake tensors, whose sizes and strides are ints or symbolic numbers. Out: `Expr`s, `Layout`s, orders of dims.
Invariant: what is known of a symbolic size stays in its expression; a stride is never an expression that is 0 for an empty tensor.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
import torch.fx

from fxloom_inductor_core.ir.tensors import AnyTensor, Index
from fxloom_interfaces.dtypes import dtype_name
from fxloom_interfaces.expr import Expr, Max, normalize
from fxloom_interfaces.loop_ir import Layout

CHANNELS_LAST = (0, 2, 3, 1)


def stride_expr(value: Any) -> Expr:
    """A stride of a fake tensor as an expression.

    Of a size that may be 0 strides take the larger one of it and 1; where it is 0 nothing is read, so it stands for itself.
    """
    expr = as_expr(value)
    if isinstance(expr, int) or not expr.has(Max):
        return expr
    return normalize(expr.replace(lambda e: isinstance(e, Max) and 1 in e.args, lambda e: e.args[1] if e.args[0] == 1 else e.args[0]))


def as_expr(value: Any) -> Expr:
    """A size of a fake tensor as an expression."""
    if isinstance(value, int):
        return value
    node = getattr(value, "node", None)
    if node is None:
        return normalize(sympy.sympify(value))
    return normalize(sympy.sympify(node.expr))


def is_channels_last(tensor: AnyTensor) -> bool:
    """True when the tensor prefers or has a channels-last layout that differs from a contiguous one."""
    return len(tensor.size) == 4 and tensor.order == CHANNELS_LAST


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a (fake) tensor, from its first element."""
    return Layout(
        str(tensor.device),
        dtype_name(tensor.dtype),
        tuple(as_expr(s) for s in tensor.size()),
        tuple(stride_expr(s) for s in tensor.stride()),
    )


def fake_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Dims from outermost to innermost as a dense tensor of these strides has them; None when contiguous or not dense."""
    strides = [stride_expr(s) for s in fake.stride()]
    size = [as_expr(s) for s in fake.size()]
    if not all(isinstance(s, int) for s in [*strides, *size]):
        return None
    order = tuple(sorted(range(len(strides)), key=lambda d: (-strides[d], -size[d], d)))
    step = 1
    for dim in reversed(order):
        if size[dim] != 1:
            if strides[dim] != step:
                return None
            step *= size[dim]
    return None if order == tuple(range(len(order))) else order


def order_or_plain(fake: torch.Tensor) -> tuple[int, ...]:
    """The order of a fake's dims, which is the plain one where the fake is contiguous or not dense."""
    return fake_order(fake) or tuple(range(fake.dim()))


def same_strides(layout: Layout, strides: Index) -> bool:
    """True when strides agree wherever they matter."""
    return all(a == b or extent in (0, 1) for a, b, extent in zip(layout.stride, strides, layout.size, strict=True))
