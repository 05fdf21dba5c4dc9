"""Emptiness of tensors whose sizes may be unbacked (known only when the graph runs).

In: a fake tensor and the dims that a rule reduces. Out: a bool, by which the rule takes or declines its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def is_empty(x: Tensor, dims: Iterable[int]) -> bool:
    """True when the tensor has no elements.

    dims: those that the rule reduces. An unbacked size among them raises DataDependent, so that the rule is not used; elsewhere it
    counts as not 0: a rule that is right for a tensor with elements is right for an empty one.
    """
    rank = x.dim()
    folded = {dim % rank for dim in dims} if rank else set()
    return any(_is_zero(extent, dim in folded) for dim, extent in enumerate(x.shape))


def _is_zero(extent: Any, ask: bool) -> bool:
    outcome: Any = extent == 0
    if isinstance(outcome, bool) or ask:
        return bool(outcome)
    return bool(outcome.node.guard_or_false("", 0))
