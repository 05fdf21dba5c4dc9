"""Classes that override torch functions: their `__torch_function__` is evaluated like any of the program's functions.

In: a function of torch and arguments among which is such a tensor. Out: what the override returns, evaluated; the operators that it calls
are recorded.

A tensor of such a class is a plain tensor to the graph, and of its class (`Recorder.python_type`) to the program. Subclasses
with a `__torch_dispatch__` are not modelled: what they do happens beneath the calls that a graph consists of.

Invariant: no override runs while a graph runs. What was decided while capturing is in the graph as plain calls, and results
get their class when they leave it (`as_subclass`).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import get_default_nowrap_functions

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.graph.tensor_classes import PLAIN_CLASSES, dispatches, overrides
from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: what `class MyTensor(torch.Tensor)` inherits
DEFAULT: Any = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]  # a classmethod, bound


def overriding(ev: Interpreter, values: Iterable[Any]) -> tuple[type, ...]:
    """The classes among the types of `values` that override, in torch's order: as they come, subclasses before their bases."""
    found: list[type] = []
    for value in values:
        cls = ev.type_of(value) if type(value) is FakeTensor else type(value)
        if cls in found or not overrides(cls):
            continue
        place = next((number for number, other in enumerate(found) if issubclass(cls, other)), len(found))
        found.insert(place, cls)
    return tuple(found)


def arguments(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Arguments and what lists and tuples among them hold."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def call(ev: Interpreter, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], relevant: Iterable[Any]) -> Any:
    """func(*args, **kwargs) as the first override among `relevant` has it that knows how; NotImplemented where there is none."""
    if ev.recorder.overrides_off:
        return NotImplemented
    classes = overriding(ev, relevant)
    if not classes:
        return NotImplemented
    for cls in classes:
        result = ev.call(ev.getattr(cls, "__torch_function__"), [func, classes, tuple(args), dict(kwargs)])
        if result is not NotImplemented:
            return result
    names = ", ".join(cls.__qualname__ for cls in classes)
    graph_break("unsupported_tensor", f"no override of {names} implements {getattr(func, '__name__', func)}")


def default(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The model of `torch.Tensor.__torch_function__`: run on plain tensors, give the results the class."""
    cls, func, classes, given, *rest = [*args, *kwargs.values()]
    named = rest[0] if rest and rest[0] is not None else {}
    if not all(issubclass(cls, other) for other in classes):
        return NotImplemented
    with overrides_off(ev):
        if isinstance(func, types.FunctionType):
            result = ev.call(func, list(given), dict(named))
        else:
            result = ev.torch_native(func, *given, **named)
    if func in get_default_nowrap_functions():
        return result
    return _converted(ev, result, cls, {id(value) for value in arguments(given, named)})


def _converted(ev: Interpreter, value: Any, cls: type, older: set[int]) -> Any:
    """`value` with the class on every tensor in it. older: the identities of those that existed before the call."""
    if type(value) is FakeTensor:
        if issubclass(ev.type_of(value), cls):
            return value
        return as_subclass(ev, value, cls) if id(value) in older else set_class(ev, value, cls)
    if isinstance(value, (tuple, list)):
        parts = [_converted(ev, item, cls, older) for item in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else type(value)(parts)
    return value


def as_subclass(ev: Interpreter, tensor: FakeTensor, cls: type) -> FakeTensor:
    """The model of `Tensor.as_subclass`: another tensor over the same memory, with the same history."""
    if not issubclass(cls, torch.Tensor) or dispatches(cls):
        graph_break("unsupported_tensor", f"as_subclass({cls.__qualname__})")
    with overrides_off(ev):
        return set_class(ev, ev.torch_native(torch.Tensor.view_as, tensor, tensor), cls)


def set_class(ev: Interpreter, tensor: FakeTensor, cls: type) -> FakeTensor:
    ev.recorder.python_type[id(tensor)] = cls
    ev.recorder.overriding |= overrides(cls)
    return tensor


@contextmanager
def overrides_off(ev: Interpreter) -> Iterator[None]:
    """Within the block nothing is overridden."""
    ev.recorder.overrides_off += 1
    try:
        yield
    finally:
        ev.recorder.overrides_off -= 1


def own_class(ev: Interpreter, tensor: FakeTensor) -> type | None:
    """The class of a tensor that is neither torch's own nor a fake's."""
    cls = ev.type_of(tensor)
    return None if cls in PLAIN_CLASSES else cls


class TensorSuper:
    """`super(start, tensor)`: Python's own would look at the class of the fake."""

    def __init__(self, start: type, owner: type, tensor: FakeTensor) -> None:
        self.__thisclass__ = start
        self.__self_class__ = owner
        self.__self__ = tensor


def special(ev: Interpreter, tensor: Any, name: str, *args: Any) -> Any:
    """What a special method that a tensor's class defines in Python returns; ABSENT where it defines none."""
    cls = own_class(ev, tensor) if type(tensor) is FakeTensor else None
    raw = ABSENT if cls is None else ev.heap.class_lookup(cls, name)
    if not isinstance(raw, types.FunctionType) or raw is getattr(torch.Tensor, name, None):
        return ABSENT
    return ev.call(ev.heap.class_value(cls, name, raw), [tensor, *args])  # type: ignore[arg-type]  # a class, as raw was found


def operator_of(ev: Interpreter, left: Any, right: Any, names: tuple[str, str, str]) -> Any:
    """An operator of which a tensor's class may define the (method, reflected method, in-place method); ABSENT if it does not."""
    method, reflected, inplace = names
    tries = [(left, method, right), (right, reflected, left)]
    types_ = ev.type_of(left), ev.type_of(right)
    if types_[0] is not types_[1] and issubclass(types_[1], types_[0]):
        tries.reverse()
    if inplace:
        tries.insert(0, (left, inplace, right))
    for operand, name, other in tries:
        result = special(ev, operand, name, other)
        if result is not ABSENT and result is not NotImplemented:
            return result
    return ABSENT
