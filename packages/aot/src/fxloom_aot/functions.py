"""Joint graphs of plain functions and modules, for a backend of one's own, without capture.

In: a function or `nn.Module`, example arguments (nests of tensors and constants). Out: a callable of the same arguments whose
forward and backward graphs were compiled by the caller's `compiler`, or the graphs themselves.

The function is run once, on fakes of the example tensors: what is no tensor is a constant, and Python control flow is as the
examples took it. So a call checks that its arguments are like the examples, and says what differs; dynamo is the package
that guards and compiles again. Parameters and buffers of a module are inputs of the graphs, before the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxloom_aot.eager import eager_compiler
from fxloom_aot.log import Decompositions
from fxloom_aot.module import Compiler, aot_graph
from fxloom_aot.partition import Partitioner, save_all
from fxloom_aot.trace import Traced, trace_graph


def aot_function(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    compiler: Compiler = eager_compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner = save_all,
) -> Callable[..., Any]:
    """`fn` with its forward and backward graphs compiled ahead of time.

    compiler: takes a GraphModule of the aten dialect and its GraphSignature, returns a callable of one list of inputs (which
    it may clear) to the flat outputs; `backward_compiler` is the same for the backward graph. Values, aliasing, mutation and
    gradients are those of `fn`. TypeError when called with arguments unlike the examples; GraphRejected for what can't be
    treated soundly; what `fn` raises comes out as it is.
    """
    program = _Program(fn, tuple(example_args))
    run = aot_graph(
        program.graph, program.example_inputs, compiler=compiler, backward_compiler=backward_compiler,
        decompositions=decompositions, partitioner=partitioner,
    )  # fmt: skip
    return program.callable(run)


def aot_module(
    module: torch.nn.Module,
    example_args: Sequence[Any],
    *,
    compiler: Compiler = eager_compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner = save_all,
) -> Callable[..., Any]:
    """As `aot_function`, for a module: gradients go to its parameters, and its buffers are updated."""
    state, call = _functional(module)
    run = aot_function(
        call, [state, *example_args], compiler=compiler, backward_compiler=backward_compiler,
        decompositions=decompositions, partitioner=partitioner,
    )  # fmt: skip
    return lambda *args: run(_state_of(module), *args)


def aot_export(
    target: Callable[..., Any] | torch.nn.Module,
    example_args: Sequence[Any],
    *,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner = save_all,
) -> Traced:
    """The forward graph of a function or module and, where grad mode is on and an output requires grad, its backward graph.

    `Traced.forward.gm` and `.signature` say what is computed and what every flat input and output is; `.backward` likewise.
    """
    if isinstance(target, torch.nn.Module):
        state, call = _functional(target)
        program = _Program(call, (state, *example_args))
    else:
        program = _Program(target, tuple(example_args))
    return trace_graph(program.graph, program.example_inputs, decompositions or {}, partitioner)


def _state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _functional(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], Callable[..., Any]]:
    """The module's state, and a function of that state and the arguments."""
    return _state_of(module), lambda state, *args: torch.func.functional_call(module, state, args)


@dataclass(frozen=True, slots=True)
class _Like:
    """What a tensor argument has to be like."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> _Like:
        kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else torch.Tensor
        return _Like(kind, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, tensor.requires_grad)


class _Program:
    """A function as a torch-dialect graph of one node over the tensors among its arguments."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.leaves, self.spec = pytree.tree_flatten(args)
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.example_inputs: list[torch.Tensor] = [self.leaves[place] for place in self.places]
        self.likes = [_Like.of(tensor) for tensor in self.example_inputs]
        self.result: Any = None

        def flat(*tensors: torch.Tensor) -> tuple[Any, ...]:
            leaves = list(self.leaves)
            for place, tensor in zip(self.places, tensors, strict=True):
                leaves[place] = tensor
            outputs, self.result = pytree.tree_flatten(fn(*pytree.tree_unflatten(leaves, self.spec)))
            return tuple(outputs)

        graph = torch.fx.Graph()
        inputs = tuple(graph.placeholder(f"input_{number}") for number in range(len(self.places)))
        graph.output(graph.call_function(flat, inputs))
        self.graph = torch.fx.GraphModule(torch.nn.Module(), graph)

    def callable(self, run: Callable[..., list[Any]]) -> Callable[..., Any]:
        constants = {place: leaf for place, leaf in enumerate(self.leaves) if place not in self.places}

        def call(*args: Any) -> Any:
            leaves, spec = pytree.tree_flatten(args)
            if spec != self.spec:
                raise TypeError(f"arguments are nested as {spec}; the example arguments were nested as {self.spec}")
            for place, constant in constants.items():
                if type(leaves[place]) is not type(constant) or leaves[place] != constant:
                    raise TypeError(f"argument {place} is {leaves[place]!r}; it was {constant!r} in the example and is a constant")
            tensors = [leaves[place] for place in self.places]
            for place, tensor, like in zip(self.places, tensors, self.likes, strict=True):
                now = _Like.of(tensor) if isinstance(tensor, torch.Tensor) else None
                if now != like:
                    raise TypeError(f"argument {place} is {now or type(tensor).__name__}; the example was {like}")
            return pytree.tree_unflatten(run(*tensors), self.result)

        return call
