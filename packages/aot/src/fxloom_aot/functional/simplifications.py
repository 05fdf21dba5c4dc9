"""Simplifications of single calls of the functional log: calls whose result is their argument, and sizes of reshapes.

In: an operator and its arguments, as values. Out: the value that stands for the call, or None where the call is needed.
Invariant: a simplification changes neither the elements nor the strides of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_ops.schema import Op
from fxloom_shapes import Descriptor, FakeTensor, propagate
from fxloom_shapes.fake.sizes import statically_same_size
from fxloom_shapes.rules.view import view_stride

aten = torch.ops.aten


def infer_size(size: tuple[int, ...], numel: int) -> tuple[int, ...]:
    """`size` with its -1, if any, worked out."""
    if not any(type(extent) is int and extent == -1 for extent in size):
        return size
    known = 1
    for extent in size:
        known = known * (1 if type(extent) is int and extent == -1 else extent)
    return tuple(numel // known if type(extent) is int and extent == -1 else extent for extent in size)


def viewable(desc: Descriptor, size: tuple[int, ...]) -> bool:
    """True when a tensor with `desc` can be seen with `size` without copying."""
    return view_stride(desc, size) is not None


def _first(value: FakeTensor, *rest: Any, **kwargs: Any) -> FakeTensor:
    return value


def _clone(value: FakeTensor, memory_format: torch.memory_format | None = None) -> FakeTensor | None:
    """A copy with the same strides is the value itself: nothing writes here, and outputs get copies of their own."""
    desc = propagate(aten.clone.default, (value,), {"memory_format": memory_format}).desc
    return value if statically_same_size(desc.stride, value.desc.stride) else None


def _to_copy(value: FakeTensor, **kwargs: Any) -> FakeTensor | None:
    desc = value.desc
    if kwargs.get("dtype") not in (None, desc.dtype) or kwargs.get("layout") not in (None, torch.strided):
        return None
    if kwargs.get("device") is not None and torch.device(kwargs["device"]) != desc.device:
        return None
    if kwargs.get("pin_memory"):
        return None
    return _clone(value, kwargs.get("memory_format"))


def _same_size(value: FakeTensor, size: Any, **kwargs: Any) -> FakeTensor | None:
    kept = len(size) == value.dim() and all(extent == -1 for extent in size)
    return value if kept or statically_same_size(tuple(size), value.desc.size) else None


#: views whose elements are conjugated or negated on reading: a value here has its elements as they read
EVALUATED: dict[Op, Op] = {aten._conj.default: aten.conj_physical.default, aten._neg_view.default: aten.neg.default}
IDENTITIES: dict[Op, Callable[..., FakeTensor | None]] = {
    aten.detach.default: _first,
    aten.alias.default: _first,
    aten.lift.default: _first,
    aten.resolve_conj.default: _first,
    aten.resolve_neg.default: _first,
    aten.lift_fresh_copy.default: _first,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.expand.default: _same_size,
}
RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.reshape.default})
