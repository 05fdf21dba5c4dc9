"""Running folds along one dim (cumsum, cumprod): loops whose inner axis runs in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_inductor_core.ir.loops import Loop, drop_dead
from fxloom_inductor_core.ir.tensors import contiguous_strides, flat_index
from fxloom_inductor_core.lowering.registry import lowering
from fxloom_interfaces.dtypes import dtype_info, dtype_name, opmath
from fxloom_interfaces.expr import symbol
from fxloom_interfaces.loop_ir import Buffer, Layout, Scan

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

aten = torch.ops.aten


def _scan(kind: str) -> Callable[..., Any]:
    def rule(cx: LoweringContext, x: Any, dim: int, *, dtype: Any = None) -> Any:
        result = dtype_name(cx.fake.dtype)
        able = cx.codegens[x.device.split(":")[0]].capabilities
        if kind not in able.scans or dtype_info(result).kind in ("complex", "bool") or not x.size:
            return NotImplemented
        dim = dim % len(x.size)
        length, longest = x.size[dim], able.max_scan_numel
        if longest is not None and not (isinstance(length, int) and length <= longest):
            return NotImplemented
        acc = opmath(result)
        layout = Layout(x.device, result, x.size, contiguous_strides(x.size))
        name = cx.new_buffer(layout)
        axes = [(symbol(f"q{0}") if d == dim else symbol(f"d{d}"), extent) for d, extent in enumerate(x.size)]
        index = tuple(0 if extent == 1 and d != dim else s for d, (s, extent) in enumerate(axes))
        recorder = cx.recorder(dict(axes), x.device)
        running = recorder.accumulate(kind, acc, recorder.to_dtype(x.load(recorder, index), acc))
        recorder.store(name, flat_index(index, layout.stride), recorder.to_dtype(running, result))
        outer = tuple(axis for d, axis in enumerate(axes) if d != dim and axis[1] != 1)
        cx.add_loop(
            Loop(name, outer, (axes[dim],), drop_dead(recorder.instructions), x.device, (str(cx.current.name),), ordered=True)
        )
        if cx.keep_ir:
            cx.out.nodes.append(Scan(Buffer(name, layout), kind, acc, x.load, origins=(str(cx.current.name),)))
        return cx.stored(name)

    rule.__qualname__ = kind
    return rule


lowering(aten.cumsum.default)(_scan("sum"))
lowering(aten.cumprod.default)(_scan("prod"))
