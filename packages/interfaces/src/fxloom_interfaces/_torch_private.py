"""Every private name of torch that the interfaces use."""

from __future__ import annotations

import torch

#: Sets grad mode at once; the public `torch.set_grad_enabled` is an object with more to it.
set_grad_enabled = torch._C._set_grad_enabled
