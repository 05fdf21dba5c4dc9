"""Every private torch name that this package uses. A new torch release is this file's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "disable_torch_dispatch", "plain_batch_norm"]

#: context manager: below, neither dispatch modes nor tensor subclasses see operators
disable_torch_dispatch = torch._C._DisableTorchDispatch


@contextmanager
def plain_batch_norm() -> Iterator[None]:
    """Within, `batch_norm` and RNNs take ATen's own operators whatever the device, not cuDNN's.

    cuDNN's write their running statistics without saying so in the schema.
    """
    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)
