"""`torch.utils.checkpoint.checkpoint`: the function becomes a body of the graph, computed again in the backward pass.

In: the arguments of the call. Out: the function's result; in the graph, one node that calls torch's own `checkpoint` on the body.
Invariant: eager runs the function a second time when it goes backward, so what it does beside computing new tensors would happen
twice: such a function is a break.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.objects.sentinels import Raised
from fxloom_dynamo.tensors.gradients import differentiable, is_leaf_input
from fxloom_dynamo.tensors.purity import Watch, tensors_in
from fxloom_interfaces import meta
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def checkpoint(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.utils.checkpoint.checkpoint`."""
    if not args:
        raise Raised(TypeError("checkpoint() missing 1 required positional argument: 'function'"))
    function, *given = args
    named = dict(kwargs)
    reentrant = named.pop("use_reentrant", None)
    preserve = named.pop("preserve_rng_state", True)
    if reentrant is None:
        graph_break("torch_call", "checkpoint without use_reentrant, which warns")
    if type(reentrant) is not bool or type(preserve) is not bool:
        graph_break("torch_call", "checkpoint with use_reentrant or preserve_rng_state that is no bool")
    if named.pop("context_fn", torch_checkpoint.noop_context_fn) is not torch_checkpoint.noop_context_fn:
        graph_break("torch_call", "checkpoint with context_fn")
    if named.pop("debug", False) is not False:
        graph_break("torch_call", "checkpoint with debug")
    named.pop("determinism_check", None)  # what is in the graph is the same both times
    named.pop("early_stop", None)
    if reentrant:
        if named:
            raise Raised(ValueError("Unexpected keyword arguments: " + ",".join(named)))
        return _reentrant(ev, function, given, preserve)
    return _region(ev, function, given, named, use_reentrant=False, preserve_rng_state=preserve)


def _reentrant(ev: Interpreter, function: Any, args: list[Any], preserve: bool) -> Any:
    """Forward without gradients, which backward makes by running the function again with them."""
    tensors = [value for value in args if type(value) is FakeTensor]
    if not any(value.requires_grad for value in tensors):
        graph_break("torch_call", "checkpoint with use_reentrant=True, and no argument requires grad: it warns, and has no gradient")
    asked = ev.tensors.grad_mode_queries
    result = _region(ev, function, args, {}, use_reentrant=True, preserve_rng_state=preserve)
    if ev.tensors.grad_mode_queries != asked:  # a checkpoint of this kind within asks too, in order to warn
        graph_break("torch_call", "checkpoint with use_reentrant=True of a function that asks for the grad mode")
    ev.tensors.grad_mode_queries += 1
    return result


def _region(ev: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any], **options: bool) -> Any:
    if not torch.is_grad_enabled():
        return ev.call(function, args, kwargs)
    reentrant = options["use_reentrant"]
    recorder = ev.recorder
    last = recorder.last_node()
    watch = Watch(ev, [function, *args, *kwargs.values()])
    known, versions = set(recorder.nodes), recorder.versions_now()
    result = ev.call(function, args, kwargs)
    changes = watch.changes()
    if changes:
        graph_break("torch_call", f"checkpoint of a function that {changes}, which it does again when backward runs it again")
    if reentrant and not (isinstance(result, FakeTensor) or type(result) is tuple):
        graph_break("torch_call", f"checkpoint with use_reentrant=True of a function that returns a {type(result).__qualname__}")
    if any(version != versions[key] for key, version in recorder.versions_now().items() if key in versions):
        graph_break("torch_call", "checkpoint of a function that writes into a tensor, and again when backward runs it again")
    outputs = [fake for fake in tensors_in(result, ev) if id(fake) not in known and id(fake) not in recorder.input_info]
    if not outputs:
        return result
    if reentrant:
        _check_reentrant(ev, args, result)
    body, inputs = recorder.outline(last, [], outputs)
    if reentrant:
        arguments = {recorder.node_of(value) for value in args if type(value) is FakeTensor}
        for node in inputs:
            _check_lifted(ev, node, arguments)
        with DisableTorchFunction(), warnings.catch_warnings():
            plain = tuple(fake for fake in outputs if not fake.requires_grad)
            differentiable(tuple(outputs), plain, tuple(value for value in args if type(value) is FakeTensor))
    recorder.record_node(torch_checkpoint.checkpoint, (body, *inputs), options, tuple(outputs))
    return result


def _check_reentrant(ev: Interpreter, args: list[Any], result: Any) -> None:
    """All that autograd would treat otherwise in backward than the straight program."""
    outputs = [result] if type(result) is FakeTensor else list(result)
    if not all(type(value) is FakeTensor or value is None for value in outputs):
        graph_break("torch_call", "checkpoint with use_reentrant=True of a function that returns more than tensors")
    given = [value for value in args if type(value) is FakeTensor]
    storages = {id(value.storage_token) for value in given}
    for output in outputs:
        if type(output) is not FakeTensor:
            continue
        if id(output.storage_token) in storages or id(output) in ev.recorder.input_info:
            graph_break("torch_call", "checkpoint with use_reentrant=True of a function that returns a view of its argument")
        with DisableTorchFunction():
            if output.is_floating_point() and not output.requires_grad:
                graph_break("torch_call", "checkpoint with use_reentrant=True of a function with a result that has no gradient")


def _check_lifted(ev: Interpreter, node: torch.fx.Node, arguments: set[torch.fx.Node]) -> None:
    """What the function reaches beside its arguments gets its gradient by a backward pass of its own: right for leaves."""
    if node in arguments:
        return
    fake = meta.get_fake(node)
    if type(fake) is not FakeTensor:
        return
    with DisableTorchFunction():
        needs = fake.requires_grad
    if needs and not is_leaf_input(ev, fake):
        graph_break("torch_call", "checkpoint with use_reentrant=True of a function that uses a tensor with a gradient that is no argument")
