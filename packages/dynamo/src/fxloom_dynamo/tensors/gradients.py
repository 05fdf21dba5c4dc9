"""`torch.autograd.grad`; `.grad`, `.grad_fn`, `.is_leaf`: what the autograd engine hangs on a tensor and no fake shows.

In: a fake and the attribute. Out: the proxy of what hangs on the real tensor, with guards; a write is kept aside and
made on the real tensor once the graph has run. Only of leaves can a `.grad` that is None be read without a warning, so that a
tensor is a leaf is guarded first. Of a tensor that the program made, `.grad` is None: backward is a graph break.

`torch.autograd.grad` is one node of the graph where all history that it follows was made inside: run on fakes it says what
the gradients are like, and raises what the program would see.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction, TensorBase
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.state import Gradient
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_interfaces.sources import CallSource
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

_HOOKS = TensorBase.__dict__["_backward_hooks"].__get__
_IS_LEAF = TensorBase.__dict__["is_leaf"].__get__
#: attributes that are answered here
NAMES = frozenset({"grad", "grad_fn", "is_leaf"})


def load(ev: Interpreter, tensor: FakeTensor, name: str) -> Any:
    """tensor.grad, tensor.grad_fn or tensor.is_leaf"""
    if name == "grad":
        return _grad(ev, tensor)
    with DisableTorchFunction():
        plain = not tensor.requires_grad or is_leaf_input(ev, tensor)
        made_inside = tensor.grad_fn is not None
    if name == "is_leaf" and id(tensor) not in ev.recorder.input_info:
        return plain or not made_inside
    if not made_inside and (plain or id(tensor) not in ev.recorder.input_info):
        return None if name == "grad_fn" else True
    if name == "is_leaf":
        return False
    graph_break("torch_call", "Tensor.grad_fn of a tensor that is no leaf")


def store(ev: Interpreter, tensor: FakeTensor, value: Any) -> None:
    """tensor.grad = value"""
    if not is_leaf_input(ev, tensor):
        graph_break("torch_call", "writes .grad of a tensor that is no leaf or was made inside")
    with DisableTorchFunction():
        fits = value is None or type(value) is FakeTensor and (
            value.shape == tensor.shape and value.dtype == tensor.dtype and value.device == tensor.device
        )  # fmt: skip
    if not fits:
        graph_break("torch_call", "writes something to .grad that torch refuses or converts")
    known = ev.tensors.gradients.get(id(tensor))
    if known is None:
        ev.tensors.gradients[id(tensor)] = Gradient(tensor, ABSENT, value)
    else:
        known.now = value


def _grad(ev: Interpreter, tensor: FakeTensor) -> Any:
    known = ev.tensors.gradients.get(id(tensor))
    if known is not None:
        return known.now
    info = ev.recorder.input_info.get(id(tensor))
    if info is None:
        with DisableTorchFunction():
            if tensor.grad_fn is not None:
                graph_break("torch_call", "reading .grad of a tensor that is no leaf")
        return None
    _, real, source = info
    leaf = is_leaf_input(ev, tensor)
    with DisableTorchFunction(), warnings.catch_warnings(action="ignore"):
        value = real.grad
    if not leaf and value is None:  # it would warn
        graph_break("torch_call", "reading .grad of a tensor that is no leaf")
    found = ev.heap.translate(value, ev.heap.attr_source(source, "grad"))
    ev.tensors.gradients[id(tensor)] = Gradient(tensor, found, found)
    return found


def is_leaf_input(ev: Interpreter, tensor: FakeTensor) -> bool:
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


def written(ev: Interpreter) -> list[Gradient]:
    """What the program left other than it was."""
    return [entry for entry in ev.tensors.gradients.values() if entry.now is not entry.read]


def write_gradient(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    """Runs in replacement code."""
    tensor.grad = value


def differentiable(outputs: tuple[FakeTensor, ...], plain: tuple[FakeTensor, ...], inputs: tuple[FakeTensor, ...]) -> None:
    """Let `outputs` but `plain` be results that are differentiated with respect to `inputs`."""
    _Differentiable.apply(outputs, plain, *inputs)


class _Differentiable(torch.autograd.Function):
    """Makes fakes the results of something that is differentiated with respect to `inputs`; never run backward."""

    @staticmethod
    def forward(ctx: Any, outputs: Any, plain: Any, *inputs: Any) -> Any:
        ctx.mark_non_differentiable(*plain)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("a fake's gradient")


# ---------------------------------------------------------------------- torch.autograd.grad

_SIGNATURE = inspect.signature(torch.autograd.grad)


def grad(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.autograd.grad`."""
    try:
        given = _SIGNATURE.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise Raised(error) from None
    if given.get("is_grads_batched"):
        graph_break("torch_call", "torch.autograd.grad with is_grads_batched")
    if ev.tensors.transforms:
        graph_break("torch_call", "torch.autograd.grad within a transform of torch.func")
    ev.heap.fill_deep(list(given.values()))
    given = {name: list(value) if isinstance(value, (tuple, list)) else value for name, value in given.items()}
    outputs, inputs = _listed(given["outputs"]), _listed(given["inputs"])
    if not all(type(value) is FakeTensor for value in [*outputs, *inputs]):
        graph_break("torch_call", "torch.autograd.grad of more than tensors")
    with DisableTorchFunction():
        leaves = _leaves_reached(outputs, inputs)
    known = {id(fake): fake for fake, _, _ in ev.recorder.input_info.values()}
    for leaf in leaves:
        if id(leaf) in ev.recorder.nodes and id(leaf) not in known:
            continue
        if id(leaf) not in known or not is_leaf_input(ev, known[id(leaf)]):
            for fake in inputs:
                ev.recorder.split_before(fake)
            graph_break("torch_call", "torch.autograd.grad through a tensor that had a history before")
    for fake in inputs:
        if id(fake) in known:
            _guard_no_hooks(ev, fake)
    options = {name: value for name, value in given.items() if name not in ("outputs", "inputs", "grad_outputs")}
    grad_outputs = given.get("grad_outputs")
    return tuple(ev.record_call(torch.autograd.grad, outputs, inputs, grad_outputs, **options))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _leaves_reached(outputs: list[FakeTensor], inputs: list[FakeTensor]) -> list[FakeTensor]:
    """The leaves that gradients of `outputs` would flow to, those behind `inputs` left out."""
    found: dict[int, FakeTensor] = {}
    ends = {fake.grad_fn for fake in inputs if fake.grad_fn is not None}
    todo = [fake.grad_fn for fake in outputs if fake.grad_fn is not None]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node in seen or node in ends:
            continue
        seen.add(node)
        if type(node).__name__ == f"{_Differentiable.__name__}Backward":
            graph_break("torch_call", "torch.autograd.grad through a custom autograd function or a checkpoint")
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.setdefault(id(variable), variable)
        todo += [below for below, _ in node.next_functions if below is not None]
    return list(found.values())


def _guard_no_hooks(ev: Interpreter, fake: FakeTensor) -> None:
    """Hooks on a tensor from outside would run."""
    _, real, source = ev.recorder.input_info[id(fake)]
    with DisableTorchFunction():
        hooks = real._backward_hooks
    if hooks:
        graph_break("torch_call", "torch.autograd.grad by a tensor with hooks")
    ev.heap.guard(CallSource(source, getter=_HOOKS, label="{}._backward_hooks"), GuardKind.IDENTITY, hooks)
