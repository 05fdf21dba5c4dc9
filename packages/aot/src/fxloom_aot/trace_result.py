"""What tracing gives: the forward graph, and the backward graphs of the nodes that autograd gets for it.

Most programs get one node. A result that another differentiable result is computed from is a `Boundary`: gradients that come to it from
the other, and hooks and `torch.autograd.grad` that look at it, have to meet at the very tensor that the caller holds. So the
results are differentiated in stages: a stage's node takes what it is computed from, the caller's inputs and boundaries of earlier
stages, as its inputs, and gives gradients of these.

Where a stage computes with a value inside of an earlier stage, that is an inner boundary: an output without memory of the earlier
stage's node, which nobody but the later node sees. So each derivative is computed once, from all that comes to it, as in eager:

    mean, log_variance = encode(x)                  # stage 1
    made = decode(mean)                             # stage 1; made is returned
    loss = distance(made, x) + divergence(mean)     # stage 2; boundaries: made, and mean, an inner one

In: what `tracing` found. Out: records that `runtime` reads and nobody changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
import torch.fx

from fxloom_aot.functional.functional_log import Decompositions, FunctionalLog
from fxloom_aot.storages import StorageCheck
from fxloom_interfaces.signature import GraphSignature
from fxloom_shapes import Descriptor, FakeTensor


@dataclass(frozen=True, slots=True)
class InputMetadata:
    """What a flat input of the program was like. desc: None for a number. same: the first input that was the very same tensor.

    storage: inputs that share memory have the same number.
    """

    desc: Descriptor | None
    number: Any = None
    storage: int = -1
    same: int = -1
    is_parameter: bool = False
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """What was traced, and its functional log. inputs: what its flat inputs were like. values: the flat outputs in the log.

    autocast: by device type, whether it was on around the graph, and its dtype. starts_with_grad: grad mode there.
    rewritten: another graph that computes the same was traced: the log is that of the other.
    """

    gm: torch.fx.GraphModule
    inputs: tuple[InputMetadata, ...]
    decompositions: Decompositions
    log: FunctionalLog
    values: Sequence[Any]
    autocast: Mapping[str, tuple[bool, torch.dtype]]
    starts_with_grad: bool
    rewritten: bool = False


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """One aten-dialect graph and what its inputs and outputs are."""

    gm: torch.fx.GraphModule
    signature: GraphSignature
    #: torch-dialect node behind each node, by name
    causes: dict[str, torch.fx.Node] = field(default_factory=dict)


#: autocast, by device type, where it is on
Autocast = tuple[tuple[str, torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class IncomingGradients:
    """The gradients that came to a stage, where the graph for all of them, as they were expected, does not do.

    gradients: numbers of the stage's outputs, with strides where these are not as expected. autocast: of the backward pass.
    """

    gradients: tuple[tuple[int, tuple[int, ...] | None], ...]
    autocast: Autocast = ()


@dataclass(frozen=True, slots=True)
class ValueInside:
    """A value inside of the program that two stages compute with: the earlier one makes it. number: among all of these.

    maker, offset, name, output: where autograd has it: the torch-dialect node that made it, how many nodes of autograd that had
    recorded before, name and output of the one.
    """

    number: int
    maker: str
    offset: int
    name: str
    output: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor of the caller's that later results are computed from: a result of the program, or an input once it was written.

    Or an inner boundary: a value that the caller does not hold.
    """

    result: int = -1
    input: int = -1
    inner: ValueInside | None = None


@dataclass(frozen=True, slots=True)
class WatchedTensor:
    """A tensor of the caller's that eager's nodes save: a write to it after the call is an error for the outputs of a bit mask."""

    at: Boundary
    outputs: int


class SavedAs(Enum):
    """How a saved tensor is kept."""

    #: the caller's very tensor, as eager keeps it: one that is given other memory (`.data = ...`) shows that
    TENSOR = "tensor"
    #: the memory that it has at the call; a write to it is an error
    MEMORY = "memory"
    #: that memory, read by the backward pass whether it was written since or not: checkpointed functions take their inputs so
    UNCHECKED_MEMORY = "unchecked memory"


@dataclass(frozen=True, slots=True)
class Stage:
    """One node of autograd. Masks are of its outputs: output n is bit n.

    outputs: positions among the flat outputs of the forward graph; behind these, its inner boundaries. graph: the backward pass for all
    of them; its GRADIENT outputs are of the caller's inputs, or of boundaries, which are numbered after these. tangents: what it
    expects of their gradients. inner: the values of its inner boundaries, the last of its outputs.
    shared: by output, those that can't be differentiated after it. reached: by GRADIENT, the outputs that flow to it.
    needed: by saved value, the outputs whose gradients need it. keeps: by saved value, how it is kept. watched: see there.
    kept: the saved tensors, as values of the functional log.
    backward_of: the graph, and what it expects, for other gradients; raises NoBackwardGraph where none can be made.
    """

    outputs: tuple[int, ...]
    graph: TracedGraph
    tangents: tuple[Descriptor, ...]
    shared: tuple[int, ...]
    reached: tuple[int, ...]
    needed: tuple[int, ...]
    keeps: tuple[SavedAs, ...]
    watched: tuple[WatchedTensor, ...]
    kept: tuple[FakeTensor, ...]
    backward_of: Callable[[IncomingGradients], tuple[TracedGraph, list[Descriptor]]]
    inner: tuple[ValueInside, ...] = ()


class NoBackwardGraph(Exception):
    """No backward graph for these gradients: the graph for all of them has to do, given zeros and copies."""


@dataclass(frozen=True, slots=True)
class Traced:
    """forward: always. stages: where something is differentiated, each after those that it is computed from.

    checks: for the runtime wrapper. only_plain_backward: the program refuses `torch.autograd.grad` and `backward(inputs=...)`, as
    reentrant checkpoints do. starts_with_grad: the graph starts with grad mode on; where it starts off, it turns it on itself.
    report: in words, what the partitioner keeps between forward and backward, and why; empty for one without a choice.
    program: what was traced; where something is differentiated.
    """

    forward: TracedGraph
    checks: tuple[StorageCheck, ...]
    stages: tuple[Stage, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    only_plain_backward: bool = False
    starts_with_grad: bool = True
    report: str = ""
    program: Program | None = None

    @property
    def backward(self) -> TracedGraph | None:
        """The backward graph of a program whose results are not made of each other; None where nothing is differentiated."""
        if len(self.stages) > 1:
            raise ValueError(f"the program is differentiated in {len(self.stages)} stages: results are computed from results; see `stages`")
        return self.stages[0].graph if self.stages else None
