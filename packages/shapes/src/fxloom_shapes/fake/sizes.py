"""Arithmetic and comparisons of sizes and of places along axes, plain or symbolic.

In: ints and `torch.SymInt`s. Out: the same, or answers. Comparisons whose name begins with `assume` hold where nothing else is known
of unbacked sizes, and are checked at run time then; those that say `statically` leave no guard.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Sizes, equal, known_equal


def broadcast(*sizes: Sizes) -> Sizes | None:
    """The common size, None when they don't broadcast."""
    rank = max((len(size) for size in sizes), default=0)
    result = [1] * rank
    for size in sizes:
        for axis, extent in enumerate(size, rank - len(size)):
            if _is_one(result[axis]):
                result[axis] = extent
                continue
            if result[axis] is extent or _is_one(extent) or equal(result[axis], extent) or equal(extent, 1):
                continue
            if not equal(result[axis], 1):  # neither is known to be 1
                if is_leading_part(result[axis], extent):
                    result[axis] = extent
                elif not is_leading_part(extent, result[axis]) and not assume_equal(extent, result[axis]):
                    return None
                continue
            result[axis] = extent
    return tuple(result)


def _is_one(extent: int) -> bool:
    return type(extent) is int and extent == 1


def is_leading_part(part: int, whole: int) -> bool:
    """`part` is what `x[:1]` leaves of `whole`: 0 where that is 0, else 1, so that it always can be broadcast to it."""
    return is_unbacked(part, whole) and equal(part, torch.sym_min(whole, 1))


def is_unbacked(*extents: int) -> bool:
    """True when one of the numbers is known only when the program runs."""
    return any(type(extent) is not int and not extent.node.has_hint() for extent in extents)  # type: ignore[attr-defined]


def assume_equal(a: int, b: int) -> bool:
    """a == b, assumed where that is known only at run time, and checked then."""
    if equal(a, b):
        return True
    if not is_unbacked(a, b):
        return False
    torch._check(a == b)
    return True


def assume_size(extent: int) -> bool:
    """extent >= 0, assumed where that is known only at run time, and checked then."""
    if type(extent) is int or not is_unbacked(extent):
        return bool(extent >= 0)
    torch._check(extent >= 0)
    return True


def wrapped(position: int, extent: int) -> int:
    """A place along an axis, counted from the end where negative."""
    if not is_unbacked(position):
        return position + extent if position < 0 else position
    if guard_or_false(position >= 0):
        return position
    return position - extent * torch.sym_max(torch.sym_min(position, 0), -1)  # type: ignore[no-any-return]  # untyped


def clip(position: int, extent: int) -> int:
    """Where along an axis a slice begins or ends."""
    place = wrapped(position, extent)
    if type(place) is int and type(extent) is int:
        return min(max(place, 0), extent)
    return torch.sym_min(torch.sym_max(place, 0), extent)  # type: ignore[no-any-return]  # untyped


def larger(a: int, b: int) -> int:
    """The larger of two places along an axis."""
    return torch.sym_max(a, b) if type(a) is not int or type(b) is not int else max(a, b)  # type: ignore[no-any-return]  # untyped


def assume_inside(position: int, extent: int) -> bool:
    """-extent <= position < extent, assumed where that is known only at run time, and checked then."""
    if not is_unbacked(position, extent):
        return -extent <= position < extent
    torch._check(position >= -extent)
    torch._check(position < extent)
    return True


def same_size(a: Sizes, b: Sizes) -> bool:
    """Equal in rank and every number."""
    return len(a) == len(b) and all(map(equal, a, b))


def statically_same_size(a: Sizes, b: Sizes) -> bool:
    """Equal in rank and every number, whatever the symbols are: for shortcuts, which are not worth a guard."""
    return len(a) == len(b) and all(map(_statically_equal, a, b))


def _statically_equal(a: int, b: int) -> bool:
    return known_equal(a, b) is True


def statically_known_true(outcome: Any) -> bool:
    """A comparison that holds whatever the symbols are that a trace may meet. Leaves no guard."""
    return outcome if type(outcome) is bool else bool(outcome.node.statically_known_true("", 0))


def guard_or_false(outcome: Any) -> bool:
    """The truth of a comparison; False where that is known only at run time."""
    return outcome if type(outcome) is bool else bool(outcome.node.guard_or_false("", 0))
