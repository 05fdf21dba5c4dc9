"""Every private name of torch that capture uses, in one place, so that a new release is one file's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode, resolve_name
from torch.utils import _device as torchs_default
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

from fxloom_interfaces._torch_private import ATTENTION_KERNELS
from fxloom_shapes import FakeMode
from fxloom_shapes.fake.devices import AbsentDevices

#: the C base class of tensors; its methods and getset descriptors are what `TorchFunctionMode` hands over
TensorBase: type = torch._C.TensorBase
set_grad_enabled_raw = torch._C._set_grad_enabled
DisableTorchFunction = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass
assert_tensor = torch._assert
InferenceMode: Any = torch._C._InferenceMode
#: the `__torch_function__` of classes that override nothing
disabled_torch_function: Any = torch._C._disabled_torch_function_impl
attention_kernels = ATTENTION_KERNELS
get_tracing_state: Any = torch._C._get_tracing_state
#: ask whether an argument overrides torch functions, or a mode does
HAS_TORCH_FUNCTION: tuple[Any, ...] = (
    torch._C._has_torch_function,
    torch._C._has_torch_function_unary,
    torch._C._has_torch_function_variadic,
)
is_function_mode_enabled: Any = torch._C._is_torch_function_mode_enabled


def foreign_modes() -> str:
    """What is in force that would see, or change, the operators of a graph one by one; empty when nothing is.

    Under a fake mode of fxloom a captured graph runs on fakes as the program would.
    """
    if any(type(mode) not in (DeviceContext, AbsentDevices) for mode in _get_current_function_mode_stack()):
        return "a torch function mode"
    if any(type(mode) is not FakeMode for mode in _get_current_dispatch_mode_stack()):
        return "a torch dispatch mode"
    if torch.autograd.forward_ad._current_level >= 0:  # tensors may have tangents, which no graph passes on
        return "forward-mode differentiation"
    if torch._C._functorch.peek_interpreter_stack() is not None:  # tensors are wrapped
        return "a transform of torch.func"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    return ""


def under_fake_mode() -> bool:
    """True where what runs, runs on fakes."""
    return any(type(mode) is FakeMode for mode in _get_current_dispatch_mode_stack())


@contextmanager
def outside_modes() -> Iterator[None]:
    """Operators within the block run for real: no mode sees them but the program's choice of a device."""
    stack = [_pop_mode() for _ in _get_current_function_mode_stack()][::-1]
    devices = [mode for mode in stack if type(mode) is DeviceContext]
    try:
        with _disable_current_modes():
            for mode in devices:
                _push_mode(mode)
            try:
                yield
            finally:
                for _ in devices:
                    _pop_mode()
    finally:
        for mode in stack:
            _push_mode(mode)


def tensor_numpy() -> Any:
    """torch's own reading of NumPy: functions of tensors. Imported on first use, since few programs have arrays.

    It would read its default dtypes from the settings of torch's compile stack, and import all of that for it (1.3 s). So it is told
    NumPy's own, unless somebody has said otherwise.
    """
    import torch._numpy
    from torch._numpy import _dtypes_impl

    if _dtypes_impl._default_dtypes is None:
        torch._numpy.set_default_dtype()
    return torch._numpy


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The raw bits of the tensor's dispatch key set."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def native_device(tensor: torch.Tensor) -> torch.device:
    """The device that C++ code sees; a fake tensor may report another."""
    return TensorBase.device.__get__(tensor)  # type: ignore[attr-defined, no-any-return]  # a getset descriptor


def storage_id(tensor: torch.Tensor) -> int:
    """The same for two tensors exactly when they share storage."""
    return int(tensor.untyped_storage()._cdata)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Have the tensor count as written `version` times, for autograd."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


#: whether a profiler runs in this thread
profiler_enabled = torch._C._autograd._profiler_enabled

__all__ = [
    "HAS_TORCH_FUNCTION",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "InferenceMode",
    "TensorBase",
    "TorchDispatchMode",
    "TorchFunctionMode",
    "assert_tensor",
    "attention_kernels",
    "device_constructors",
    "disabled_torch_function",
    "dispatch_keys",
    "foreign_modes",
    "get_tracing_state",
    "is_function_mode_enabled",
    "outside_modes",
    "profiler_enabled",
    "resolve_name",
    "set_grad_enabled_raw",
    "set_version",
    "storage_id",
    "tensor_numpy",
    "torchs_default",
]


#: code of the frames that a call of a module consists of, before `forward`
MODULE_CALLS = (torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__)


def has_autocast_rule(op: Any, device: str) -> bool:
    """Whether autocast handles the operator on a type of device."""
    key = f"Autocast{torch._C._dispatch_key_for_device(device)}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))

#: one step of an optimizer over lists of tensors, as an operator
FUSED_OPTIMIZERS = (torch._fused_adam_, torch._fused_adamw_, torch._fused_sgd_, torch._fused_adagrad_)
