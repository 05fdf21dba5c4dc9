"""Devices that this machine doesn't have, for fakes: `torch.zeros(2, device="cuda")`, `x.to("cuda")`, `module.cuda()`.

In: calls of torch's functions under a fake mode. Out: the same call with the device `meta` in the place of an absent one, since
torch's C++ code refuses that before any operator is reached; the context variable `wanted` says which device is meant, and
operators report that one.
Invariant: without a fake mode nothing here is active, and torch's own error stands.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxloom_shapes._torch_private import disable_torch_function, makes_by_default, parse_to
from fxloom_shapes._torch_private import torchs_default as default
from fxloom_shapes.errors import NoFakeKernel
from fxloom_shapes.fake.descriptor import absent_devices_met, usable
from fxloom_shapes.fake.tensor import FakeTensor

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
        # nearly all calls
        if not kwargs and not absent_devices_met and default.CURRENT_DEVICE is None and func not in _READ_DEVICES:
            return func(*args)
        # a method of Tensor that calls the one of that name in C++ comes here again
        if type(func) is types.FunctionType and _running.get() is not func and not _ASKS.isdisjoint(func.__code__.co_names):
            token = _running.set(func)
            try:
                with self:  # what it calls may make tensors beside those that it was given
                    return _body_of(func)(*args, **(kwargs or {}))
            finally:
                _running.reset(token)
        return call(func, args, kwargs or {})


#: the function in Python whose body runs
_running: ContextVar[Any] = ContextVar("fxloom_running_function", default=None)
#: what torch's functions in Python begin with: whether there are modes that want to be called instead
_ASKS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


def _body_of(func: types.FunctionType) -> Callable[..., Any]:
    """`func` with its checks for overriding modes answered with no."""
    names = {**func.__globals__, **dict.fromkeys(_ASKS, lambda *relevant: False)}
    body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def absent_devices() -> AbstractContextManager[Any]:
    """Within the block torch's functions may be called on fakes for devices that this machine doesn't have."""
    return nullcontext() if torch.accelerator.is_available() else AbsentDevices()


def with_requested_device(kwargs: dict[str, Any]) -> dict[str, Any]:
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
    special = _SPECIAL.get(func)
    if special is not None:
        return special(func, *args, **kwargs)
    if default.CURRENT_DEVICE is not None and kwargs.get("device") is None and makes_by_default(func):
        kwargs = {**kwargs, "device": default.CURRENT_DEVICE}
    if func is parse_to and args and type(args[0]) is int:
        args = (_numbered(args[0]), *args[1:])
    if func is torch.Tensor.new_tensor and kwargs.get("device") is None:
        kwargs = {**kwargs, "device": args[0].device}
    asked = _absent(kwargs.get("device"))
    if asked is None and kwargs.get("pin_memory"):
        return _pinned(func(*args, **{**kwargs, "pin_memory": False}))
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
    with disable_torch_function():  # else the default device is added
        there = func(*args, **kwargs)
    made = call(torch.Tensor.to, (there, device), {})
    return made.requires_grad_() if requires_grad else made


_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.xpu})


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


# --- methods that mean another thing on a machine with the device ---------------------------------------------------------


def _type(func: Callable[..., Any], tensor: torch.Tensor, dtype: Any = None, *rest: Any, **options: Any) -> Any:
    """`tensor.type("torch.cuda.FloatTensor")`, by name or by the type of that name; without one, the tensor's own."""
    if dtype is None:
        text: str = func(tensor)
        return text if usable(tensor.device.type) else text.replace("torch.meta.", f"torch.{tensor.device.type}.")
    text = dtype if isinstance(dtype, str) else f"{getattr(dtype, '__module__', '')}.{getattr(dtype, '__name__', '')}"
    place, _, name = text.removeprefix("torch.").rpartition(".")
    if not text.startswith("torch.") or place not in _TYPED_DEVICES or usable(place):
        return func(tensor, dtype, *rest, **options)
    plain = getattr(torch, name, None)
    if not isinstance(plain, type(torch.FloatTensor)):
        raise ValueError(f"invalid type: {text!r}")
    return _move(torch.Tensor.to, "to", (tensor, _numbered(place), plain.dtype), {})


def _pin_memory(func: Callable[..., Any], tensor: torch.Tensor, *device: Any, **options: Any) -> Any:
    """`tensor.pin_memory()`: a copy in memory that a device can read; such memory is returned as it is."""
    if type(tensor) is not FakeTensor:
        return func(tensor, *device, **options)
    if not tensor.is_cpu:
        raise RuntimeError(f"cannot pin '{call(torch.Tensor.type, (tensor,), {})}' only dense CPU tensors can be pinned")
    if tensor.storage_token.pinned:
        return tensor
    copy = tensor.clone()
    if copy.stride() != tensor.stride():
        raise NoFakeKernel("pin_memory", f"pin_memory of a tensor with gaps (strides {tensor.stride()})")
    return _pinned(copy)


def _is_pinned(func: Callable[..., Any], tensor: torch.Tensor, *device: Any, **options: Any) -> bool:
    return tensor.storage_token.pinned if type(tensor) is FakeTensor else func(tensor, *device, **options)


def _pinned(made: Any) -> Any:
    if type(made) is FakeTensor:
        made.storage_token.pinned = True
    return made


#: torch's names of devices in the names of types
_TYPED_DEVICES = frozenset({"cuda", "xpu"})
_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.Tensor.type: _type,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.is_pinned: _is_pinned,
}
#: may name a device although no argument is called so
_READ_DEVICES = _MOVES | {parse_to, torch.Tensor.new_tensor, *_SPECIAL}
