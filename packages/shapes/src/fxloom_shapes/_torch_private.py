"""Every private torch name that this package uses, so that a new torch release is this file's work."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._library.fake_impl import set_ctx_getter as _set_ctx_getter
from torch.utils import _device as torchs_default
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "TorchDispatchMode",
    "disable_torch_dispatch",
    "disable_torch_function",
    "disabled_torch_function",
    "enable_python_dispatcher",
    "make_wrapper",
    "makes_by_default",
    "onednn_has_bfloat16",
    "onednn_has_float16",
    "parse_to",
    "storage_identity",
    "symbolic_kernels",
    "torchs_default",
]

#: `make_wrapper(cls, size, stride, offset, memory_format, dtype, layout, device, pin_memory, requires_grad)`
make_wrapper = torch.Tensor._make_wrapper_subclass

#: context manager: below, neither dispatch modes nor tensor subclasses see operators
disable_torch_dispatch = torch._C._DisableTorchDispatch

#: context manager: below, neither modes nor subclasses see calls of torch's functions
disable_torch_function = torch._C.DisableTorchFunction

#: context manager: Python Meta kernels come first; the C++ ones don't take symbolic sizes
enable_python_dispatcher = torch._C._EnablePythonDispatcher

#: `__torch_function__` of a subclass that wants none
disabled_torch_function = torch._C._disabled_torch_function_impl


def symbolic_kernels(wanted: bool) -> AbstractContextManager[Any]:
    """Within the block operators work on symbolic sizes, where `wanted`."""
    return enable_python_dispatcher() if wanted else nullcontext()


def storage_identity(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage, while one of them is alive."""
    return int(tensor.untyped_storage()._cdata)


def set_lazy_bits(tensor: torch.Tensor, conj: bool, neg: bool) -> None:
    """Have the tensor's elements conjugated, negated on reading."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)


def has_lazy_bits(tensor: torch.Tensor) -> bool:
    """True for tensors whose elements are conjugated or negated on read."""
    return bool(tensor.is_conj() or tensor.is_neg())


def saved_tensors_hooks_active() -> bool:
    """True within a block of `torch.autograd.graph.saved_tensors_hooks` (`save_on_cpu` is one)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def context_for_fake_kernels(context: Any) -> AbstractContextManager[None]:
    """Within the block `torch.library.get_ctx()` gives `context`."""
    return _set_ctx_getter(lambda: context)


#: reads the arguments of `Module.to`
parse_to = torch._C._nn._parse_to


def makes_by_default(func: Any) -> bool:
    """True for functions that make tensors on the default device (`torch.set_default_device`), `torchs_default.CURRENT_DEVICE`."""
    return func in torchs_default._device_constructors()


def onednn_has_bfloat16() -> bool:
    """True where torch hands convolutions in bfloat16 to oneDNN, which asks for AVX-512 or better."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def onednn_has_float16() -> bool:
    """True where torch hands convolutions in float16 to oneDNN."""
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
