"""What the graph makes of numbers alone is made once, when it is compiled: masks of positions, buckets, tables.

In: a graph in the aten dialect. Out: the same graph, edited, and how many values were folded. A folded value is an attribute of the
graph's module, which a `get_attr` node reads; one element becomes `full`. Invariant: values are those that eager's operators give;
what the program gets as its own (or a view of it) stays a call, for a constant is given out at every call of the program.

Folded is what would take a kernel of its own or dear functions, and is small; arithmetic on positions costs less in the kernel that
reads it than a load.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.rewriting import Maker, escapes, is_view
from fxloom_interfaces import meta
from fxloom_interfaces.errors import OPERATOR_ERRORS
from fxloom_ops.schema import draws_numbers

aten = torch.ops.aten

#: elements of any value on the way
_MOST_ELEMENTS = 1 << 16
#: pointwise operators that take long
_DEAR = frozenset({"log", "exp", "pow", "sin", "cos", "tan", "tanh", "erf", "sqrt", "rsqrt", "sigmoid", "log2", "exp2", "log1p", "expm1"})
#: makers, which kernels spell out
_MAKERS = frozenset({"full", "arange", "zeros", "ones", "scalar_tensor", "iota", "full_like", "zeros_like", "ones_like", "eye"})
#: of parts of a tensor by position, which kernels spell out too
_IN_KERNELS = frozenset({"tril", "triu", "clone", "_to_copy", "constant_pad_nd", "flip"})


def fold_constants(graph: torch.fx.Graph, options: InductorOptions) -> int:
    """Edits `graph`; how many values were folded."""
    dear: dict[torch.fx.Node, bool] = {}  # of every value that is made of numbers: whether to make it takes long
    for node in graph.nodes:
        if _is_constant(node, dear):
            dear[node] = _is_dear(node) or any(dear[given] for given in node.all_input_nodes)
    folded = 0
    values: dict[torch.fx.Node, Any] = {}
    for node in list(dear):
        fake = meta.get_fake(node)
        if not isinstance(fake, torch.Tensor) or not dear[node] or all(user in dear for user in node.users) or escapes(node):
            continue
        value = _value(node, values)
        if value is None or (value.dtype, value.shape, value.stride()) != (fake.dtype, fake.shape, fake.stride()):
            continue
        node.replace_all_uses_with(_constant(node, value), lambda user: user not in dear)
        folded += 1
    for node in reversed(list(dear)):  # what was made on the way; it did not raise, so nobody misses it
        if node in values and not node.users:
            graph.erase_node(node)
    return folded


def _is_constant(node: torch.fx.Node, known: dict[torch.fx.Node, bool]) -> bool:
    target = node.target
    if node.op != "call_function" or any(given not in known for given in node.all_input_nodes):
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "") == "getitem"
    if target.namespace not in ("aten", "prims") or draws_numbers(target) or target._schema.is_mutable or not target._schema.returns:
        return False
    if "empty" in target._opname or "rand" in target._opname:
        return False
    fakes = [fake for fake in tree_leaves(meta.get_fake(node)) if isinstance(fake, torch.Tensor)]
    return bool(fakes) and all(
        fake.device.type == "cpu" and all(type(extent) is int for extent in fake.shape) and fake.numel() <= _MOST_ELEMENTS for fake in fakes
    )


def _is_dear(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or is_view(node) or target._opname in _MAKERS | _IN_KERNELS:
        return False
    return target._opname in _DEAR or torch.Tag.pointwise not in target.tags


def _value(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.Tensor | None:
    """What eager's operators make of it; None where they raise, which is left to the program."""
    todo = [node]
    with torch.no_grad():
        while todo:
            one = todo[-1]
            missing = [given for given in one.all_input_nodes if given not in known]
            if one in known or missing:
                todo = todo[:-1] if one in known else [*todo, *missing]
                continue
            args, kwargs = torch.fx.map_arg((one.args, dict(one.kwargs)), known.__getitem__)
            try:
                known[one] = one.target(*args, **kwargs)  # type: ignore[operator]  # a function
            except OPERATOR_ERRORS:
                return None
    value = known[node]
    return value if isinstance(value, torch.Tensor) else None


def _held(value: torch.Tensor) -> torch.Tensor:
    """A copy of its own with the same strides; what `expand` repeats is there once."""
    once = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())]
    return torch.empty_strided(once.shape, once.stride(), dtype=value.dtype).copy_(once).expand(value.shape)


def _constant(node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    """The node that stands for `value`."""
    if value.numel() == 1 and not value.dtype.is_complex:
        return Maker(node)(aten.full.default, list(value.shape), value.item(), dtype=value.dtype, device=value.device, pin_memory=False)
    root = node.graph.owning_module
    assert root is not None
    name = f"folded_{sum(1 for held, _ in root.named_buffers() if held.startswith('folded_'))}"
    root.register_buffer(name, _held(value))
    with node.graph.inserting_before(node):
        made = node.graph.get_attr(name)
    meta.set_fake(made, meta.get_fake(node))
    meta.copy_origin(node, made)
    return made
