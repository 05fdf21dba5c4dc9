"""`aten.X_copy`, the functional variants of views: the view, and then a copy of it.

In: the operator's arguments. Out: new contiguous tensors, or NotImplemented where eager raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import Rule, decomposition

aten = torch.ops.aten

#: overloads whose results are one tensor each, by the name of the view
_ONE = {
    "alias": ("default",), "as_strided": ("default",), "detach": ("default",), "diagonal": ("default",), "expand": ("default",),
    "permute": ("default",), "select": ("int",), "slice": ("Tensor",), "squeeze": ("default", "dim", "dims"), "t": ("default",),
    "transpose": ("int",), "unsqueeze": ("default",), "view": ("default", "dtype"),
}  # fmt: skip


def _copied(view: Callable[..., Tensor]) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        return torch.clone(view(*args, **kwargs), memory_format=torch.contiguous_format)

    return rule


for _name, _overloads in _ONE.items():
    for _overload in _overloads:
        decomposition(getattr(getattr(aten, f"{_name}_copy"), _overload))(_copied(getattr(getattr(aten, _name), _overload)))


@decomposition(aten.narrow_copy.default)
def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    extent = x.shape[dim]
    if not 0 <= length <= extent or not -extent <= start <= extent or start % max(extent, 1) + length > extent and start != extent:
        return NotImplemented  # eager raises
    start = start + extent if start < 0 else start
    return torch.clone(aten.slice.Tensor(x, dim, start, start + length), memory_format=torch.contiguous_format)


@decomposition(aten.unbind_copy.int)
def unbind_copy(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [torch.clone(torch.select(x, dim, place), memory_format=torch.contiguous_format) for place in range(x.shape[dim])]


@decomposition(aten.split_copy.Tensor)
def split_copy(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return [torch.clone(piece, memory_format=torch.contiguous_format) for piece in aten.split.Tensor(x, size, dim)]


@decomposition(aten.split_with_sizes_copy.default)
def split_with_sizes_copy(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    return [torch.clone(piece, memory_format=torch.contiguous_format) for piece in aten.split_with_sizes.default(x, sizes, dim)]
