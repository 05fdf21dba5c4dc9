"""Checks in the graph of the values that eager's kernels require.

In: a tensor of truth values and a message. Out: a call in the graph, which raises when the graph runs, as eager does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def expect(holds: Tensor, message: str) -> None:
    """RuntimeError with `message` when the graph runs, unless all elements are True. NaN compares as False."""
    torch.ops.aten._assert_async.msg(torch.all(holds), message)
