"""What computing one element of a body takes.

In: the costs of a body's operands. Out: `BodyCost`, by which lowering decides whether a value is stored or computed again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BodyCost:
    """ops: elementwise operations; heavy: some are (exp, division of integers); reads: buffers read."""

    ops: int = 0
    heavy: bool = False
    reads: frozenset[str] = frozenset()

    def __add__(self, other: BodyCost) -> BodyCost:
        return BodyCost(self.ops + other.ops, self.heavy or other.heavy, self.reads | other.reads)


NOTHING = BodyCost()
