"""`torch.cond`: one node of the graph, with both branches as bodies, of which the run of the graph takes one.

In: the arguments of the call. Out: the first branch's result; in the graph, a node of `regions.choose`. Both branches are
evaluated.
Invariant: both compute new tensors of the same shapes, strides, dtypes and devices, in the same structure, and do nothing else.
Where something requires grad, torch gives zeros as gradients of what the branch taken does not use, which the graph would not: a
break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter.model_tables import take
from fxloom_dynamo.tensors.purity import Watch
from fxloom_interfaces import regions
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def cond(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.cond`."""
    predicate, if_true, if_false, operands = take(args, kwargs, "pred", "true_fn", "false_fn", "operands", defaults=((),))
    ev.heap.fill_deep(operands)
    if type(predicate) is not FakeTensor or predicate.dtype is not torch.bool or predicate.numel() != 1:
        _refuse("whose predicate is no tensor of one truth value")
    if not isinstance(operands, (tuple, list)) or ev.tensors.transforms:
        _refuse("of operands that are no tuple, or within a transform of torch.func")
    given = ev.recorder.node_of(predicate)
    result: Any = None
    outputs: list[FakeTensor] = []
    bodies, inputs = [], []
    for number, function in enumerate((if_true, if_false)):
        value, tensors, body, outside = _branch(ev, function, list(operands))
        if number and not _alike(result, value, outputs, tensors):
            _refuse("whose branches return tensors of other shapes, strides, dtypes or devices")
        if not number:
            result, outputs = value, tensors
        bodies.append(body)
        inputs.append(tuple(outside))
    ev.recorder.record_node(regions.choose, (given, *bodies, *inputs), {}, tuple(outputs))
    return result


def _refuse(why: str) -> Any:
    graph_break("torch_call", f"torch.cond {why}")


def _branch(ev: Interpreter, function: Any, operands: list[Any]) -> tuple[Any, list[FakeTensor], Any, list[Any]]:
    """What a branch returns, the tensors in it, its body, and the nodes of what it takes from outside."""
    recorder = ev.recorder
    last = recorder.last_node()
    watch = Watch(ev, [function, *operands])
    known, versions = set(recorder.nodes), recorder.versions_now()
    value = ev.call(function, operands)
    changes = watch.changes()
    if changes:
        _refuse(f"with a branch that {changes}")
    if any(version != versions[key] for key, version in recorder.versions_now().items() if key in versions):
        _refuse("with a branch that writes into a tensor")
    ev.heap.fill_deep(value)
    outputs = pytree.tree_leaves(value)
    if not outputs or not all(type(output) is FakeTensor for output in outputs) or len({id(output) for output in outputs}) != len(outputs):
        _refuse("with a branch that returns more than tensors, or one of them twice")
    if any(id(output) in known or id(output) in recorder.input_info for output in outputs):
        _refuse("with a branch that returns what it was given")
    body, outside = recorder.outline(last, [], outputs)
    memory = {id(used.storage_token) for used in map(recorder.fake_of, outside) if type(used) is FakeTensor}
    with DisableTorchFunction():
        if torch.is_grad_enabled() and any(output.requires_grad for output in outputs):
            _refuse("of tensors that require grad")
    own = {id(output.storage_token) for output in outputs}
    if len(own) != len(outputs) or not own.isdisjoint(memory):
        _refuse("with a branch that returns views")
    return value, outputs, body, outside


def _alike(one: Any, other: Any, outputs: list[FakeTensor], others: list[FakeTensor]) -> bool:
    if pytree.tree_structure(one) != pytree.tree_structure(other):
        return False
    with DisableTorchFunction():
        return all(a.desc is b.desc for a, b in zip(outputs, others, strict=True))
