"""Private names of torch that this package uses, and why. Missing where torch was built without CUDA, where nobody asks for them."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: `torch.cuda.current_device` without its checks, which a launch can't afford
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

#: the address of a device's current stream; `torch.cuda.current_stream(index).cuda_stream` makes a Python object first
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
