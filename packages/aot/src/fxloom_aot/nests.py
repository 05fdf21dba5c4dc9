"""Walk the nests of tuples, lists and dicts that arguments and results of operators are.

In: any such nest. Out: the fakes or symbolic numbers in it, in order, or a nest like it with real tensors replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch

from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC


def values_of(nest: Any) -> list[FakeTensor]:
    """The values in a nest of tuples, lists and dicts, in order."""
    found: list[FakeTensor] = []
    _collect(nest, _VALUES, found)
    return found


def numbers_of(nest: Any) -> list[Any]:
    """The symbolic numbers in a nest of tuples, lists and dicts, in order."""
    found: list[Any] = []
    _collect(nest, SYMBOLIC, found)
    return found


_VALUES = frozenset({FakeTensor})


def _collect(nest: Any, kinds: Container[type], found: list[Any]) -> None:
    kind = type(nest)
    if kind in kinds:
        found.append(nest)
    elif kind is tuple or kind is list:
        for item in nest:
            _collect(item, kinds, found)
    elif kind is dict:
        for item in nest.values():
            _collect(item, kinds, found)


def replace_real_tensors(nest: Any, constant: Callable[[torch.Tensor], FakeTensor]) -> Any:
    """`nest` with every tensor that is not a fake replaced by what `constant` makes of it."""
    kind = type(nest)
    if kind is tuple or kind is list:
        return kind([replace_real_tensors(item, constant) for item in nest])
    if kind is not FakeTensor and isinstance(nest, torch.Tensor):
        return constant(nest)
    return nest
