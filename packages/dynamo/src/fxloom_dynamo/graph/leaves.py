"""Leaves of autograd that a program makes or changes while it is recorded, and what the graph knows of them.

In: leaves that the program made in one step (`tensors.parameters`), inputs that it gave other data or froze
(`tensors.leaf_state`), each node as it is recorded. Out: changes of the graph: a made leaf is a detached tensor there until
something that requires grad is computed from it, when `requires_grad_` is put in; a changed input is another node, without
history, from then on.
Invariant: no gradient gets lost: what would have to reach a leaf through data that it was given in the graph is a break.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.breaks import graph_break
from fxloom_interfaces import meta
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder


class Leaves:
    """See the module's docstring. One per recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[int, FakeTensor] = {}
        self._told: set[int] = set()  # those of which the graph knows that they require grad
        self._replaced: dict[int, torch.fx.Node | None] = {}  # by fake: its node before `replace`
        self._rebound: set[torch.fx.Node] = set()  # of tensors that require grad and whose data was set

    def add(self, fake: FakeTensor) -> None:
        """The program made this leaf in one step."""
        self._made[id(fake)] = fake

    def __contains__(self, fake: object) -> bool:
        return id(fake) in self._made

    def is_unrecorded(self, fake: object) -> bool:
        """True for a leaf of the program's making of which the graph does not know whether it requires grad."""
        return fake in self and id(fake) not in self._told

    def replace(self, fake: FakeTensor, by: FakeTensor) -> None:
        """From now on `fake`, an input, is `by` to the graph, without its history."""
        recorder = self._recorder
        alias = recorder.call_method("detach", torch.Tensor.detach, by)
        self._replaced[id(fake)] = recorder.nodes.get(id(fake))
        node = recorder.nodes[id(fake)] = recorder.nodes[id(alias)]
        if by is not fake and fake.requires_grad:
            self._rebound.add(node)

    def restore(self, fake: FakeTensor) -> None:
        """Take back `replace`."""
        node = self._replaced.pop(id(fake))
        assert node is not None  # `detach` of it was recorded
        self._recorder.nodes[id(fake)] = node

    def check(self, node: torch.fx.Node, value: Any) -> None:
        """`node` was recorded, and gave `value`."""
        if not (self._made or self._rebound) or not torch.is_grad_enabled():
            return
        with DisableTorchFunction():
            made = [fake for fake in _tensors_in(value) if fake.requires_grad]
            if made and not self._rebound.isdisjoint(node.all_input_nodes):
                graph_break("torch_call", "uses a tensor that requires grad after its .data was set")
            if any(fake not in self for fake in made):
                self._report(node)

    def _report(self, node: torch.fx.Node) -> None:
        """Something that requires grad was computed from what `node` takes: the graph has to know which of it are leaves."""
        recorder = self._recorder
        for used in node.all_input_nodes:
            leaf = self._made.get(id(meta.get_fake(used)))
            if leaf is None or not leaf.requires_grad or id(leaf) in self._told:
                continue
            self._told.add(id(leaf))
            with recorder.graph.inserting_before(node):
                marked = recorder.graph.call_method("requires_grad_", (used,))
            meta.set_sites(marked, recorder.sites())
            meta.set_fake(marked, leaf)
            recorder.step_of[marked] = recorder.step


def _tensors_in(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors_in(item)
