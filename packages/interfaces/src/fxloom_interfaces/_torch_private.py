"""Every private name of torch that the interfaces use."""

from __future__ import annotations

from collections.abc import Callable

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
