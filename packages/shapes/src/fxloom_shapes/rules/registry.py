"""The table of shape rules: `@shape_rule(op, ...)` registers one; small helpers that rules are written with.

In: the operators of a rule. Out: `RULES`, operator -> rule.
Invariant: one rule for each operator; nothing here imports a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fxloom_interfaces.errors import InternalError
from fxloom_ops.schema import Op
from fxloom_shapes.fake.descriptor import Descriptor, describe, describe_contiguous
from fxloom_shapes.fake.plans import Fresh, Nest, Plan, Rule
from fxloom_shapes.fake.tensor import FakeTensor

_AnyRule = TypeVar("_AnyRule", bound=Rule)

#: Operator -> rule: (device, args, kwargs) -> Plan, or None to decline. `load_all` fills it.
RULES: dict[Op, Rule] = {}


def shape_rule(*ops: Op) -> Callable[[_AnyRule], _AnyRule]:
    """Register a rule for `ops`; a second one for an operator is an error."""

    def register(rule: _AnyRule) -> _AnyRule:
        for op in ops:
            if op in RULES:
                raise InternalError("shapes", f"two shape rules for {op}: {RULES[op].__name__} and {rule.__name__}")
            RULES[op] = rule
        return rule

    return register


def fresh(size: Any, dtype: torch.dtype, device: torch.device, stride: Any = None) -> Plan:
    """A new tensor; contiguous unless `stride` is given."""
    size = tuple(size)
    return Fresh(describe_contiguous(size, dtype, device) if stride is None else describe(size, tuple(stride), dtype, device))


def several(*plans: Plan) -> Plan:
    return Nest(plans, tuple)


def desc_of(value: Any) -> Descriptor | None:
    """The descriptor of a fake, None for anything else."""
    return value.desc if type(value) is FakeTensor else None


def plain(*values: Any) -> bool:
    """True when no operand is complex or quantized: those are left to torch."""
    return all(type(value) is not FakeTensor or not value.desc.dtype.is_complex for value in values)
