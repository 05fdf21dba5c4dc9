"""Numbers out of tensors: read when the graph runs, they are sizes and numbers of what follows.

In: a tensor of one element, a size of a tensor, or a condition to be checked. Out: a symbol, the result of a call of the program;
what takes part in sizes, offsets and kernels is that symbol. A condition becomes a check of the program; one known to be false
rejects the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.numbers import Float
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.errors import GraphRejected
from fxloom_ops.assertions import CHECK

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


@lowering(aten._local_scalar_dense.default)
def local_scalar_dense(cx: LoweringContext, x: Any) -> Any:
    value = cx.fake
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise GraphRejected(cx.current, f"reading a {type(value).__name__} out of a tensor")
    return cx.runtime_scalar(value, "torch.ops.aten._local_scalar_dense.default", (cx.operand(x),))


@lowering(aten.sym_size.int)
def sym_size(cx: LoweringContext, x: Any, dim: int) -> Any:
    return x.size[dim]


@lowering(aten._assert_scalar.default)
def assert_scalar(cx: LoweringContext, truth: Any, message: str) -> Any:
    if isinstance(truth, Float):
        cx.check(truth.text, message)
    elif not truth:
        raise GraphRejected(cx.current, message)
    return None


@lowering(CHECK)
def check(cx: LoweringContext, truth: Any, message: str, error: str, numbers: Any) -> Any:
    if isinstance(truth, Float):
        cx.check(truth.text, message, error, numbers)
    elif not truth:
        raise GraphRejected(cx.current, message)
    return None
