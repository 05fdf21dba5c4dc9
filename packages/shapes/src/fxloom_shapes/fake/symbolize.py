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
from fxloom_shapes.fake.descriptor import Descriptor, describe
from fxloom_shapes.symbols.env import SymbolEnv


@dataclass(frozen=True, slots=True)
class DimPolicy:
    """A dimension that may change.

    pinned: specializing it is an error. low, high: promised range. label: dims with one label have one size.
    unbacked: nothing may depend on it. duck_key: what besides the size has to be equal for dims to share a symbol (its earlier sizes).
    """

    pinned: bool = False
    low: int | None = None
    high: int | None = None
    label: str = ""
    unbacked: bool = False
    duck_key: Any = None


@dataclass(frozen=True, slots=True)
class OfDimension:
    """A stride that is size times stride of another dimension, as in memory without gaps."""

    dim: int


@dataclass(frozen=True, slots=True)
class AnyStride:
    """A stride that is a symbol of its own, without a guard."""


#: what a stride has to be: the number it was, or what it follows from
StrideRule = int | OfDimension | AnyStride


@dataclass(frozen=True, slots=True)
class Symbolized:
    """descriptor; strides: per dimension what a guard has to check."""

    descriptor: Descriptor
    strides: tuple[StrideRule, ...]


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
    rules: list[StrideRule] = [AnyStride()] * len(sizes)
    hints = [int(stride) for stride in real.stride()]
    before: int | None = None
    for dim in sorted(range(len(sizes)), key=lambda d: (hints[d], -d)):
        hint = hints[dim]
        strides[dim], rules[dim] = hint, hint
        follows = before is not None and hint == hints[before] * max(int(real.shape[before]), 1)
        if follows and before is not None and (type(sizes[before]) is not int or type(strides[before]) is not int):
            strides[dim], rules[dim] = sizes[before] * strides[before], OfDimension(before)
        elif dim in dynamic_strides and not follows:
            strides[dim] = env.create(hint, SizeSource(source, "stride", dim), low=2)
            rules[dim] = hint if type(strides[dim]) is int else AnyStride()
        before = dim
    desc = describe(sizes, strides, real.dtype, real.device, int(real.storage_offset()))
    env.descriptors[id(real)] = (weakref.ref(real), desc)
    return Symbolized(desc, tuple(rules))


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
