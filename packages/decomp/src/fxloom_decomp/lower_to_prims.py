"""`lower_to_prims(gm)`: a graph of the aten dialect as one of the prims dialect.

In: a graph with fakes on its nodes; it is left alone. Out: a graph of prims and listed calls, with the same placeholders and outputs in
the same order, so the graph's signature holds for both. Running it on real tensors runs the prims' references.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fxloom_decomp.apply import rewrite
from fxloom_decomp.libraries import without_libraries
from fxloom_decomp.tables import table
from fxloom_interfaces.dialects import prims_dialect
from fxloom_interfaces.errors import GraphRejected
from fxloom_interfaces.meta import get_fake
from fxloom_interfaces.prim_calls import call_reason


def lower_to_prims(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm` in prims. GraphRejected, with the node of `gm`, for what is neither expressed in prims nor a listed call."""
    with without_libraries():
        lowered = rewrite(gm, table("prims"), _check_left)
    prims_dialect.verify(lowered)
    return lowered


def _check_left(node: torch.fx.Node, target: Any, values: list[Any]) -> None:
    if target not in prims_dialect.NUMBER_TARGETS and call_reason(target, values) is None:
        raise GraphRejected(node, f"{target} of these arguments is neither expressed in prims nor a listed call")


def prims_compiler(gm: torch.fx.GraphModule, signature: Any) -> Callable[[list[Any]], list[Any]]:
    """The reference compiler: `gm` in prims, run by their references. For aot, whose compilers take a graph and its signature.

    Results have the strides that `gm` says, where these are plain numbers and the elements lie without gaps.
    """
    lowered = lower_to_prims(gm)
    output = next(node for node in gm.graph.nodes if node.op == "output")
    strides = [_dense_strides(value) for value in output.args[0]]

    def run(inputs: list[Any]) -> list[Any]:
        with torch.no_grad():
            results = lowered.forward(*inputs)
        return [_laid_out(value, wanted) for value, wanted in zip(results, strides, strict=True)]

    return run


def _dense_strides(output: Any) -> tuple[int, ...] | None:
    fake = get_fake(output) if isinstance(output, torch.fx.Node) else None
    if not isinstance(fake, torch.Tensor) or any(type(number) is not int for number in (*fake.shape, *fake.stride())):
        return None
    expected = 1
    for stride, extent in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if extent != 1 and stride != expected:
            return None
        expected *= extent
    return tuple(fake.stride())


def _laid_out(value: Any, strides: tuple[int, ...] | None) -> Any:
    if strides is None or value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
