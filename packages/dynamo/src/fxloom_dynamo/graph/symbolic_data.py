"""`torch.tensor(data)` where symbolic numbers are in the data: torch's C++ code would read them, a graph puts them together.

In: a number or a nest of lists and tuples of numbers, and the keyword arguments. Out: a tensor made in the graph, one
`scalar_tensor` for each number, stacked and reshaped; NotImplemented for ragged nests and other keyword arguments than dtype and
device, which are eager's.
Invariant: no number of the data is specialized on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import torchs_default
from fxloom_interfaces import symbolic_math
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder

_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic_data(args: tuple[Any, ...]) -> bool:
    """True for a number, or a nest of lists and tuples of numbers, with a symbolic one in it."""
    leaves = list(_leaves(args[0])) if len(args) == 1 else []
    return any(type(leaf) in SYMBOLIC for leaf in leaves) and all(isinstance(leaf, _NUMBERS) for leaf in leaves)


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def tensor(recorder: Recorder, data: Any, options: dict[str, Any]) -> Any:
    """`torch.tensor(data, **options)`; NotImplemented where eager has to judge."""
    shape = _shape(data)
    if shape is None or options.keys() - {"dtype", "device"}:
        return NotImplemented
    leaves = list(_leaves(data))
    dtype = options.get("dtype") or _dtype(leaves)
    keywords = {"dtype": dtype, "device": options.get("device") or torchs_default.CURRENT_DEVICE or torch.device("cpu")}
    leaves = [symbolic_math.as_int(leaf) if isinstance(leaf, torch.SymBool) else leaf for leaf in leaves]
    parts = [recorder.call_function(torch.scalar_tensor, (leaf,), keywords) for leaf in leaves]
    if not shape:
        return parts[0]
    line = recorder.call_function(torch.stack, (parts,), {})
    return line if len(shape) == 1 else recorder.call_function(torch.reshape, (line, shape), {})


def _shape(data: Any) -> list[int] | None:
    """The extents of a nest; None for a ragged one."""
    if not isinstance(data, (list, tuple)):
        return []
    inner = [_shape(item) for item in data]
    if not inner or inner[0] is None or any(shape != inner[0] for shape in inner):
        return None
    return [len(data), *inner[0]]


def _dtype(leaves: list[Any]) -> torch.dtype:
    if any(isinstance(leaf, (float, torch.SymFloat)) for leaf in leaves):
        return torch.get_default_dtype()
    return torch.bool if all(isinstance(leaf, (bool, torch.SymBool)) for leaf in leaves) else torch.int64
