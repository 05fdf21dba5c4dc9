"""What a program does to tensors that existed before, beside writing elements: `requires_grad_(False)`, `p.data = other`.

In: the tensor and the value. Out: in the graph the tensor is from then on another one over the memory that it has now, without
history; the real tensor is changed by replacement code once the graph has run. Invariant: no gradient gets lost: where one would
have to reach the tensor through its new data, there is a break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction
from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.tensors.gradients import is_leaf_input
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def set_requires_grad(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `Tensor.requires_grad_`."""
    tensor = args[0]
    if type(tensor) is not FakeTensor or id(tensor) not in ev.recorder.input_info or len(args) + len(kwargs) > 2:
        return ev.torch_native(torch.Tensor.requires_grad_, *args, **kwargs)
    wanted = ev.truth(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    with DisableTorchFunction():
        now = tensor.requires_grad
    if now == wanted:
        return tensor
    written = ev.tensors.leaf_writes.setdefault(id(tensor), (tensor, {}))[1]
    if not is_leaf_input(ev, tensor) or wanted and "requires_grad" not in written:
        graph_break("torch_call", "requires_grad_ changes a tensor that existed before, other than that it no longer requires grad")
    recorder = ev.recorder
    if wanted:  # as it was
        del written["requires_grad"]
        recorder.leaves.restore(tensor)
    else:
        written["requires_grad"] = False
        recorder.leaves.replace(tensor, tensor)
    with DisableTorchFunction():
        tensor.requires_grad_(wanted)
    return tensor


def set_data(ev: Interpreter, tensor: FakeTensor, value: Any) -> None:
    """tensor.data = value"""
    if id(tensor) not in ev.recorder.input_info or type(value) is not FakeTensor:
        graph_break("torch_call", "sets .data of a tensor that was made inside, or to what is no tensor")
    if tensor.desc is not value.desc or ev.type_of(value) not in (torch.Tensor, torch.nn.Parameter):
        graph_break("torch_call", f"sets .data to a tensor of another shape, stride, dtype or device: {tensor.desc} to {value.desc}")
    if tensor.storage_token is value.storage_token:
        return  # its own memory, as `Module.to` sets where nothing has to change
    with DisableTorchFunction():
        needs = tensor.requires_grad
    if needs and not is_leaf_input(ev, tensor):
        graph_break("torch_call", "sets .data of a tensor with a history")
    written = ev.tensors.leaf_writes.setdefault(id(tensor), (tensor, {}))[1]
    if "requires_grad" in written:
        graph_break("torch_call", "sets .data of a tensor after requires_grad_(False)")
    ev.recorder.leaves.replace(tensor, value)
    tensor.storage_token = value.storage_token
    written["data"] = value


def written(ev: Interpreter) -> list[tuple[FakeTensor, str, Any]]:
    """(tensor, attribute, value) of what the program left other than it was."""
    return [(tensor, name, value) for tensor, own in ev.tensors.leaf_writes.values() for name, value in own.items()]


def write(tensor: torch.Tensor, name: str, value: Any) -> None:
    """Runs in replacement code."""
    setattr(tensor, name, value)
