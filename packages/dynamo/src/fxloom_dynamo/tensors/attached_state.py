"""Attributes that a program hangs on a tensor (`p._no_decay = True`): the tensor's `__dict__`.

In: a fake and a name. Out: the attribute, or the whole dict as the program sees it. Of a tensor that existed before, the dict has
a proxy like any other dict: reads are guarded, also that a name is absent, and what the program leaves other than it was is
written back. Of one that the program made, the dict is an ordinary one, and becomes the real tensor's when that leaves the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.objects.sentinels import ABSENT, UNREAD, own_dict
from fxloom_interfaces.sources import InstanceDictSource
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def dict_of(ev: Interpreter, tensor: FakeTensor) -> dict[str, Any]:
    """The `__dict__` that the program sees."""
    known = ev.tensors.dicts.get(id(tensor))
    if known is not None:
        return known[1]
    own: dict[str, Any] = {}
    info = ev.recorder.input_info.get(id(tensor))
    if info is not None:
        _, real, source = info
        names = own_dict(real)
        own.update(dict.fromkeys(names, UNREAD))
        record = ev.heap.add(names, own, ev.heap.derive(InstanceDictSource, source), "dict")
        record.keys = tuple(names)
    ev.tensors.dicts[id(tensor)] = (tensor, own)
    return own


def load(ev: Interpreter, tensor: FakeTensor, name: str) -> Any:
    """What the tensor's `__dict__` has under `name`, ABSENT if nothing."""
    if id(tensor) not in ev.tensors.dicts and id(tensor) not in ev.recorder.input_info:
        return ABSENT
    return ev.heap.dict_get(dict_of(ev, tensor), name)


def is_marked(ev: Interpreter, tensor: FakeTensor, name: str) -> bool:
    """Whether the tensor has a true attribute by which torch tells parameters and buffers of other classes."""
    value = load(ev, tensor, name)
    return value is not ABSENT and ev.truth(value)


def store(ev: Interpreter, tensor: FakeTensor, name: str, value: Any) -> None:
    """tensor.name = value, for a name that no class of the tensor's has something of its own for."""
    found = getattr(torch.Tensor, name, ABSENT)
    if found is not ABSENT:
        graph_break("torch_call", f"writes attribute {name!r} of a tensor")
    dict_of(ev, tensor)[name] = value


def of_results(ev: Interpreter, results: list[Any]) -> list[tuple[FakeTensor, dict[str, Any]]]:
    """Those among the graph's results on which the program hung attributes."""
    found = [ev.tensors.dicts[id(fake)] for fake in results if id(fake) in ev.tensors.dicts]
    return [(fake, own) for fake, own in found if own]


def hang(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    """Runs in replacement code on an output of the graph."""
    own_dict(tensor).update(attributes)
