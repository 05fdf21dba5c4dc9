"""Tensors indexed by numbers that are not known while capturing: `x[n]`, `x[:, n, 2:]`, `x[n] = 1`, `x[x.argmax()]`.

In: a tensor and an index in which symbolic integers stand, or integer tensors without axes, which torch reads as numbers. Out:
recorded calls: each such item becomes a `select`, which is what torch makes of an integer, and the rest of the index is applied
to what is left.
Invariant: torch's C++ code never gets a symbolic number as an item of an index. An index or extent that only running the graph
tells is checked then, with torch's own error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.graph import symbolic_data
from fxloom_dynamo.graph.symbolic_data import is_symbolic_data
from fxloom_interfaces import symbolic_math
from fxloom_shapes import FakeTensor
from fxloom_shapes.fake.sizes import is_unbacked

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder


#: a tensor of these types among the items of an index says which elements to take
_MASKS = (torch.bool, torch.uint8)


def is_symbolic_index(recorder: Recorder, index: Any) -> bool:
    """True when an item of the index is a symbolic integer, a tensor that is read for one, or a list with symbolic integers."""
    if type(index) is list and any(isinstance(item, (list, tuple)) for item in index):
        return False  # which torch takes for a tuple, with a warning
    items = index if type(index) is tuple else (index,)
    return any(type(item) is torch.SymInt or _is_symbolic_list(item) or _is_read(recorder, item) for item in items)


def _is_symbolic_list(item: Any) -> bool:
    return type(item) is list and is_symbolic_data((item,))


def _is_read(recorder: Recorder, item: Any) -> bool:
    """Whether torch reads an item of an index for a number, and the graph is to do it."""
    if type(item) is not FakeTensor or item.constant is not None or item.desc.size or item.dtype in _MASKS:
        return False
    env = recorder.fake_mode.env
    return env is not None and env.options.capture_indices and not item.dtype.is_floating_point and not item.dtype.is_complex


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
    items = tuple(recorder.number_in(item) if _is_read(recorder, item) else item for item in items)
    rank = tensor.dim()
    taken = sum(_axes(item) for item in items)
    if taken > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    symbolic = [number for number, item in enumerate(items) if type(item) is torch.SymInt]
    axis, places, others = 0, [], []
    for number, item in enumerate(items):
        if type(item) is torch.SymInt:
            _check_bounds(item, tensor.shape[axis], number)
            places.append((axis, item))
        elif item is None and number < symbolic[-1]:  # the new axis has its stride by what follows before that is selected from
            tensor = recorder.call_function(torch.unsqueeze, (tensor, axis), {})
            others.append(slice(None))
            axis += 1
        else:
            others.append(item)
        axis += rank - taken if item is ... else _axes(item)
    for place, item in reversed(places):
        tensor = recorder.call_function(torch.select, (tensor, place, item), {})
    return tensor, tuple(others)


def expect_inside(tensor: Any, index: Any) -> None:
    """Where only running the graph tells extents, have plain integers of an index checked as torch does."""
    if type(tensor) is not FakeTensor or not is_unbacked(*tensor.shape):
        return
    items = index if type(index) is tuple else (index,)
    taken = sum(_axes(item) for item in items)
    if taken > tensor.dim() or any(isinstance(item, (list, tuple)) for item in items):
        return  # torch says what is wrong, or takes it for something else
    axis = 0
    for number, item in enumerate(items):
        if type(item) is int and is_unbacked(tensor.shape[axis]):
            _check_bounds(item, tensor.shape[axis], number)
        axis += tensor.dim() - taken if item is ... else _axes(item)


def _check_bounds(index: Any, extent: Any, number: int) -> None:
    """Where only running the graph tells the index or the extent, have it checked as torch does, which counts an index's items."""
    if is_unbacked(index, extent):
        text = f"index {{}} is out of bounds for dimension {number} with size {{}}"
        for condition in (extent >= -index, extent > index):
            symbolic_math.check(condition, text, "IndexError", index, extent)


def _axes(item: Any) -> int:
    """How many axes an item of an index is for."""
    if item is None or item is ... or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in _MASKS:
        return item.dim()
    return 1


OPERATORS: dict[Any, Callable[..., Any]] = {operator.getitem: get, operator.setitem: put}
