"""Tensors indexed by symbolic numbers: `x[n]`, `x[:, n, 2:]`, `x[n] = 1`.

torch's C++ code takes no symbolic number among the items of an index. Each one becomes a `select`, which is what torch makes
of an integer, and the rest of the index is applied to what is left.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo import symbolic_data
from fxloom_dynamo.symbolic_data import is_symbolic_data
from fxloom_interfaces import symbolic_math

if TYPE_CHECKING:
    from fxloom_dynamo.recorder import Recorder


def is_symbolic_index(index: Any) -> bool:
    """True when a symbolic integer is an item of the index, or in a list that is."""
    if type(index) is list and any(isinstance(item, (list, tuple)) for item in index):
        return False  # which torch takes for a tuple, with a warning
    items = index if type(index) is tuple else (index,)
    return any(type(item) is torch.SymInt or _is_symbolic_list(item) for item in items)


def _is_symbolic_list(item: Any) -> bool:
    return type(item) is list and is_symbolic_data((item,))


def get(recorder: Recorder, tensor: Any, index: Any) -> Any:
    """`tensor[index]`"""
    part, rest = _selected(recorder, tensor, index)
    return recorder.call_function(operator.getitem, (part, rest), {}) if rest else part


def put(recorder: Recorder, tensor: Any, index: Any, value: Any) -> None:
    """`tensor[index] = value`"""
    part, rest = _selected(recorder, tensor, index)
    recorder.call_function(operator.setitem, (part, rest or (...,), value), {})


def _selected(recorder: Recorder, tensor: Any, index: Any) -> tuple[Any, tuple[Any, ...]]:
    """The part that the symbolic items select, and the other items."""
    items = index if type(index) is tuple else (index,)
    places_of = {"device": torch.device("cpu"), "dtype": torch.int64}
    items = tuple(symbolic_data.tensor(recorder, item, places_of) if _is_symbolic_list(item) else item for item in items)
    rank = tensor.dim()
    taken = sum(_axes(item) for item in items)
    if taken > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    axis, new, places = 0, 0, []
    for item in items:
        new += item is None
        if type(item) is torch.SymInt:
            _check_bounds(item, tensor.shape[axis], axis + new)
            places.append((axis, item))
        axis += rank - taken if item is ... else _axes(item)
    for place, item in reversed(places):
        tensor = recorder.call_function(torch.select, (tensor, place, item), {})
    return tensor, tuple(item for item in items if type(item) is not torch.SymInt)


def _check_bounds(index: Any, extent: Any, axis: int) -> None:
    """Where only running the graph tells the index, have it checked as torch does."""
    if not index.node.has_hint():
        text = f"index {{}} is out of bounds for dimension {axis} with size {{}}"
        for condition in (index >= -extent, index < extent):
            symbolic_math.check(condition, text, "IndexError", index, extent)


def _axes(item: Any) -> int:
    """How many axes an item of an index is for."""
    if item is None or item is ... or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return 1


OPERATORS: dict[Any, Callable[..., Any]] = {operator.getitem: get, operator.setitem: put}
