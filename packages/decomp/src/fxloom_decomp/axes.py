"""What rules do along one axis: take a part of it, pick positions, lay numbers out along it.

In: a tensor and an axis counted from 0. Out: a tensor. Nothing here checks positions: rules hold them inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def part(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    """The positions from `start` to `end`, a view."""
    return torch.ops.aten.slice.Tensor(x, axis, start, end)  # type: ignore[no-any-return]  # a tensor


def picked(x: Tensor, axis: int, place: Tensor) -> Tensor:
    """The elements at the positions `place`, whose axes stand where the axis was."""
    return torch.ops.aten._unsafe_index.Tensor(x, [*[None] * axis, place])  # type: ignore[no-any-return]  # a tensor


def along(values: Tensor, axis: int, rank: int) -> Tensor:
    """A line of numbers as a tensor of that rank, to be broadcast along all other axes."""
    return values.reshape([-1 if other == axis else 1 for other in range(rank)])


def number_like(value: Any, x: Tensor) -> Tensor:
    """A number in the type of `x`, without axes."""
    return torch.full((), value, dtype=x.dtype, device=x.device)
