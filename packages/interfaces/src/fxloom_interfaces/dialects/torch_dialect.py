"""The torch dialect 1.x: what capture hands to a backend.

In: a graph. Out: nothing, or a VerificationError that names the node and the rule it breaks.

A graph is a straight line: flat placeholders (tensors, later numbers), calls of torch functions, Python operators and the
functions of `regions`, calls of tensor methods by name, and one output of a flat tuple of nodes. Parameters and buffers are
placeholders like other inputs; `get_attr` reaches lifted constants and bodies only: graphs of this dialect that a call
(`torch.utils.checkpoint.checkpoint`, a `Transform`) takes as its first operand, with all tensors that they use behind it. Writes
to tensors stand where the program makes them, so nodes must not be reordered across them. Every node has a fake value, every
placeholder a source.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable

import torch
import torch.fx

from fxloom_interfaces import regions, symbolic_math
from fxloom_interfaces.errors import VerificationError
from fxloom_interfaces.meta import KEYS, get_fake, get_source, has_fake
from fxloom_interfaces.versions import TORCH_DIALECT

VERSION = TORCH_DIALECT

#: builtins that may be called: attributes of tensors that are tensors (`x.T`), and the Python functions of numbers
BUILTIN_TARGETS = frozenset({builtins.getattr, builtins.abs, builtins.round, builtins.divmod, builtins.pow, builtins.max, builtins.min})

_PLAIN = (
    int, float, complex, bool, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool, torch.finfo, torch.iinfo,
)  # fmt: skip

Check = Callable[[torch.fx.Node], str | None]


def verify(gm: torch.fx.GraphModule, *, captured: bool = True) -> None:
    """Raise VerificationError unless `gm` is a graph of the torch dialect.

    captured: demand what only capture adds, fake values and sources; False for graphs written by hand.
    """
    nodes = list(gm.graph.nodes)
    for node in nodes:
        for rule, check in RULES.items():
            message = check(node)
            if message is not None:
                raise VerificationError("torch", rule, str(node.format_node()), message)
        if captured:
            for rule, check in CAPTURED_RULES.items():
                message = check(node)
                if message is not None:
                    raise VerificationError("torch", rule, str(node.format_node()), message)
    if not nodes or nodes[-1].op != "output" or sum(node.op == "output" for node in nodes) != 1:
        raise VerificationError("torch", "one-output", "", "the graph must end in its only output node")
    _placeholders_first(nodes)
    for node in nodes:
        body = getattr(gm, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(body, torch.fx.GraphModule):
            verify(body, captured=False)


def _placeholders_first(nodes: list[torch.fx.Node]) -> None:
    inside = False
    for node in nodes:
        if node.op != "placeholder":
            inside = True
        elif inside:
            raise VerificationError("torch", "placeholders-first", str(node.format_node()), "stands behind a call")


def _known_kind(node: torch.fx.Node) -> str | None:
    if node.op in ("placeholder", "call_function", "call_method", "get_attr", "output"):
        return None
    return f"op {node.op} is not of the dialect"


def _known_target(node: torch.fx.Node) -> str | None:
    target = node.target
    if node.op == "call_method":
        return None if isinstance(target, str) and hasattr(torch.Tensor, target) else f"tensors have no method {target!r}"
    if node.op != "call_function":
        return None
    of_graphs = target is regions.choose or isinstance(target, (regions.GraphFunction, regions.Transform))
    of_regions = target in regions.MODE_CHANGES or target in regions.LABELS or of_graphs
    of_numbers = target in symbolic_math.FUNCTIONS or target is symbolic_math.check
    if of_regions or of_numbers or target in BUILTIN_TARGETS or _is_operator(target) or _is_torch(target):
        return None
    return f"{target!r} is not a function of torch, operator or region"


def _is_operator(target: object) -> bool:
    return isinstance(target, types.BuiltinFunctionType) and target.__module__ in ("_operator", "operator", "math")


def _is_torch(target: object) -> bool:
    module = getattr(target, "__module__", None) or getattr(getattr(target, "__objclass__", None), "__module__", None)
    if module is None and isinstance(target, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        module = target.__objclass__.__module__
    return isinstance(module, str) and (module == "torch" or module.startswith(("torch.", "_VariableFunctions")))


def _plain_arguments(node: torch.fx.Node) -> str | None:
    if node.op == "output":
        values = node.args[0]
        if not isinstance(values, tuple) or not all(isinstance(value, torch.fx.Node) for value in values):
            return "the output must be a flat tuple of nodes"
        return None
    bad: list[str] = []

    def look(value: object) -> None:
        if isinstance(value, (tuple, list)):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            for item in value.values():
                look(item)
        elif isinstance(value, slice):
            look((value.start, value.stop, value.step))
        elif not isinstance(value, (torch.fx.Node, *_PLAIN)):
            bad.append(type(value).__qualname__)

    look(node.args)
    look(node.kwargs)
    return f"arguments of type {', '.join(bad)}" if bad else None


def _no_foreign_meta(node: torch.fx.Node) -> str | None:
    strange = [key for key in node.meta if str(key).startswith("fxloom_") and key not in KEYS]
    return f"meta keys {strange} are not on the closed list" if strange else None


def _has_value(node: torch.fx.Node) -> str | None:
    if not has_fake(node):
        return "has no fake value"
    if node.op == "placeholder" and not isinstance(get_fake(node), (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)):
        return f"a placeholder of type {type(get_fake(node)).__qualname__}"
    return None


def _has_source(node: torch.fx.Node) -> str | None:
    return "has no source" if node.op == "placeholder" and get_source(node) is None else None


RULES: dict[str, Check] = {
    "known-op": _known_kind,
    "known-target": _known_target,
    "plain-arguments": _plain_arguments,
    "closed-meta": _no_foreign_meta,
}
CAPTURED_RULES: dict[str, Check] = {"fake-value": _has_value, "source": _has_source}
