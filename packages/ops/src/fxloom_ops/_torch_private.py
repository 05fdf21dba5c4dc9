"""Every private torch name that this package uses. A new torch release is this file's work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

_AUTOGRAD_KEYS = ("AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutogradMPS", "AutogradXPU", "AutogradOther", "ADInplaceOrView")


def within_autograd() -> AbstractContextManager[Any]:
    """Within the block operators are differentiable, though it is run by the kernel of one, below autograd."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for name in _AUTOGRAD_KEYS:
        excluded -= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return torch._C._ForceDispatchKeyGuard(included, excluded)  # type: ignore[no-any-return]  # untyped


def custom_operator(op: Any) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None] | None:
    """(backward, setup_context) of an operator made by `torch.library.custom_op`; None for another one."""
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(op._schema.name)
    return None if found is None else (found._backward_fn, found._setup_context_fn)


def fake_kernel(op: Any) -> Callable[..., Any] | None:
    """The fake kernel that a library has registered for an operator by `torch.library.register_fake`, if it has."""
    from torch._library.simple_registry import singleton

    kernel = singleton.find(op._schema.name).fake_impl.kernel
    return None if kernel is None else kernel.func


def composite(op: Any) -> bool:
    """True when the operator is defined by other operators (CompositeImplicitAutograd), so `op.decompose` works.

    Derivatives that devices have kernels for (`silu_backward`, `mish_backward`) are not, although other devices get them so: the
    kernels compute half types in float32, where the definition rounds after each step.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = op.name()
    try:
        return bool(has_kernel(name, "CompositeImplicitAutograd")) and not (
            op._schema.name.endswith("_backward") and has_kernel(name, "CPU")
        )
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
