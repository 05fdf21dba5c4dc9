"""Every private name of torch that the interfaces use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.fx.graph_module

#: source of the modules that torch.fx has generated, by the name of the file that tracebacks show
GENERATED_SOURCES: dict[str, str] = torch.fx.graph_module._loader.eval_cache

#: Sets grad mode at once; the public `torch.set_grad_enabled` is an object with more to it.
set_grad_enabled = torch._C._set_grad_enabled

#: kernels of scaled_dot_product_attention by name: asks whether one may be used, lets it be used or not
ATTENTION_KERNELS: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    name: (getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(torch._C, f"_get_{name}_sdp_enabled")
}

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


def fake_of_library(op: Any) -> Callable[..., Any] | None:
    """The fake kernel that a library has registered for an operator by `torch.library.register_fake`, if it has."""
    from torch._library.simple_registry import singleton

    kernel = singleton.find(op._schema.name).fake_impl.kernel
    return None if kernel is None else kernel.func
