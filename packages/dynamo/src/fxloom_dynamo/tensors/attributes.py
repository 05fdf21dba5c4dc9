"""What `tensor.name`, `tensor.name = value` and `del tensor.name` mean: torch's attributes, a class's own, the program's.

In: a fake and a name. Out: the value. Methods come bound, metadata is answered by the fake, autograd's attributes by `gradients`;
state that a graph can't hold is `leaf_state`'s; what the program hangs on tensors lies in `attached_state`.
Invariant: attributes that only fakes have are invisible to the program.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.interpreter import descriptors
from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_dynamo.tensors import attached_state, gradients, leaf_state
from fxloom_dynamo.tensors.subclasses import own_class
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def load(ev: Interpreter, obj: FakeTensor, name: str) -> Any:
    """tensor.name"""
    if name == "__class__":
        return ev.type_of(obj)
    if name in ("desc", "storage_token", "constant", "set_constant", "_constant"):
        raise descriptors.missing(ev, obj, name)  # the fake's own
    if name == "__dict__":
        return attached_state.dict_of(ev, obj)
    if name == "is_meta":
        return False if obj.device.type != "meta" else ev.torch_native(getattr, obj, name)
    own = own_class(ev, obj)
    raw = getattr(torch.Tensor, name, ABSENT)
    if raw is ABSENT and (own is None or not isinstance(ev.heap.class_lookup(own, name), property)):
        value = attached_state.load(ev, obj, name)
        if value is not ABSENT:
            return value
    if own is not None or raw is ABSENT:
        found = _of_subclass(ev, obj, ev.type_of(obj), name)
        if found is not ABSENT:
            return found
    if raw is ABSENT:
        return _asked(ev, obj, name)
    if name in ("device", "is_cuda", "is_cpu", "nbytes"):
        return getattr(obj, name)
    if name == "requires_grad" and id(obj) not in ev.recorder.input_info:
        ev.tensors.grad_mode_queries += 1
    if name in gradients.NAMES:
        return gradients.load(ev, obj, name)
    if isinstance(raw, (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return raw.__get__(obj, torch.Tensor)  # torch's own, not what fakes override
    return ev.torch_native(getattr, obj, name)


def _of_subclass(ev: Interpreter, obj: FakeTensor, cls: type, name: str) -> Any:
    """What a class between a tensor's and torch.Tensor defines of this name, bound."""
    raw = ev.heap.class_lookup(cls, name)
    if raw is ABSENT or raw is getattr(torch.Tensor, name, ABSENT) or raw is vars(torch.Tensor).get(name, ABSENT):
        return ABSENT
    if descriptors.is_property(raw):
        return ev.call(descriptors.member(ev, cls, name, raw, raw.fget), [obj])
    if isinstance(raw, (types.FunctionType, classmethod, staticmethod)) or not hasattr(type(raw), "__get__"):
        return descriptors.bind(ev, raw, name, obj, cls, cls)
    return ABSENT  # a descriptor in C, torch's own


def _asked(ev: Interpreter, obj: FakeTensor, name: str) -> Any:
    """What a class that is asked for attributes which it lacks has to say."""
    cls = ev.type_of(obj)
    fallback = ev.heap.class_lookup(cls, "__getattr__")
    if fallback is ABSENT:
        raise descriptors.missing(ev, obj, name)
    return ev.call(descriptors.bind(ev, fallback, "__getattr__", obj, cls, cls), [name])


def store(ev: Interpreter, obj: FakeTensor, name: str, value: Any) -> None:
    """tensor.name = value"""
    if name == "requires_grad":
        ev.call(torch.Tensor.requires_grad_, [obj, value])
        return
    if name == "data":
        leaf_state.set_data(ev, obj, value)
        return
    if name == "grad":
        gradients.store(ev, obj, value)
        return
    own = own_class(ev, obj)
    raw = ABSENT if own is None else ev.heap.class_lookup(own, name)
    if own is not None and isinstance(raw, property) and raw.fset is not None and name not in vars(torch.Tensor):
        ev.call(descriptors.member(ev, own, name, raw, raw.fset), [obj, value])
        return
    custom = own is not None and ev.heap.class_lookup(own, "__setattr__") is not object.__setattr__
    if custom or hasattr(type(raw), "__set__"):
        graph_break("torch_call", f"writes attribute {name!r} of a tensor whose class has its own way to do that")
    attached_state.store(ev, obj, name, value)


def delete(ev: Interpreter, obj: FakeTensor, name: str) -> None:
    """del tensor.name"""
    if attached_state.load(ev, obj, name) is ABSENT:
        graph_break("torch_call", f"deletes attribute {name!r} of a tensor")
    own = attached_state.dict_of(ev, obj)
    ev.heap.note_deletion(own, name)
    del own[name]
