"""Every private torch name that this package uses. A new torch release is this file's work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._library.fake_impl import set_ctx_getter as _set_ctx_getter
from torch._library.simple_registry import singleton as _custom_ops
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


def fake_kernel(op: Any) -> Callable[..., Any] | None:
    """What `torch.library.register_fake` was given for an operator; None for one without."""
    found = _custom_ops.find(op.name().partition(".")[0]).fake_impl.kernel
    return None if found is None else found.func


def context_for_fake_kernels(context: Any) -> AbstractContextManager[None]:
    """Within the block `torch.library.get_ctx()` gives `context`."""
    return _set_ctx_getter(lambda: context)


def composite(op: Any) -> bool:
    """True when the operator is defined by other operators (CompositeImplicitAutograd), so `op.decompose` works."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))
    except RuntimeError:  # of TorchScript's own, as `aten.size`: the dispatcher doesn't know them
        return False


def counts_within(op: Any) -> bool:
    """True when nothing around the operator's kernel counts a write as a version (ADInplaceOrView), but operators within it do.

    Kernels of a device alone (fused optimizers, running statistics) don't, save those of foreach operators, for all devices alike.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(op.name(), "CompositeExplicitAutograd")) and not has_kernel(op.name(), "ADInplaceOrView")


def decompose(op: Any, args: Any, kwargs: Any) -> Any:
    """What torch's own kernel makes of an operator that is defined by others; NotImplemented for the rest.

    `OpOverload.decompose` prefers kernels in Python that importing parts of torch registers: with them dropout draws other
    numbers, and whether they are there depends on what the process happened to import.
    """
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs) if composite(op) else NotImplemented


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
