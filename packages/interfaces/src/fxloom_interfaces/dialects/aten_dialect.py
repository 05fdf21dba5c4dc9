"""The aten dialect 1.x: what aot hands to a compiler.

In: a graph, and the `GraphSignature` that it should match. Out: nothing, or a VerificationError that names the node and the rule
it breaks.

A graph is a straight line: flat placeholders, calls of `torch.ops` overloads that neither write to an argument nor take `out=`,
`operator.getitem` on their tuples, arithmetic on numbers by `operator.*` and `symbolic_math.*`, tensors and subgraphs of the module by
`get_attr`, and one output of a flat tuple.
Every node has a fake value. View operators stand for the value they give; aliasing is said by the `GraphSignature` alone.
`aten.as_strided` is applied to one-dimensional contiguous values of offset 0 only, so that it needs no knowledge of layouts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.fx

from fxloom_interfaces import symbolic_math
from fxloom_interfaces.errors import VerificationError
from fxloom_interfaces.meta import get_fake, has_fake
from fxloom_interfaces.signature import GraphSignature, InputKind, OutputKind
from fxloom_interfaces.versions import ATEN_DIALECT

VERSION = ATEN_DIALECT

#: Python functions that may be called beside overloads
PYTHON_TARGETS = frozenset(
    {
        operator.getitem,
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        operator.truediv,
        operator.pow,
        operator.eq,
        operator.ne,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
        operator.and_,
        operator.or_,
        operator.not_,
        torch.sym_max,
        torch.sym_min,
        torch.sym_sum,
        torch.sym_not,
        torch.sym_float,
        torch.sym_int,
    }
    | symbolic_math.FUNCTIONS
)

Check = Callable[[torch.fx.Node], str | None]


def verify(gm: torch.fx.GraphModule, signature: GraphSignature | None = None) -> None:
    """Raise VerificationError unless `gm` is a graph of the aten dialect that matches `signature`."""
    nodes = list(gm.graph.nodes)
    for node in nodes:
        for rule, check in RULES.items():
            message = check(node)
            if message is not None:
                raise VerificationError("aten", rule, str(node.format_node()), message)
    if not nodes or nodes[-1].op != "output" or sum(node.op == "output" for node in nodes) != 1:
        raise VerificationError("aten", "one-output", "", "the graph must end in its only output node")
    if signature is not None:
        _match_signature(nodes, signature)


def _known_kind(node: torch.fx.Node) -> str | None:
    if node.op in ("placeholder", "call_function", "output"):
        return None
    if node.op == "get_attr":
        held = getattr(node.graph.owning_module, str(node.target), None)
        if isinstance(held, (torch.fx.GraphModule, torch.Tensor)):
            return None
    return f"op {node.op} is not of the dialect"


def _known_target(node: torch.fx.Node) -> str | None:
    if node.op != "call_function" or node.target in PYTHON_TARGETS:
        return None
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return None
    return f"target {node.target!r} is neither an overload nor one of the Python functions allowed"


def _functional(node: torch.fx.Node) -> str | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    schema = node.target._schema
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            return f"{schema.name} writes to its argument {argument.name!r}"
    return None


def _flat_output(node: torch.fx.Node) -> str | None:
    if node.op != "output":
        return None
    value = node.args[0]
    if not isinstance(value, tuple):
        return f"the output is a {type(value).__name__}, not a tuple"
    for item in value:
        if not (item is None or isinstance(item, (torch.fx.Node, int, float, bool))):
            return f"the output holds a {type(item).__name__}"
    return None


def _has_fake_value(node: torch.fx.Node) -> str | None:
    if node.op in ("output", "get_attr") or has_fake(node):
        return None
    return "the node has no fake value"


def _as_strided_operand(node: torch.fx.Node) -> str | None:
    if node.target is not torch.ops.aten.as_strided.default:
        return None
    operand = node.args[0]
    if not isinstance(operand, torch.fx.Node) or not has_fake(operand):
        return None
    value = get_fake(operand)
    if value.dim() != 1 or (value.numel() > 1 and value.stride(0) != 1) or value.storage_offset() != 0:
        return f"as_strided of a value of size {tuple(value.shape)}, stride {value.stride()}, offset {value.storage_offset()}"
    return None


#: rule name -> the message of a node that breaks it, or None
RULES: dict[str, Check] = {
    "known-op": _known_kind,
    "known-target": _known_target,
    "functional": _functional,
    "flat-output": _flat_output,
    "fake-value": _has_fake_value,
    "as-strided-operand": _as_strided_operand,
}


def _match_signature(nodes: list[torch.fx.Node], signature: GraphSignature) -> None:
    placeholders = [node for node in nodes if node.op == "placeholder"]
    outputs = nodes[-1].args[0]
    assert isinstance(outputs, tuple)
    if len(placeholders) != len(signature.inputs):
        message = f"{len(placeholders)} placeholders, the signature has {len(signature.inputs)} inputs"
        raise VerificationError("aten", "inputs-match-signature", "", message)
    if len(outputs) != len(signature.outputs):
        message = f"{len(outputs)} outputs, the signature has {len(signature.outputs)}"
        raise VerificationError("aten", "outputs-match-signature", "", message)
    for node, spec in zip(placeholders, signature.inputs, strict=True):
        if node.name != spec.name:
            message = f"placeholder {node.name!r} is {spec.name!r} in the signature"
            raise VerificationError("aten", "inputs-match-signature", str(node.format_node()), message)
    for position, (value, output) in enumerate(zip(outputs, signature.outputs, strict=True)):
        if output.kind is not OutputKind.NEW_VALUE:
            continue
        target = placeholders[output.input]
        if not isinstance(value, torch.fx.Node):
            message = f"output {position} is the new value of {target.name}, but no node"
            raise VerificationError("aten", "new-value-fits", str(target.format_node()), message)
        new, old = get_fake(value), get_fake(target)
        if tuple(new.shape) != tuple(old.shape) or new.dtype != old.dtype:
            message = (
                f"output {position} is the new value of {target.name}: expected {old.dtype} {tuple(old.shape)}, "
                f"got {new.dtype} {tuple(new.shape)}"
            )
            raise VerificationError("aten", "new-value-fits", str(value.format_node()), message)
    for node, spec in zip(placeholders, signature.inputs, strict=True):
        if spec.kind is InputKind.CONSTANT and spec.mutated:
            raise VerificationError("aten", "constants-stay", str(node.format_node()), "a constant is said to be mutated")
