"""Custom autograd functions: `MyFunction.apply(...)` as one node of the graph, with the gradient that its author wrote.

In: a subclass of `torch.autograd.Function` and the arguments of `apply`. Out: fakes of the results; GraphBreak where forward or backward
does more than compute tensors.

The node calls the real `apply`, so forward and backward are the author's at run time. Before it is recorded, both are
evaluated for what they read, for guards, and to prove that they do nothing else than compute tensors from tensors; what
that recorded is taken back. Where nothing requires a gradient, forward's operators stand in the graph as they are.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction, set_grad_enabled_raw
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.objects.sentinels import Raised
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.symbolic_numbers.values import unbacked
from fxloom_dynamo.tensors.gradients import differentiable
from fxloom_dynamo.tensors.purity import Watch
from fxloom_dynamo.tensors.reads import may_read_written, mutable_state
from fxloom_dynamo.traced import polyfills
from fxloom_interfaces.regions import GraphFunction
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Function = torch.autograd.Function


def apply(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.autograd.Function.apply`."""
    cls, *rest = args
    if kwargs:
        _refuse(cls, "gets keyword arguments")
    context = ev.heap.add_fresh(polyfills.FunctionContext())
    context.needs_input_grad = tuple(type(value) is FakeTensor and value.requires_grad for value in rest)
    # a transform of torch.func may ask the function for its own derivative or batching rule
    if not (torch.is_grad_enabled() and any(context.needs_input_grad)) and not ev.tensors.transforms:
        return _forward(ev, cls, context, rest)
    if not all(_is_simple(value) for value in rest):
        _refuse(cls, "gets more than tensors, numbers and tuples of them")
    methods = [getattr(cls, name) for name in ("forward", "setup_context", "backward", "vjp") if hasattr(cls, name)]
    written = may_read_written(ev, methods)
    if written:  # the graph runs before the region's writes are carried out
        _refuse(cls, f"may read {written}, which the region wrote")
    kept = mutable_state(methods[-2:])
    if kept:  # what backward reads is what is there when it runs, and no guard holds until then
        _refuse(cls, f"reads {kept} in its backward, which may have changed until then")
    watch, last = Watch(ev, [cls, *rest]), ev.recorder.last_node()
    result = _forward(ev, cls, context, rest)
    outputs = result if isinstance(result, tuple) else (result,)
    if not all(type(output) is FakeTensor or type(output) in LITERALS for output in outputs):
        _refuse(cls, "returns more than tensors")
    tensors = [output for output in outputs if type(output) is FakeTensor]
    given = {id(value.storage_token) for value in _tensors(rest)}
    if any(id(output.storage_token) in given for output in tensors):
        _refuse(cls, "returns a view of one of its inputs")
    _backward(ev, cls, context, outputs)
    changes = watch.changes()
    if changes:
        _refuse(cls, f"does more than compute tensors: it {changes}")
    foreign = ev.recorder.discard_after(last, _tensors(rest))
    if foreign:
        _refuse(cls, f"reads the tensor {foreign}, which is not one of its arguments")
    plain = set(map(id, getattr(context, "non_differentiable", ())))
    with DisableTorchFunction():
        differentiable(tuple(tensors), tuple(output for output in tensors if id(output) in plain), tuple(_tensors(rest)))
        return ev.recorder.record_as(GraphFunction(cls.apply, cls.__qualname__), tuple(rest), result)


def _refuse(cls: type, why: str) -> None:
    graph_break("torch_call", f"custom autograd function {cls.__qualname__}: {why}")


def _forward(ev: Interpreter, cls: Any, context: Any, args: list[Any]) -> Any:
    """What forward returns; operators are recorded, without gradients."""
    with _no_grad(ev):
        ev.heap.class_lookup(cls, "setup_context")
        if cls.setup_context is not Function.setup_context:
            result = ev.call(ev.getattr(cls, "forward"), args)
            ev.call(ev.getattr(cls, "setup_context"), [context, tuple(args), result])
        else:
            result = ev.call(ev.getattr(cls, "forward"), [context, *args])
    outputs = result if isinstance(result, tuple) else (result,)
    if any(output is value for output in outputs for value in args if type(output) is FakeTensor):
        _refuse(cls, "returns one of its inputs")
    return result


def _backward(ev: Interpreter, cls: Any, context: Any, outputs: tuple[Any, ...]) -> None:
    """Evaluate backward on gradients like `outputs`, for its guards and effects only."""
    name = next((name for name in ("backward", "vjp") if getattr(cls, name) is not getattr(Function, name)), None)
    if name is None:
        return
    ev.heap.class_lookup(cls, name)
    with _no_grad(ev):
        grads = [ev.torch_native(torch.empty_like, output) if type(output) is FakeTensor else None for output in outputs]
        for given in _given(ev, cls, context, grads):
            try:
                ev.call(ev.getattr(cls, name), [context, *given])
            except Raised as raised:
                _refuse(cls, f"{name} raises {type(raised.exc).__name__}: {raised.exc}")


#: of results that the gradients of a function may be missing for
_MOST_MISSING = 4


def _given(ev: Interpreter, cls: type, context: Any, grads: list[Any]) -> list[tuple[Any, ...]]:
    """The gradients that backward may get: None stands for those of results that nothing depends on, if it asked for that."""
    if ev.truth(ev.getattr(context, "materialize_grads")) or len(grads) == 1:
        return [tuple(grads)]
    if len(grads) > _MOST_MISSING:
        _refuse(cls, f"takes None for the gradients of {len(grads)} results")
    choices = itertools.product(*((grad,) if grad is None else (grad, None) for grad in grads))
    return [given for given in choices if any(grad is not None for grad in given)]


class _no_grad:
    """Grad mode is off for what is evaluated within; nodes say so."""

    def __init__(self, ev: Interpreter) -> None:
        self.ev = ev

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        self.ev.call(set_grad_enabled_raw, [False], {})

    def __exit__(self, *_: object) -> None:
        self.ev.call(set_grad_enabled_raw, [self.before], {})


def _is_simple(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_simple, value))
    if type(value) in (torch.SymInt, torch.SymFloat):
        return not unbacked(value)
    return type(value) is FakeTensor or type(value) in LITERALS


def _tensors(values: Any) -> list[FakeTensor]:
    """Tensors among arguments, in order."""
    found = []
    for value in values:
        if type(value) is FakeTensor:
            found.append(value)
        elif type(value) is tuple:
            found += _tensors(value)
    return found
