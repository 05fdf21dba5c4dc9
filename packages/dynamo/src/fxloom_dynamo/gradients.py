"""`.grad`, `.grad_fn` and `.is_leaf` of tensors: what the autograd engine hangs on a tensor and no fake shows.

In: a fake and the attribute. Out: the stand-in of what hangs on the real tensor, with guards; a write is kept aside and
made on the real tensor once the graph has run. Only leaves have a `.grad` that can be read without a warning, so that a
tensor is a leaf is guarded first. Of a tensor that the program made, `.grad` is None: backward is a graph break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction, TensorBase
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guards import GuardKind
from fxloom_dynamo.marks import ABSENT
from fxloom_interfaces.sources import CallSource
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.evaluator import Evaluator

_IS_LEAF = TensorBase.__dict__["is_leaf"].__get__
#: attributes that are answered here
NAMES = frozenset({"grad", "grad_fn", "is_leaf"})


@dataclass(slots=True, eq=False)
class Gradient:
    """`.grad` of `tensor`, an input: as it was read (ABSENT: never) and as the program left it."""

    tensor: FakeTensor
    read: Any
    now: Any


def load(ev: Evaluator, tensor: FakeTensor, name: str) -> Any:
    """tensor.grad, tensor.grad_fn or tensor.is_leaf"""
    if name == "grad":
        return _grad(ev, tensor)
    with DisableTorchFunction():
        plain = not tensor.requires_grad or is_leaf_input(ev, tensor)
        made_inside = tensor.grad_fn is not None
    if name == "is_leaf" and id(tensor) not in ev.recorder.input_info:
        return plain or not made_inside
    if plain and not made_inside:
        return None if name == "grad_fn" else True
    if name == "is_leaf":
        return False
    graph_break("torch_call", "Tensor.grad_fn of a tensor that is no leaf")


def store(ev: Evaluator, tensor: FakeTensor, value: Any) -> None:
    """tensor.grad = value"""
    if not is_leaf_input(ev, tensor):
        graph_break("torch_call", "writes .grad of a tensor that is no leaf or was made inside")
    with DisableTorchFunction():
        fits = value is None or type(value) is FakeTensor and (
            value.shape == tensor.shape and value.dtype == tensor.dtype and value.device == tensor.device
        )  # fmt: skip
    if not fits:
        graph_break("torch_call", "writes something to .grad that torch refuses or converts")
    known = ev.gradients.get(id(tensor))
    if known is None:
        ev.gradients[id(tensor)] = Gradient(tensor, ABSENT, value)
    else:
        known.now = value


def _grad(ev: Evaluator, tensor: FakeTensor) -> Any:
    known = ev.gradients.get(id(tensor))
    if known is not None:
        return known.now
    info = ev.recorder.input_info.get(id(tensor))
    if info is None:
        with DisableTorchFunction():
            if tensor.grad_fn is not None:
                graph_break("torch_call", "reading .grad of a tensor that is no leaf")
        return None
    _, real, source = info
    if not is_leaf_input(ev, tensor):
        graph_break("torch_call", "reading .grad of a tensor that is no leaf")
    with DisableTorchFunction():
        value = real.grad
    found = ev.heap.translate(value, ev.heap.attr_source(source, "grad"))
    ev.gradients[id(tensor)] = Gradient(tensor, found, found)
    return found


def is_leaf_input(ev: Evaluator, tensor: FakeTensor) -> bool:
    """True for a leaf that existed before and still is one; guarded either way."""
    info = ev.recorder.input_info.get(id(tensor))
    if info is None:
        return False
    _, real, source = info
    with DisableTorchFunction():
        leaf = real.is_leaf
        if real.requires_grad:
            ev.heap.guard(CallSource(source, getter=_IS_LEAF, label="{}.is_leaf"), GuardKind.TRUTH, leaf)
        return leaf and tensor.grad_fn is None


def written(ev: Evaluator) -> list[Gradient]:
    """What the program left other than it was."""
    return [entry for entry in ev.gradients.values() if entry.now is not entry.read]


def write_gradient(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    """Runs in replacement code."""
    tensor.grad = value
