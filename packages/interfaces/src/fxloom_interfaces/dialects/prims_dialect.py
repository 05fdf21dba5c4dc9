"""The prims dialect 1.x: graphs of prims, and of the calls that `prim_calls` lists. `verify` names the node and the rule that it breaks.

Nothing broadcasts, nothing is promoted, nothing aliases: each prim's operands are held to its rule, and what the rule gives has to be
what the node's fake value says. Sizes may be symbolic: numbers are placeholders, `aten.sym_size.int` of a value, or arithmetic as
in the aten dialect. Values have no strides: those of the fakes mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxloom_interfaces.dialects.aten_dialect import PYTHON_TARGETS
from fxloom_interfaces.errors import IRError, VerificationError
from fxloom_interfaces.meta import get_fake, has_fake
from fxloom_interfaces.prim_calls import call_reason
from fxloom_interfaces.prims import PRIMS, Meta, Prim
from fxloom_interfaces.versions import PRIMS_DIALECT

VERSION = PRIMS_DIALECT

#: what may be called beside prims and listed calls: arithmetic on numbers, items of several results
NUMBER_TARGETS = PYTHON_TARGETS | {torch.ops.aten.sym_size.int}


def verify(gm: torch.fx.GraphModule) -> None:
    """Raise VerificationError unless `gm` is a graph of the prims dialect."""
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            part = getattr(gm, str(node.target), None)
            if not isinstance(part, torch.fx.GraphModule):
                raise VerificationError("prims", "known-op", str(node.format_node()), "get_attr of what is no graph")
            verify(part)
            continue
        if node.op not in ("placeholder", "call_function", "output"):
            raise VerificationError("prims", "known-op", str(node.format_node()), f"op {node.op} is not of the dialect")
        if node.op != "output" and not has_fake(node):
            raise VerificationError("prims", "fake-value", str(node.format_node()), "the node has no fake value")
        if node.op == "call_function" and node.target not in NUMBER_TARGETS:
            _check_call(node)


def _check_call(node: torch.fx.Node) -> None:
    prim = node.target
    if not isinstance(prim, Prim):
        values = [get_fake(node), *(get_fake(value) for value in node.all_input_nodes if value.op != "get_attr")]
        if call_reason(prim, [item for value in values for item in (value if isinstance(value, (tuple, list)) else (value,))]) is None:
            raise VerificationError("prims", "known-target", str(node.format_node()), f"{prim} is neither a prim nor a listed call")
        return
    if PRIMS.get(prim.name) is not prim:
        raise VerificationError("prims", "known-target", str(node.format_node()), f"{prim!r} is no prim")
    try:
        expected = prim.infer(*[_meta(value) for value in node.args], **{name: _meta(v) for name, v in node.kwargs.items()})
    except IRError as error:
        raise VerificationError("prims", "operands", str(node.format_node()), str(error.__cause__ or error)) from error
    found = meta_of(get_fake(node))
    if found != expected:
        raise VerificationError("prims", "result", str(node.format_node()), f"expected {expected}, the fake value is {found}")


def _meta(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return meta_of(get_fake(value))
    if isinstance(value, (tuple, list)):
        return type(value)([_meta(item) for item in value])
    return value


def meta_of(value: Any) -> Any:
    """Values as a prim's rule takes them: `Meta` in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(meta_of(item) for item in value)
    return value
