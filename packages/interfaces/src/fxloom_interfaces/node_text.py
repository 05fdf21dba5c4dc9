"""What a graph computes at a node, as an expression in the program's own words, for messages to people.

In: a node of a captured or traced graph. Out: text such as `nonzero(x > 0).size(0)` that names arguments as the program does.
It need not be the program's spelling, and long operands are left out.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch

from fxloom_interfaces import meta

_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_GLOBAL = re.compile(r"\bG\['(\w+)'\]")
_DEPTH = 3
_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//", operator.mod: "%",
    operator.gt: ">", operator.ge: ">=", operator.lt: "<", operator.le: "<=", operator.eq: "==", operator.ne: "!=",
    operator.and_: "&", operator.or_: "|", operator.matmul: "@",
}  # fmt: skip


def spelled(source_name: str) -> str:
    """The name of a source as the program spells it: `L['x'].size(0)` is `x.size(0)`."""
    return _GLOBAL.sub(r"\1", _LOCAL.sub(r"\1", source_name))


def node_text(node: torch.fx.Node, depth: int = _DEPTH) -> str:
    """The expression that `node` stands for."""
    source = meta.get_source(node)
    if source is not None:
        return spelled(source.name)
    if node.op not in ("call_function", "call_method") or depth == 0:
        return "..." if depth == 0 else str(node.name if node.op == "placeholder" else node.target)
    args = [_text(arg, depth - 1) for arg in node.args]
    if node.op == "call_method":
        return f"{args[0]}.{node.target}({', '.join(args[1:])})"
    target: Any = node.target
    if target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if target in _INFIX and len(args) == 2:
        return f"({args[0]} {_INFIX[target]} {args[1]})"
    name = str(getattr(target, "__name__", target)).partition(".")[0].lstrip("_")
    return f"{name}({', '.join(args)})"


def _text(value: Any, depth: int) -> str:
    if isinstance(value, torch.fx.Node):
        return node_text(value, depth)
    if isinstance(value, slice):
        parts = ["" if part is None else _text(part, depth) for part in (value.start, value.stop, value.step)]
        return ":".join(parts if value.step is not None else parts[:2])
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item, depth) for item in value)}]"
    return "..." if value is Ellipsis else str(value)
