"""The tables of decompositions, by set: `table(name)` is what aot takes, `Mapping[OpOverload, Rule]`.

In: the families of rules, each imported here, which registers its rules. Out: read-only mappings from overloads to rules, one
for each name in `registry.SETS`. Invariant: this is the only module that knows all families, and neither they nor the registry
import it, so whoever can ask for a table has every rule in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from fxloom_decomp import (  # noqa: F401  # imported for their registrations
    activation,
    copies,
    creation,
    distances,
    elementwise,
    embedding_bags,
    foreach,
    grids,
    indexing,
    linear,
    loss,
    normalization,
    optimizers,
    pooling,
    randomness,
    reduction,
    resampling,
    shape,
    softmax,
    special,
)
from fxloom_decomp.prims import load_all  # noqa: F401  # likewise
from fxloom_decomp.prims.registry import PRIMS_REGISTRY
from fxloom_decomp.registry import REGISTRY, SETS, Decomposition, Op, Rule
from fxloom_interfaces.config import nearest
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.prims import ANY


def registered() -> Mapping[Op, Decomposition]:
    """Every rule, by overload."""
    return MappingProxyType(REGISTRY)


def table(name: str) -> Mapping[Op, Rule]:
    """The rules of the set `name`, as they are registered now. ConfigError for an unknown one."""
    if name not in SETS:
        raise ConfigError(f"unknown set of decompositions {name!r}{nearest(name, list(SETS))}")
    if name == "prims":
        return MappingProxyType(_to_prims())
    return MappingProxyType({op: entry.call for op, entry in REGISTRY.items() if name in entry.sets})


def _to_prims() -> dict[Op, Rule]:
    """Each operator's rule to prims; where there is none, or it declines, its decomposition, whose operators go on."""
    rules: dict[Op, Rule] = {}
    for op in {**REGISTRY, **PRIMS_REGISTRY}:
        ways = ([PRIMS_REGISTRY[op]] if op in PRIMS_REGISTRY else []) + ([REGISTRY[op].call] if op in REGISTRY else [])
        rules[op] = _first_of(ways)
    return rules


def _first_of(ways: list[Rule]) -> Rule:
    """What the first of some rules gives that does not decline; all decline elements that no prim takes."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        if not _takes([*args, *kwargs.values()]):
            return NotImplemented
        for way in ways:
            found = way(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return NotImplemented

    return rule


def _takes(values: Any) -> bool:
    for value in values:
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        if isinstance(dtype, complex) or (isinstance(dtype, torch.dtype) and dtype not in ANY):
            return False
        if isinstance(value, (list, tuple)) and not _takes(value):
            return False
    return True
