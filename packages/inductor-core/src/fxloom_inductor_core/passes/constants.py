"""What a node of the torch dialect holds, where the graph makes it of nothing but numbers: causal masks, positions, tables.

In: a node. Out: its value, on the CPU, or None. Invariant: only functions that are known to compute the same each time are called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fxloom_inductor_core.passes.torch_calls import may_be_written
from fxloom_interfaces import meta

#: names of torch's functions and of methods
_PURE = frozenset(
    {
        "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "tensor", "eye",
        "triu", "tril", "where", "masked_fill", "add", "sub", "mul", "div", "neg", "abs", "logical_not", "logical_and", "logical_or",
        "bitwise_not", "bitwise_and", "bitwise_or", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "cumsum", "diff", "outer",
        "view", "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "transpose", "permute", "contiguous", "clone", "flatten",
        "to", "float", "half", "bfloat16", "double", "bool", "int", "long", "type_as", "cat", "stack", "repeat", "t",
    }
)  # fmt: skip
_OPERATORS: frozenset[Callable[..., Any]] = frozenset(
    {
        operator.getitem, operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.invert, operator.and_,
        operator.or_, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    }
)  # fmt: skip


def constant_value(node: torch.fx.Node, limit: int = 1 << 22) -> torch.Tensor | None:
    """The value of `node`, if the graph makes it of numbers by pure functions, on the CPU, of at most `limit` elements a step."""
    known: dict[torch.fx.Node, Any] = {}
    todo = [node]
    needed: dict[torch.fx.Node, None] = {}
    while todo:
        one = todo.pop()
        if one in needed:
            continue
        if not _is_pure(one, limit) or len(needed) > 200:
            return None
        needed[one] = None
        todo += one.all_input_nodes
    with torch.no_grad():
        for one in sorted(needed):
            args, kwargs = torch.fx.map_arg((one.args, dict(one.kwargs)), known.__getitem__)
            known[one] = _call(one.target, args, kwargs)
    value = known[node]
    return value if isinstance(value, torch.Tensor) else None


def _is_pure(node: torch.fx.Node, limit: int) -> bool:
    if node.op == "call_function":
        module = getattr(node.target, "__module__", None) or ""
        name = getattr(node.target, "__name__", "")
        pure = node.target in _OPERATORS or (module.split(".")[0] == "torch" and name in _PURE)
    else:
        pure = node.op == "call_method" and node.target in _PURE
    fake = meta.get_fake(node) if pure and meta.has_fake(node) else None
    if not isinstance(fake, torch.Tensor) or fake.device.type != "cpu" or node.kwargs.get("out") is not None:
        return False
    return all(type(extent) is int for extent in fake.shape) and fake.numel() <= limit and not may_be_written(node)


def _call(target: Callable[..., Any] | str, args: Any, kwargs: Any) -> Any:
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)
