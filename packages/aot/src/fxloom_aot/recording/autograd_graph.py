"""What the autograd history of a program's outputs says: what gradients of each flow to, which nodes free what they saved, and
which refuse.

In: fakes with their history after the program ran. Out: facts by output, as bit masks; output n is bit n. Invariant: the history
is only read; no node runs and nothing is freed.

A compiled graph is one node of autograd, or a few, where eager has one for each operator. Our few nodes must reproduce the side
behaviour of eager's nodes: eager frees what a node saved when a backward pass has gone through it, and another pass
through it is an error, one beside it is not; eager refuses a pass through a node that saved a tensor which was written since.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch.autograd.function import BackwardCFunction

from fxloom_shapes import FakeTensor

#: a node of autograd, and which of its results
Edge = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class Reached:
    """What gradients of some outputs flow through, up to `stops`.

    nodes: each before those that it hands gradients to, with the outputs whose gradients come to it. stops: by edge, the outputs
    whose gradients end there.
    """

    nodes: dict[Any, int]
    stops: dict[Edge, int]

    def shared(self, count: int) -> list[int]:
        """By output: those that can't be differentiated after it, as a node that saved something is on the way of both."""
        groups: set[int] = set()
        for node, mask in self.nodes.items():
            if mask not in groups and saves(node):
                groups.add(mask)
        return [_union(mask for mask in groups if mask >> number & 1) for number in range(count)]

    def leaves(self, leaves: Sequence[Any]) -> list[int]:
        """By leaf: the outputs that flow to it."""
        found = {id(node.variable): mask for node, mask in self.nodes.items() if hasattr(node, "variable")}
        return [found.get(id(leaf), 0) for leaf in leaves]


def reached_from(
    grad_fns: Sequence[Any], stops: Sequence[Edge] = (), is_beyond: Callable[[Any], bool] = lambda node: False
) -> Reached:
    """From the nodes that made some outputs. Gradients don't flow on from `stops`, but for an output that is one itself.

    Nor do they to nodes for which `is_beyond` is true: the edges to these are stops as well.
    """
    stopped = dict.fromkeys(stops, 0)
    nodes = dict.fromkeys(_topological(grad_fns, stopped, is_beyond), 0)
    for number, node in enumerate(grad_fns):
        nodes[node] |= 1 << number
    for node, mask in nodes.items():
        for edge in node.next_functions:
            if edge in stopped:
                stopped[edge] |= mask
            elif edge[0] in nodes:
                nodes[edge[0]] |= mask
            elif edge[0] is not None:
                stopped[edge] = mask
    return Reached(nodes, stopped)


def flows_to(node: Any, tensor: Any) -> bool:
    """True when gradients that come to a node flow on to `tensor`."""
    target = tensor.grad_fn
    return any(below is target if target is not None else getattr(below, "variable", None) is tensor for below in _topological([node]))


def saves(node: Any) -> bool:
    """True for a node that frees something when a backward pass has gone through it."""
    names = _raw_names(type(node))  # type: ignore[arg-type]  # classes are hashable
    if "_raw_saved_tensors" in names:  # a function written in Python
        return bool(node._raw_saved_tensors)
    return bool(names)


def saved_by(node: Any) -> Iterator[Any]:
    """The tensors that a node saved and that were not written since."""
    for name in _raw_names(type(node)):  # type: ignore[arg-type]  # classes are hashable
        try:
            saved = getattr(node, "saved_tensors" if name == "_raw_saved_tensors" and is_python(node) else name.replace("_raw", "", 1))
        except RuntimeError:
            continue
        yield from saved if isinstance(saved, (tuple, list)) else [saved]


#: nodes whose derivative checks the gradients of vectors of complex numbers: eager raises where the result depends on their phase.
#: Which of their results these are.
_PHASE_CHECKED = {"LinalgEigBackward": (1,), "LinalgEighBackward": (1,), "LinalgSvdBackward": (0, 2)}


def checks_phase(reached: Reached, outputs: Sequence[Edge]) -> Any:
    """A node on the way that looks at values of its gradients, which a graph can't; None where there is none."""
    for node, number in [*outputs, *[edge for above in reached.nodes for edge in above.next_functions if edge[0] is not None]]:
        checked = _PHASE_CHECKED.get(node.name().rstrip("0123456789"), ())
        if number in checked and any(saved is not None and saved.is_complex() for saved in saved_by(node)):
            return node
    return None


def is_python(node: Any) -> bool:
    """True for a function written in Python, which gets zeros where it is given no gradient."""
    return isinstance(node, BackwardCFunction)


def _union(masks: Iterator[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def _topological(
    roots: Sequence[Any], stops: Container[Edge] = (), is_beyond: Callable[[Any], bool] = lambda node: False
) -> list[Any]:
    """All nodes that are not only behind `stops` and what `is_beyond`, each before those that it hands gradients to."""
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
                stack.extend(
                    (edge[0], False)
                    for edge in node.next_functions
                    if edge[0] is not None and edge not in stops and not is_beyond(edge[0])
                )
    return list(reversed(done))


@cache
def _raw_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved"))


def has_history(fake: FakeTensor) -> bool:
    """True when autograd recorded what made the tensor."""
    try:
        return fake.grad_fn is not None
    except RuntimeError:  # one of several views, written through another: whoever uses it gets to see this
        return True


def history_is_error(fake: FakeTensor) -> bool:
    """True for a view that was written in a way that autograd refuses when its history is next looked at."""
    try:
        fake.grad_fn  # noqa: B018  # working it out is what raises
    except RuntimeError:
        return True
    return False
