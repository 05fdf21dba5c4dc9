"""Elementwise loops with the axes of a fold that reads what they write, or what they read.

In: a group of elementwise loops, mostly over one long axis, and a group that folds the same elements in another order: the gradient of
an activation, (N, C, H, W), and its sums by channel. Out: the elementwise group over the fold's axes in the fold's order.
Invariant: each loop computes the same points as before, and neighbours in memory one after the other: a fold down the columns is none
to follow, its loops would write with a stride.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fxloom_inductor_core.ir.loops import map_exprs
from fxloom_inductor_core.scheduler.groups import Group, Member, Space
from fxloom_inductor_core.scheduler.spaces import Axes, express, refine
from fxloom_interfaces.expr import Expr, affine, symbol
from fxloom_interfaces.program import Load, Store


def in_order_of(plain: Group, fold: Group) -> Iterator[Group]:
    """`plain` over the axes of `fold`, for each buffer that shows which of their points are the same."""
    tried: set[tuple[Expr, ...]] = set()
    for buffer in (*plain.writes, *plain.reads):
        if buffer not in fold.reads:
            continue
        start = _row_major(plain, buffer)
        axes = None if start is None else _memory_order(fold, buffer, start)
        if axes is None or axes in tried:
            continue
        tried.add(axes)
        made = _over(plain, fold, axes)
        if made is not None:
            yield made


def _row_major(plain: Group, buffer: str) -> Expr | None:
    """Where in the buffer the group's points begin, if they lie there one after the other; None if not."""
    for member in plain.members:
        for instruction in member.loop.instructions:
            if isinstance(instruction, (Load, Store)) and instruction.buffer == buffer:
                return _start(instruction.index, member.loop.outer)
    return None


def _start(index: Expr, axes: Axes) -> Expr | None:
    parts = affine(index)
    if parts is None:
        return None
    coefficients, offset = parts
    step: Expr = 1
    for axis, extent in reversed(axes):
        if not isinstance(extent, int) or (extent != 1 and coefficients.pop(axis, 0) != step):
            return None
        step = step * extent
    return None if coefficients else offset


def _memory_order(fold: Group, buffer: str, start: Expr) -> tuple[int, ...] | None:
    """Numbers of the fold's axes as they lie in the buffer, the outermost first; None where its points don't fill it from `start` on."""
    if fold.space is None:
        return None
    axes = [axis for both in fold.space.axes() for axis in both]
    for member in fold.members:
        mapping = member.mapping(fold.space)
        for instruction in member.loop.instructions:
            if not isinstance(instruction, Load) or instruction.buffer != buffer:
                continue
            made = map_exprs(instruction, mapping, dict(axes))
            parts = affine(made.index) if isinstance(made, Load) else None
            if parts is None or parts[1] != start:
                return None
            order = sorted((n for n, (_, extent) in enumerate(axes) if extent != 1), key=lambda n: -int(parts[0].get(axes[n][0], 0)))
            step = 1
            for n in reversed(order):
                extent = axes[n][1]
                if not isinstance(extent, int) or parts[0].get(axes[n][0], 0) != step:
                    return None
                step *= extent
            return tuple(order)
    return None


def _over(plain: Group, fold: Group, order: Sequence[int]) -> Group | None:
    """`plain` over the axes `order` of the fold (numbers, as they lie in memory), sorted as the fold has them."""
    if fold.space is None or list(order) == sorted(order) or order[-1] != max(order):  # nothing to turn, or what lies closest is torn apart
        return None
    extents = (*fold.space.outer, *(fold.space.inner or ()))
    fine = tuple((symbol(f"t{n}"), extents[n]) for n in order)
    outer = tuple(sorted(fine, key=lambda axis: order[fine.index(axis)]))
    members: list[Member] = []
    for member in plain.members:
        loop = member.loop
        if loop.base is not None or refine(tuple(e for _, e in loop.outer), tuple(e for _, e in fine)) != tuple(e for _, e in fine):
            return None
        mapping = express(loop.outer, fine)
        instructions = tuple(map_exprs(instruction, mapping, dict(fine)) for instruction in loop.instructions)
        members.append(replace(member, loop=replace(loop, outer=outer, instructions=instructions)))
    return replace(plain, members=members, space=Space(tuple(e for _, e in outer), None))
