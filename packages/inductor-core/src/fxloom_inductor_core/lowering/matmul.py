"""Matrix products: library calls into planned buffers. A bias is added by the loops that follow, where there are any.

In: the factors and the bias as lowered values. Out: a lowered value, stored. Where the code generator has a GEMM template and options
let it compete, the call is the template's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.tensors import Tensor, contiguous_strides
from fxloom_inductor_core.lowering.promote import elementwise
from fxloom_inductor_core.lowering.registry import RULES, lowering
from fxloom_interfaces.dtypes import is_float
from fxloom_interfaces.loop_ir import Layout

if TYPE_CHECKING:
    import torch.fx

    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


def _gemm_ready(layout: Layout) -> bool:
    """True when a BLAS takes the last two dims as they lie."""
    rows, columns = layout.stride[-2], layout.stride[-1]
    return (columns == 1 and (rows != 0 or layout.size[-2] == 1)) or (rows == 1 and (columns != 0 or layout.size[-1] == 1))


def _product(cx: LoweringContext, target: str, op: str, a: Any, b: Any) -> Tensor:
    size = (*a.size[:-1], b.size[-1])
    layout = Layout(a.device, a.dtype, size, contiguous_strides(size))
    operands = [cx.operand(x, _gemm_ready) for x in (a, b)]
    return cx.library(target, operands, [layout], out=True, op=op)[0]


def _template(cx: LoweringContext, a: Any, b: Any, bias: Any = None) -> Tensor | None:
    """a @ b [+ bias] by the plugin's own kernel, where it has one and options let it compete; None elsewhere."""
    if a.dtype not in ("float16", "bfloat16") or b.dtype != a.dtype or len(a.size) != 2:
        return None
    if bias is not None and (bias.dtype != a.dtype or len(bias.size) != 1):
        return None
    name = f"mm_{'bias_' if bias is not None else ''}{a.dtype}"
    op = cx.template("mm", name, {"dtype": a.dtype, "bias": bias is not None}, a.device)
    if op is None:
        return None
    size = (a.size[0], b.size[1])
    layout = Layout(a.device, a.dtype, size, contiguous_strides(size))
    operands = [cx.operand(a, _gemm_ready), cx.operand(b, _gemm_ready)] + ([] if bias is None else [cx.operand(bias)])
    return cx.library(name, operands, [layout], out=True, op=op)[0]


@lowering(aten.mm.default)
def mm(cx: LoweringContext, a: Any, b: Any) -> Any:
    made = _template(cx, a, b)
    if made is not None:
        return made
    return _product(cx, "torch.mm", "aten.mm", a, b)


@lowering(aten.bmm.default)
def bmm(cx: LoweringContext, a: Any, b: Any) -> Any:
    return _product(cx, "torch.bmm", "aten.bmm", a, b)


@lowering(aten.addmm.default)
def addmm(cx: LoweringContext, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    made = _template(cx, a, b, bias) if beta == 1 and alpha == 1 else None
    if made is not None:
        return made
    if beta == 1 and alpha == 1 and is_float(a.dtype) and bias.dtype == a.dtype and _followed_by_loops(cx):
        product = mm(cx, a, b)
        return elementwise(cx, [product, bias], lambda ops, x, y: ops.add(x, y), dtype=a.dtype, compute=a.dtype)
    size = (a.size[0], b.size[1])
    layout = Layout(a.device, a.dtype, size, contiguous_strides(size))
    operands = [cx.operand(bias), cx.operand(a, _gemm_ready), cx.operand(b, _gemm_ready)]
    kwargs = {} if beta == 1 and alpha == 1 else {"beta": beta, "alpha": alpha}
    return cx.library("torch.addmm", operands, [layout], kwargs, out=True, op="aten.addmm")[0]


@lowering(aten.baddbmm.default)
def baddbmm(cx: LoweringContext, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    size = (a.size[0], a.size[1], b.size[2])
    layout = Layout(a.device, a.dtype, size, contiguous_strides(size))
    operands = [cx.operand(bias), cx.operand(a, _gemm_ready), cx.operand(b, _gemm_ready)]
    kwargs = {} if beta == 1 and alpha == 1 else {"beta": beta, "alpha": alpha}
    return cx.library("torch.baddbmm", operands, [layout], kwargs, out=True, op="aten.baddbmm")[0]


def _followed_by_loops(cx: LoweringContext) -> bool:
    """True when everything that reads the current node's value, seen through views, is a generated loop."""
    pending = list(cx.current.users)
    if not pending:
        return False
    while pending:
        user = pending.pop()
        if user.op == "output":
            return False
        if user.target in _LIBRARY or user.target not in RULES:
            return False
        if user.target in _VIEWS:
            pending.extend(user.users)
    return True


_LIBRARY = frozenset(
    {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default}
    | {
        getattr(aten, name).default
        for name in (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        )
        if hasattr(aten, name)
    }
)
_VIEWS = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.unsqueeze.default,
        aten.expand.default,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unbind.int,
        aten.alias.default,
        aten.detach.default,
    }
)
