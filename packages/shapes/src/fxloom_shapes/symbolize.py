"""From a real tensor and which of its dimensions may change to a descriptor with symbolic sizes and strides.

In: the tensor, its source, a `DimPolicy` per dynamic dimension. Out: the descriptor, noted in the environment for the tensor,
and how each stride follows from other dimensions, which is what a guard has to check.
Invariant: with the hints put in, the descriptor is the tensor's own metadata.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_interfaces.sources import SizeSource, Source
from fxloom_shapes.descriptor import Descriptor, describe
from fxloom_shapes.env import SymbolEnv


@dataclass(frozen=True, slots=True)
class DimPolicy:
    """A dimension that may change.

    pinned: specializing it is an error. low, high: promised range. label: dims with one label have one size.
    unbacked: nothing may depend on it. duck_key: what besides the size tells it apart from other dims (its earlier sizes).
    """

    pinned: bool = False
    low: int | None = None
    high: int | None = None
    label: str = ""
    unbacked: bool = False
    duck_key: Any = None


@dataclass(frozen=True, slots=True)
class Symbolized:
    """descriptor; strides: per dimension the int, or -2 - k where it is size times stride of dimension k, or None for
    a symbol."""

    descriptor: Descriptor
    strides: tuple[int | None, ...]


def symbolize(
    env: SymbolEnv,
    real: torch.Tensor,
    source: Source,
    dims: Mapping[int, DimPolicy],
    dynamic_strides: frozenset[int] = frozenset(),
) -> Symbolized:
    """See the module's docstring. dynamic_strides: strides that were seen to change and follow from nothing."""
    sizes: list[Any] = []
    for dim, hint in enumerate(real.shape):
        policy = dims.get(dim)
        if policy is None:
            sizes.append(int(hint))
        else:
            sizes.append(_size(env, int(hint), SizeSource(source, "size", dim), policy))
    strides: list[Any] = [None] * len(sizes)
    origin: list[int | None] = [None] * len(sizes)
    hints = [int(stride) for stride in real.stride()]
    before: int | None = None
    for dim in sorted(range(len(sizes)), key=lambda d: (hints[d], -d)):
        hint = hints[dim]
        strides[dim], origin[dim] = hint, hint
        follows = before is not None and hint == hints[before] * max(int(real.shape[before]), 1)
        if follows and before is not None and (type(sizes[before]) is not int or type(strides[before]) is not int):
            strides[dim], origin[dim] = sizes[before] * strides[before], -2 - before
        elif dim in dynamic_strides and not follows:
            strides[dim] = env.create(hint, SizeSource(source, "stride", dim), low=2)
            origin[dim] = hint if type(strides[dim]) is int else None
        before = dim
    desc = describe(sizes, strides, real.dtype, real.device, int(real.storage_offset()))
    env.descriptors[id(real)] = (weakref.ref(real), desc)
    return Symbolized(desc, tuple(origin))


def _size(env: SymbolEnv, hint: int, source: Source, policy: DimPolicy) -> Any:
    if policy.unbacked:
        env.refuse_outside(hint, policy.low, policy.high, source.name)
        return env.create_unbacked(max(policy.low or 0, 0), policy.high, source)
    return env.create(
        hint,
        source,
        low=policy.low,
        high=policy.high,
        pinned=policy.pinned,
        label=policy.label,
        duck_key=policy.duck_key,
    )
