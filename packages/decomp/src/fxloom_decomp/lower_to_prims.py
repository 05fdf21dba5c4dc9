"""`lower_to_prims(gm)`: a graph of the aten dialect as one of the prims dialect.

In: a graph with fakes on its nodes; it is left alone. Out: a graph of prims and listed calls, with the same placeholders and outputs in
the same order, so the graph's signature holds for both. Running it on real tensors runs the prims' references.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxloom_decomp.apply import rewrite
from fxloom_decomp.libraries import without_libraries
from fxloom_decomp.tables import table
from fxloom_interfaces.dialects import prims_dialect
from fxloom_interfaces.errors import GraphRejected
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
