"""What a schema says about an operator: what it writes to, whether it draws numbers, whether other operators define it.

In: an overload. Out: its `SchemaInfo`, worked out once per overload.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from fxloom_ops._torch_private import composite, counts_within, decompose

__all__ = ["Op", "SchemaInfo", "decompose", "draws_numbers", "schema_info"]

Op = torch._ops.OpOverload


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """writes: (position, name, is_out) of every argument that the operator writes to.

    inplace_view: changes the metadata of its first argument. data_dependent: its answer depends on values.
    dynamic_shape: its output shape may. seeded: draws numbers of a generator. has_device: takes a `device` argument.
    counts_within: its writes count as versions of what it writes because it is made of operators that count theirs, not by
    itself.
    """

    writes: tuple[tuple[int, str, bool], ...]
    inplace_view: bool
    data_dependent: bool
    dynamic_shape: bool
    seeded: bool
    has_device: bool
    composite: bool
    counts_within: bool


@cache
def schema_info(op: Op) -> SchemaInfo:
    """What the schema of one overload says."""
    writes = tuple(
        (position, argument.name, bool(argument.is_out))
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return SchemaInfo(
        writes=writes,
        inplace_view=torch.Tag.inplace_view in op.tags or op._schema.name in ("aten::set_", "aten::detach_"),
        data_dependent=torch.Tag.data_dependent_output in op.tags,
        dynamic_shape=torch.Tag.dynamic_output_shape in op.tags,
        seeded=draws_numbers(op),
        has_device=any(argument.name == "device" for argument in op._schema.arguments),
        composite=composite(op),
        counts_within=bool(writes) and counts_within(op),
    )


def draws_numbers(op: torch._ops.OpOverload) -> bool:
    """Whether `op` draws from a generator, and so advances it.

    torch's tag is not enough: backward operators of attention have it too, which are given the seed of the forward pass.
    """
    return torch.Tag.nondeterministic_seeded in op.tags and all(argument.name != "philox_seed" for argument in op._schema.arguments)
