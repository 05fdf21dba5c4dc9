"""Devices that this machine doesn't have, for fakes: `torch.zeros(2, device="cuda")`, `x.to("cuda")`, `module.cuda()`.

torch's C++ code refuses such a device before any operator is reached, so the call is made for `meta` and `wanted` says which
device is meant: operators then report that one. Without a fake mode nothing here is active, and torch's own error stands.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxloom_shapes._torch_private import parse_to
from fxloom_shapes.descriptor import absent_devices_met, usable

_META = torch.device("meta")
#: what `meta` stands for in the call that runs
wanted: ContextVar[torch.device | None] = ContextVar("fxloom_wanted_device", default=None)


#: what functions and methods of torch are
_FUNCTIONS = frozenset(
    {types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType, types.WrapperDescriptorType}
)


class AbsentDevices(TorchFunctionMode):
    """Lets torch's functions be called for devices that are not there."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if type(func) not in _FUNCTIONS:  # objects of TorchScript don't compare
            return func(*args, **(kwargs or {}))
        if not kwargs and not absent_devices_met and func not in _READ_DEVICES:  # nearly all calls
            return func(*args)
        return call(func, args, kwargs or {})


def absent_devices() -> AbstractContextManager[Any]:
    """Within the block torch's functions may be called on fakes for devices that this machine doesn't have."""
    return nullcontext() if torch.accelerator.is_available() else AbsentDevices()


def meant(kwargs: dict[str, Any]) -> dict[str, Any]:
    """An operator's keyword arguments with the device that is meant, for those who keep them."""
    asked = kwargs.get("device")
    if asked is None or asked.type != "meta":
        return kwargs
    device = wanted.get()
    return kwargs if device is None else {**kwargs, "device": device}


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`func(*args, **kwargs)`, where it may name an absent device."""
    if func in _MOVES:
        return _move(func, func.__name__, args, dict(kwargs))
    if func is parse_to and args and type(args[0]) is int:
        args = (_numbered(args[0]), *args[1:])
    if func is torch.Tensor.new_tensor and kwargs.get("device") is None:
        kwargs = {**kwargs, "device": args[0].device}
    asked = _absent(kwargs.get("device"))
    if asked is None:
        there = None if kwargs.get("device") is not None else _place_of(args)
        with nullcontext() if there is None else _meaning(there):
            return func(*args, **kwargs)
    if func is torch.Tensor.new_tensor:
        func, args = torch.tensor, args[1:]
    if func in _FROM_DATA:
        return _from_data(func, args, dict(kwargs), asked)
    with _meaning(asked):
        return func(*args, **{**kwargs, "device": _META, **({"pin_memory": False} if kwargs.get("pin_memory") else {})})


def _place_of(args: tuple[Any, ...]) -> torch.device | None:
    """The absent device of the tensors: what the function makes by their options is meant for it."""
    for value in args:
        found = _place_of(tuple(value)) if type(value) in (tuple, list) else None
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            found = _absent(value.device)
        if found is not None:
            return found
    return None


def _absent(device: Any) -> torch.device | None:
    """The device, with its number, where this machine has none of its type. A number alone is of an accelerator."""
    if not _names_device(device):
        return None
    found = _numbered(device)
    return None if usable(found.type) else found


@contextmanager
def _meaning(device: torch.device) -> Iterator[None]:
    token = wanted.set(device)
    try:
        yield
    finally:
        wanted.reset(token)


def _from_data(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
    """`torch.tensor(data, device=)`: made on the CPU, where its values are known, then moved."""
    del kwargs["device"]
    requires_grad = kwargs.pop("requires_grad", False)
    made = call(torch.Tensor.to, (func(*args, **kwargs), device), {})
    return made.requires_grad_() if requires_grad else made


_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.xpu})
#: may name a device although no argument is called so
_READ_DEVICES = _MOVES | {parse_to, torch.Tensor.new_tensor}


def _move(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.to(...)`, `tensor.cuda(...)`"""
    tensor, *rest = args
    options = dict(kwargs)
    if name == "to":
        target, rest = _target(rest, options)
    else:
        given = rest.pop(0) if rest else options.pop("device", None)
        target = _numbered(name if given is None else f"{name}:{given}" if isinstance(given, int) else given)
    source: torch.device = tensor.device
    if usable(source.type) and (target is None or usable(target.type)):
        return func(*args, **kwargs)
    if target is None or source == target:
        return torch.Tensor.to(tensor, *rest, **options) if rest or options else tensor
    # a copy is a must: to C++ the tensor may be on `meta` already
    options["copy"] = True
    if usable(target.type):
        return torch.Tensor.to(tensor, target, *rest, **options)
    with _meaning(target):
        return torch.Tensor.to(tensor, _META, *rest, **options)


def _target(rest: list[Any], options: dict[str, Any]) -> tuple[torch.device | None, list[Any]]:
    """The device that `.to(...)` names, None where it names none, and its other arguments."""
    other = options.pop("other", None)
    if other is None and rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    if other is not None:
        return other.device, [other.dtype, *rest]
    device = options.pop("device", None)
    if device is None and rest and _names_device(rest[0]):
        device = rest.pop(0)
    return (None if device is None else _numbered(device)), rest


def _names_device(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) or type(value) is int


def _numbered(device: Any) -> torch.device:
    if type(device) is int and not torch.accelerator.is_available():
        device = f"cuda:{device}"  # what a number alone means where none is found is the commonest
    found = torch.device(device)
    return found if found.index is not None or found.type in ("cpu", "meta") else torch.device(found.type, 0)
