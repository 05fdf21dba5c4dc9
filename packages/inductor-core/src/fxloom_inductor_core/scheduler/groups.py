"""Groups of loops: what the scheduler builds and kernels are made from.

In: traced loops. Out: `Group`, loops over one space (outer axes; inner axes) that become one kernel, or one call. A loop takes
part as a reduction (outer -> outer, inner -> inner), as an inner loop (its axes cover outer and inner together), or as an outer
loop (its axes cover outer alone). Invariant: the loops of a group stand in program order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import sympy

from fxloom_inductor_core.ir.graph import ExternCall
from fxloom_inductor_core.ir.loops import Loop
from fxloom_inductor_core.scheduler.spaces import Axes, express
from fxloom_interfaces.expr import Expr, product, symbol
from fxloom_interfaces.program import Load


@dataclass(frozen=True, slots=True)
class Space:
    """Extents of the loops of a group; inner is None where nothing is folded."""

    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...] | None

    def __str__(self) -> str:
        outer = " x ".join(map(str, self.outer)) or "one point"
        return outer if self.inner is None else f"{outer} (folding {' x '.join(map(str, self.inner))})"

    def axes(self) -> tuple[Axes, Axes]:
        """(outer axes, inner axes) with the symbols that all groups use."""
        return _axes(self.outer, self.inner or ())


@lru_cache(maxsize=1 << 12)
def _axes(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> tuple[Axes, Axes]:
    return tuple((symbol(f"x{n}"), e) for n, e in enumerate(outer)), tuple((symbol(f"r{n}"), e) for n, e in enumerate(inner))


@dataclass(frozen=True, slots=True)
class Traits:
    """What is asked of a loop again and again, read off its instructions once.

    masked: buffers that some load reads under a mask. folds_columns: most of what it folds lies side by side for different points.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    masked: frozenset[str]
    is_reduction: bool
    is_scan: bool
    is_scatter: bool
    folds_columns: bool

    @staticmethod
    def of(loop: Loop) -> Traits:
        masked = frozenset(i.buffer for i in loop.instructions if isinstance(i, Load) and i.mask is not None)
        reads = frozenset(buffer for buffer, _ in loop.reads())
        columns = loop.is_reduction and loop.folds_columns()
        return Traits(reads, frozenset(loop.writes()), masked, loop.is_reduction, loop.is_scan, loop.base is not None, columns)


@dataclass(frozen=True, slots=True)
class Member:
    """A loop in a group. position: in program order. inside: runs at every inner point (reductions too)."""

    position: int
    loop: Loop
    inside: bool
    traits: Traits

    def mapping(self, space: Space) -> Mapping[sympy.Symbol, Expr]:
        """The loop's axes in the symbols of `space`."""
        outer, inner = space.axes()
        if self.loop.inner:
            return {**express(self.loop.outer, outer), **express(self.loop.inner, inner)}
        return express(self.loop.outer, (*outer, *inner) if self.inside else outer)


@dataclass(slots=True, eq=False)
class Group:
    """Loops that become one kernel, or one call."""

    number: int
    device: str
    members: list[Member] = field(default_factory=list)
    space: Space | None = None
    call: ExternCall | None = None
    reads: dict[str, None] = field(default_factory=dict)
    writes: dict[str, None] = field(default_factory=dict)
    #: numbers of the groups that it depends on, and of those that depend on it
    before: dict[int, None] = field(default_factory=dict)
    after: dict[int, None] = field(default_factory=dict)
    #: symbols made by calls that it takes as sizes or numbers
    needs: dict[str, None] = field(default_factory=dict)
    #: names of the sizes that a launch passes
    sizes: frozenset[str] = frozenset()

    def bases(self) -> dict[str, str]:
        """Buffers that scatters of the group write -> those whose memory they go on with."""
        return {member.loop.name: member.loop.base for member in self.members if member.loop.base is not None}

    def shape(self) -> Hashable:
        """What two groups that don't depend on one another need to have in common to run in one loop."""
        if self.space is None or self.space.inner is not None:
            return self.device, self.space
        return self.device, product(self.space.outer)
