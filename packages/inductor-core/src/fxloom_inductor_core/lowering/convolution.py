"""Convolutions: library calls, in channels-last layout where the library is faster in it (half of a CNN's speed).

In: input, weight and bias as lowered values. Out: a lowered value, stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.layouts import CHANNELS_LAST, as_expr, layout_of
from fxloom_inductor_core.ir.tensors import strides_in_order
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.loop_ir import Layout

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


@lowering(aten.convolution.default)
def convolution(
    cx: LoweringContext,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if not _prefers_channels_last(cx, x, weight, transposed):
        return cx.eager(cx.current, library=True)
    size = tuple(as_expr(s) for s in cx.fake.size())
    layout = Layout(x.device, x.dtype, size, strides_in_order(size, CHANNELS_LAST))
    if x.base.body is not None:
        cx.realize(x, CHANNELS_LAST if x.base is x else None)
    image = cx.operand(x, _is_channels_last, CHANNELS_LAST)
    kernel = cx.operand(weight)
    shift = None if bias is None else cx.operand(bias)
    args: list[Any] = [
        image,
        kernel,
        shift,
        list(stride),
        list(padding),
        list(dilation),
        transposed,
        list(output_padding),
        groups,
    ]
    return cx.library("torch.ops.aten.convolution.default", args, [layout], out=False, op="aten.convolution")[0]


def _prefers_channels_last(cx: LoweringContext, x: Any, weight: Any, transposed: bool) -> bool:
    """Where oneDNN (float32, bfloat16) and cuDNN's tensor cores (half precision) take channels-last and give it back: 2-D."""
    if not cx.options.channels_last or transposed or len(x.size) != 4 or weight.dtype != x.dtype:
        return False
    device = x.device.partition(":")[0]
    if cx.trains and device == "cpu":
        return False  # the backward graph wants the plain layout: changing it costs more than the library gains
    if x.dtype not in {"cpu": ("float32", "bfloat16"), "cuda": ("float16", "bfloat16")}.get(device, ()):
        return False
    fake = layout_of(cx.fake)
    return all(isinstance(s, int) and s > 0 for s in (*x.size, *weight.size, *fake.size))


def _is_channels_last(layout: Layout) -> bool:
    stride = strides_in_order(layout.size, CHANNELS_LAST)
    return all(a == b or e == 1 for a, b, e in zip(layout.stride, stride, layout.size, strict=True))


@lowering(aten.convolution_backward.default)
def convolution_backward(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    return cx.eager(cx.current, library=True)
