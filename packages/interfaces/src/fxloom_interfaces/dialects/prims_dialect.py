"""The prims dialect 1.x: graphs of prims only. `verify` names the node and the rule that it breaks.

Nothing broadcasts, nothing is promoted, nothing aliases: each call's operands are held to its prim's rule, and what the rule
gives has to be what the node's fake value says.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from fxloom_interfaces.errors import IRError, VerificationError
from fxloom_interfaces.meta import get_fake, has_fake
from fxloom_interfaces.prims import PRIMS, Meta, Prim
from fxloom_interfaces.versions import PRIMS_DIALECT

VERSION = PRIMS_DIALECT


def verify(gm: torch.fx.GraphModule) -> None:
    """Raise VerificationError unless `gm` is a graph of the prims dialect."""
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise VerificationError("prims", "known-op", str(node.format_node()), f"op {node.op} is not of the dialect")
        if node.op != "output" and not has_fake(node):
            raise VerificationError("prims", "fake-value", str(node.format_node()), "the node has no fake value")
        if node.op == "call_function" and node.target is not operator.getitem:
            _check_call(node)


def _check_call(node: torch.fx.Node) -> None:
    prim = node.target
    if not isinstance(prim, Prim) or PRIMS.get(prim.name) is not prim:
        raise VerificationError("prims", "known-target", str(node.format_node()), f"{prim!r} is no prim")
    try:
        expected = prim.infer(*[_meta(value) for value in node.args], **{name: _meta(v) for name, v in node.kwargs.items()})
    except IRError as error:
        raise VerificationError("prims", "operands", str(node.format_node()), str(error.__cause__ or error)) from error
    found = _meta_of(get_fake(node))
    if found != expected:
        raise VerificationError("prims", "result", str(node.format_node()), f"expected {expected}, the fake value is {found}")


def _meta(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return _meta_of(get_fake(value))
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], torch.fx.Node):
        return type(value)(_meta(item) for item in value)
    return value


def _meta_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(_meta_of(item) for item in value)
    return value
