"""`nn.Parameter(tensor)` and other leaves of a class of their own: another tensor over the same memory, without history.

In: the class, the tensor and whether it requires grad. Out: a fake of that class that requires grad at once; in the graph,
`tensor.detach()`. The graph gets to know that it requires grad (`graph.leaves`) only when an operator makes something of one that
requires grad, too, so a module that is made and initialized inside of a region is one graph for every backend. Where a leaf
leaves the graph it becomes what it is to the program (`to_leaf`).
Invariant: the tensor that leaves the graph is the very one that the graph's operators used: gradients reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction, DisableTorchFunctionSubclass
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.graph.tensor_classes import dispatches
from fxloom_dynamo.objects.sentinels import Raised
from fxloom_dynamo.tensors.subclasses import overrides_off, set_class
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def make_subclass(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.Tensor._make_subclass(cls, data, require_grad=False)`."""
    if not 2 <= len(args) <= 3 or kwargs.keys() - {"require_grad"}:
        graph_break("torch_call", "Tensor._make_subclass with more than a class, a tensor and require_grad")
    cls, data = args[:2]
    wanted = ev.truth(args[2] if len(args) == 3 else kwargs.get("require_grad", False))
    if type(data) is not FakeTensor or dispatches(cls) or cls.__basicsize__ != torch.nn.Parameter.__basicsize__:
        graph_break("torch_call", f"makes a {cls.__qualname__} of what is no plain tensor, or with a __torch_dispatch__ of its own")
    if wanted and not (data.is_floating_point() or data.is_complex()):
        raise Raised(RuntimeError("Only Tensors of floating point and complex dtype can require gradients"))
    with overrides_off(ev):
        made: FakeTensor = ev.torch_native(torch.Tensor.detach, data)
    with DisableTorchFunction():
        made.requires_grad_(wanted)
    ev.recorder.leaves.add(made)
    return set_class(ev, made, cls)


def to_leaf(tensor: torch.Tensor, cls: type, requires_grad: bool) -> torch.Tensor:
    """Runs in replacement code on an output of the graph."""
    with DisableTorchFunctionSubclass():
        if type(tensor) is not cls:
            tensor.__class__ = cls  # not another object: operators of the graph may have used this one
        return tensor.requires_grad_(requires_grad)
