"""A device that torch knows through a plugin only (PrivateUse1), in a process of its own since registering one is for good."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import torch.utils._pytree as pytree
import torch.utils.backend_registration as registration
import fxloom

class Module(registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

registration._setup_privateuseone_for_python_backend("npu", backend_module=Module())

class OnNpu(torch.Tensor):
    "A tensor of the device, whose memory is the CPU's."
    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype, device="npu:0")
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        kwargs = {**(kwargs or {}), **({"device": "cpu"} if "device" in (kwargs or {}) else {})}
        args, kwargs = pytree.tree_map(lambda a: a.held if isinstance(a, OnNpu) else a, (args, kwargs))
        return pytree.tree_map(lambda r: OnNpu(r) if isinstance(r, torch.Tensor) else r, op(*args, **kwargs))

def matmul(a, b):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        return a.to(torch.get_autocast_dtype("npu")) @ b.to(torch.get_autocast_dtype("npu"))

library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
library.impl("matmul", matmul, "AutocastPrivateUse1")
others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")

x = OnNpu(torch.randn(4, 4))
for backend in ("eager", "aot_eager"):
    compiled = fxloom.compile(lambda x: x @ x, backend=backend)
    found = [compiled(x).dtype]
    with torch.autocast("npu", torch.bfloat16):
        found.append(compiled(x).dtype)
    found.append(compiled(x).dtype)
    print(backend, found == [torch.float32, torch.bfloat16, torch.float32])
"""


def test_autocast() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["eager", "True", "aot_eager", "True"], done.stderr
