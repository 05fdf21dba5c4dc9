"""Numbers out of tensors: read when the graph runs, they are sizes and numbers of what follows.

A read is a call of the program whose result is a symbol; what takes part in sizes, offsets and kernels is that symbol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.graph import as_expr
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_inductor_core.numbers import Float
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.expr import print_expr
from fxloom_shapes.size_nodes import symbols_made

if TYPE_CHECKING:
    from fxloom_inductor_core.graph import Lowering

aten = torch.ops.aten


@lowering(aten._local_scalar_dense.default)
def local_scalar_dense(cx: Lowering, x: Any) -> Any:
    value = cx.fake
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise GraphRejected(cx.current, f"reading a {type(value).__name__} out of a tensor")
    names = list(symbols_made(getattr(value.node, "env", None), value)) or [str(value.node.expr)]
    cx.number("torch.ops.aten._local_scalar_dense.default", (cx.operand(x),), names[0])
    if isinstance(value, (torch.SymFloat, torch.SymBool)):  # truth values are 0 and 1 in arithmetic
        return Float(names[0])
    known = as_expr(value)
    if str(known) != names[0]:  # what the program asserted of the number is in what later code takes for it
        cx.check(f"{names[0]} == {print_expr(known)}", f"a number read out of a tensor is not {print_expr(known)}, as was asserted")
    return known


@lowering(aten.sym_size.int)
def sym_size(cx: Lowering, x: Any, dim: int) -> Any:
    return x.size[dim]


@lowering(aten._assert_scalar.default)
def assert_scalar(cx: Lowering, truth: Any, message: str) -> Any:
    if isinstance(truth, Float):
        cx.check(truth.text, message)
    elif not truth:
        raise GraphRejected(cx.current, message)
    return None
