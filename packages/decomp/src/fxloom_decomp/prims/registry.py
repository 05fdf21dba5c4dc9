"""The register of the rules down to prims: one rule per overload.

In: functions of tensors, written in prims, under `@prims_rule(aten.add.Tensor)`. Out: `PRIMS_REGISTRY`. On real tensors a rule is a
reference of its operator; within `fxloom_decomp.decompose` it is recorded. A rule may return NotImplemented to decline its arguments.
Invariant: this module knows none of the families that register here (see `tables`).
"""

from __future__ import annotations

from collections.abc import Callable

from fxloom_decomp.registry import Op, Rule, place_of
from fxloom_interfaces.errors import InternalError

PRIMS_REGISTRY: dict[Op, Rule] = {}


def prims_rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Register a rule for `ops`. InternalError where one has a rule."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            if op in PRIMS_REGISTRY:
                raise InternalError("decomp", f"two rules to prims for {op}: {place_of(PRIMS_REGISTRY[op])} and {place_of(rule)}")
            PRIMS_REGISTRY[op] = rule
        return rule

    return register
