"""How passes make nodes, and which node may stand for which.

In: a graph in the aten dialect (or the torch dialect, for `Maker` alone). Out: new nodes with fakes and places; answers about what
escapes. Invariant: results that the program returns as tensors of their own keep memory of their own: a node that reaches an output
through views is only replaced by one that is fresh, a call's own result that reaches no output.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from fxloom_interfaces import meta
from fxloom_shapes import FakeTensor, propagate
from fxloom_shapes.fake.sizes import statically_same_size


class Maker:
    """Makes calls in front of `root`, for which they stand. made_for: gets the root of each new node."""

    def __init__(self, root: torch.fx.Node, made_for: dict[torch.fx.Node, torch.fx.Node] | None = None) -> None:
        self._root, self._made_for = root, made_for

    def __call__(self, target: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A new call, of a method where `target` is a name; its fake is what the call makes of the fakes of its arguments."""
        graph = self._root.graph
        with graph.inserting_before(self._root):
            node = graph.call_method(target, args, kwargs) if isinstance(target, str) else graph.call_function(target, args, kwargs)
        meta.set_fake(node, fake_result(target, args, kwargs))
        meta.copy_origin(self._root, node)
        if self._made_for is not None:
            self._made_for[node] = self._made_for.get(self._root, self._root)
        return node


def fake_result(target: Callable[..., Any] | str, args: Any, kwargs: Any) -> Any:
    """What a call gives, as fakes; as tensors, where nodes have those."""
    args, kwargs = _plain(torch.fx.map_arg((args, kwargs), meta.get_fake))
    with torch.no_grad():
        if isinstance(target, str):
            return getattr(args[0], target)(*args[1:], **kwargs)
        if isinstance(target, torch._ops.OpOverload) and any(type(leaf) is FakeTensor for leaf in tree_leaves((args, kwargs))):
            return propagate(target, args, dict(kwargs))
        return target(*args, **kwargs)


def _plain(value: Any) -> Any:
    """Without the lists and dictionaries of FX, whose keys in tables are their items, which may be sizes that are not known."""
    if isinstance(value, (list, tuple)):
        made = [_plain(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def is_view(node: torch.fx.Node) -> bool:
    """True for calls whose result is memory of an argument; an item of what a call returns counts as such."""
    target = node.target
    if target is operator.getitem:
        return True
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and any(result.alias_info is not None and not result.alias_info.is_write for result in target._schema.returns)
    )


def base_of(node: torch.fx.Node) -> torch.fx.Node:
    """What `node` is a view of, through all views."""
    while is_view(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def escapes(node: torch.fx.Node) -> bool:
    """True where the program gets the node's memory: it, or a view of it, is an output."""
    return any(user.op == "output" or (is_view(user) and escapes(user)) for user in node.users)


def may_stand_for(value: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether uses of `node` may become uses of `value`, which has its elements."""
    if not same_metadata(value, node):
        return False
    if not escapes(node):
        return True
    base = base_of(value)
    return base.op == "call_function" and isinstance(base.target, torch._ops.OpOverload) and not escapes(base)


def same_metadata(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Equal dtype, device, sizes and strides, for every value of the symbols in them."""
    x, y = meta.get_fake(a), meta.get_fake(b)
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    return (x.dtype, x.device) == (y.dtype, y.device) and same_sizes(x.shape, y.shape) and same_sizes(x.stride(), y.stride())


def same_sizes(a: Any, b: Any) -> bool:
    """Equal extents, whatever the symbols in them are."""
    return statically_same_size(tuple(a), tuple(b))
