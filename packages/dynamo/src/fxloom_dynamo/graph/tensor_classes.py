"""Classes of tensors at the borders of a graph: it sees plain tensors, its results get their class when they leave it.

In: real tensors of subclasses; a compiled graph. Out: plain tensors over the same memory and with the same history; a callable
that makes its inputs plain (`without_overrides`); results of the class that they are to have (`to_class`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_dynamo._torch_private import DisableTorchFunctionSubclass, disabled_torch_function
from fxloom_shapes import FakeTensor

PLAIN_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})


def overrides(cls: type) -> bool:
    """Whether calls of torch functions on instances of `cls` are the business of its `__torch_function__`."""
    if cls in PLAIN_CLASSES:
        return False
    found = getattr(cls, "__torch_function__", None)
    return found is not None and found is not disabled_torch_function


def dispatches(cls: type) -> bool:
    return bool(cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)  # type: ignore[attr-defined]  # of tensors' classes


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """An example of what the graph sees for a real tensor: of torch's own class, as leaf or not."""
    if type(tensor) in PLAIN_CLASSES:
        return tensor
    with DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor).requires_grad_(tensor.requires_grad)


def without_overrides(compiled: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """A graph that takes the inputs at `places` as plain tensors, over the same memory and with the same history."""

    def run(*inputs: Any) -> Any:
        values = list(inputs)
        with DisableTorchFunctionSubclass():
            for place in places:
                values[place] = values[place].as_subclass(torch.Tensor)
        return compiled(*values)

    return run


def to_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Runs in replacement code on an output of the graph."""
    with DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)  # type: ignore[no-any-return, arg-type]  # a subclass of Tensor
