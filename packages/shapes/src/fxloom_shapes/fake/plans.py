"""A plan: for each output of one operator, whether it is new memory, a view of an argument's memory, or an argument itself.

Shape rules answer with plans, and `propagation` makes one of what a Meta kernel gave; it keeps them and makes fakes by them. A
plan has no tensors in it, so it serves every call with arguments of the same metadata. Plans of several outputs are trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxloom_shapes.fake.descriptor import Descriptor


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output with memory of its own."""

    desc: Descriptor


@dataclass(frozen=True, slots=True)
class ViewOf:
    """An output on the memory of the `index`-th tensor argument (flat order)."""

    desc: Descriptor
    index: int


@dataclass(frozen=True, slots=True)
class SameAs:
    """The `index`-th tensor argument itself."""

    index: int


@dataclass(frozen=True, slots=True)
class SharedFresh:
    """An output on new memory that other outputs share; `group` numbers it within the plan."""

    desc: Descriptor
    group: int


@dataclass(frozen=True, slots=True)
class Number:
    """An output that is not a tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class Uncached:
    """A plan that is not to be kept: it has symbols that this very call makes, or follows from more than the arguments."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Nest:
    """Several outputs in a tuple or list."""

    items: tuple[Plan, ...]
    kind: type


Plan = Fresh | ViewOf | SameAs | SharedFresh | Number | Nest
#: a shape rule: (args, kwargs) -> Plan, or None to decline
Rule = Callable[..., "Plan | Uncached | None"]
