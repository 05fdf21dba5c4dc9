"""Which outputs of a program can be differentiated one after the other: those that share no node which frees what it saved.

In: the outputs, fakes with their autograd history. Out: for each output a bit mask of the outputs that it shares with; and
one of the leaves that it depends on.
Eager frees what a node saved when a backward pass has gone through it; another pass through it is an error, one beside it
is none. A compiled graph is a single node, so its wrapper has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any


def shared_with(grad_fns: Sequence[Any]) -> list[int]:
    """Bit masks, by output; an output shares with itself where anything is saved for it."""
    order = _topological(grad_fns)
    reached = dict.fromkeys(order, 0)
    for number, node in enumerate(grad_fns):
        reached[node] |= 1 << number
    groups: set[int] = set()
    for node in order:
        mask = reached[node]
        for below, _ in node.next_functions:
            if below is not None:
                reached[below] |= mask
        if mask not in groups and _saves(node):
            groups.add(mask)
    result = [0] * len(grad_fns)
    for mask in groups:
        for number in range(len(grad_fns)):
            if mask >> number & 1:
                result[number] |= mask
    return result


def leaves_reached(grad_fns: Sequence[Any], leaves: Sequence[Any]) -> list[int]:
    """Bit masks, by output: the leaves that its gradient flows to."""
    bits = {id(leaf): 1 << number for number, leaf in enumerate(leaves)}
    reached: dict[Any, int] = {}
    for node in reversed(_topological(grad_fns)):
        mask = bits.get(id(node.variable), 0) if hasattr(node, "variable") else 0
        for below, _ in node.next_functions:
            if below is not None:
                mask |= reached[below]
        reached[node] = mask
    return [reached[node] for node in grad_fns]


def reaches(node: Any, tensor: Any) -> bool:
    """True when gradients that come to an autograd node flow on to `tensor`."""
    target = tensor.grad_fn
    return any(
        below is target if target is not None else getattr(below, "variable", None) is tensor for below in [node, *_topological([node])]
    )


def _topological(roots: Sequence[Any]) -> list[Any]:
    """All nodes, each before those that it hands gradients to."""
    done: dict[Any, None] = {}
    open_: set[Any] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                done[node] = None
            elif node not in open_:
                open_.add(node)
                stack.append((node, True))
                stack.extend((below, False) for below, _ in node.next_functions if below is not None and below not in open_)
    return list(reversed(done))


def _saves(node: Any) -> bool:
    names = _raw_names(type(node))  # type: ignore[arg-type]  # classes are hashable
    if "_raw_saved_tensors" in names:  # a function written in Python
        return bool(node._raw_saved_tensors)
    return bool(names)


@cache
def _raw_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved"))
