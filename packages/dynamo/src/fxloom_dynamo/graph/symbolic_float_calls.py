"""Calls of torch's functions that insist on plain floats, made with symbolic ones.

In: a call with a symbolic float among its arguments. Out: its result, recorded so that one graph serves every number: as it
is, where torch's kernels take symbolic numbers; else a Python function of torch by what it calls; else an operator by its Tensor-scalar
overload (`fxloom_ops.scalar_overloads`). What none of these serves is recorded as it is, for the present number.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunction, has_autocast_rule
from fxloom_ops.scalar_overloads import accepts, scalar_overload, takes_scalar_int
from fxloom_ops.schema import schema_info
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder

aten = torch.ops.aten
#: names by which Python functions of torch ask whether someone overrides them
_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def call(recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], usual: Callable[[], Any]) -> Any:
    """See the module's docstring. usual: records the call as it is."""
    env = recorder.fake_mode.env
    given = (*args, *kwargs.values())
    if env is not None and takes_scalar_int(func) and any(type(value) is torch.SymInt for value in given):
        result = by_scalar_overload(recorder, func, args, kwargs)
        return usual() if result is NotImplemented else result
    if env is None or not _has_float(given):
        return usual()
    if not _derivative_asks(recorder, func, args, kwargs):
        try:
            with env.keep_floats_symbolic():
                return usual()
        except Exception:
            if not env.float_value_wanted:
                raise
    result = _inside(recorder, func, args, kwargs) if type(func) is types.FunctionType else by_scalar_overload(recorder, func, args, kwargs)
    if result is NotImplemented and type(func) is types.BuiltinFunctionType and getattr(torch, func.__name__, func) is not func:
        return recorder.call_function(getattr(aten, func.__name__), args, kwargs)  # graphs would name it as the Python function
    return usual() if result is NotImplemented else result


def _derivative_asks(recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is only when the call is differentiated that torch wants the plain number: it is tried out on the fakes."""
    env = recorder.fake_mode.env
    name = getattr(func, "__name__", "_")
    leaves = [value for value in (*args, *kwargs.values()) if type(value) is FakeTensor and value.requires_grad]
    if env is None or not leaves or not torch.is_grad_enabled() or name.endswith("_") or recorder.in_transform():
        return False
    if type(func) is types.FunctionType:
        writes = "inplace" in func.__code__.co_varnames and any(value is True for value in (*args, kwargs.get("inplace")))
        if writes or not (func.__module__ or "").startswith("torch."):
            return False
    if kwargs.get("out") is not None:
        return False
    with DisableTorchFunction(), env.keep_floats_symbolic():
        try:
            made = func(*args, **kwargs)
        except Exception:
            return False  # it is seen below
        if type(made) is not FakeTensor or not made.requires_grad:
            return False
        try:
            torch.autograd.grad(made, leaves, torch.empty_like(made), allow_unused=True)
        except Exception:
            return env.float_value_wanted
    return False


def _has_float(values: tuple[Any, ...]) -> bool:
    return any(type(v) is torch.SymFloat or type(v) in (list, tuple) and _has_float(tuple(v)) for v in values)


def _inside(recorder: Recorder, func: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a Python function of torch calls is recorded call by call."""
    if not (func.__module__ or "").startswith("torch.") or recorder.in_transform():
        return NotImplemented
    unasked = {name: _nobody for name in _ASKS if name in func.__globals__}
    copy = types.FunctionType(func.__code__, {**func.__globals__, **unasked}, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    with recorder.mode:
        return copy(*args, **kwargs)


def _nobody(*_: Any) -> bool:
    return False


def by_scalar_overload(recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call by an operator's Tensor-scalar overload; NotImplemented where there is none."""
    tensors = [value for value in (*args, *kwargs.values()) for value in (value if type(value) in (list, tuple) else (value,))]
    fakes = [value for value in tensors if type(value) is FakeTensor]
    if recorder.in_transform():  # torch transforms no operators with derivatives of their own
        return NotImplemented
    casting = [device for device in {fake.device.type for fake in fakes} if torch.is_autocast_enabled(device)]
    differentiated = torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes)
    if "input" in kwargs:  # torch's functions call so what operators call `self`
        kwargs = {("self" if name == "input" else name): value for name, value in kwargs.items()}
    name = getattr(func, "__name__", "")
    for overload in _overloads(func, name):
        if any(_is_cast(overload, device) for device in casting):
            continue
        made = scalar_overload(overload, differentiated) if accepts(overload, args, kwargs) else None
        if made is not None:
            try:
                return recorder.call_function(made, args, kwargs)
            except Exception:  # a size goes by what is in a tensor; or else the call says itself what is wrong with it
                return NotImplemented
    if differentiated and name.endswith("_") and type(func) is types.MethodDescriptorType:
        copy = recorder.call_function(torch.clone, args[:1], {})  # its derivative is that of what was there before
        result = by_scalar_overload(recorder, getattr(torch.Tensor, name[:-1], None), (copy, *args[1:]), kwargs)
        return result if result is NotImplemented else recorder.call_function(torch.Tensor.copy_, (args[0], result), {})
    return NotImplemented


def _is_cast(op: Any, device: str) -> bool:
    """Whether autocast changes the dtypes that an operator, or what it is composed of, gets there."""
    return schema_info(op).composite or has_autocast_rule(op, device)


def _overloads(func: Any, name: str) -> list[Any]:
    if isinstance(func, torch._ops.OpOverload):
        return [func]
    packet = func if isinstance(func, torch._ops.OpOverloadPacket) else getattr(aten, name, None)
    return [getattr(packet, name) for name in packet.overloads()] if isinstance(packet, torch._ops.OpOverloadPacket) else []
