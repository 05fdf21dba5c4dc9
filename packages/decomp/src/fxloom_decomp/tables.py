"""The tables of decompositions, by set: `table(name)` is what aot takes, `Mapping[OpOverload, Rule]`.

In: the families of rules, each imported here, which registers its rules. Out: read-only mappings from overloads to rules, one
for each name in `registry.SETS`. Invariant: this is the only module that knows all families, and neither they nor the registry
import it, so whoever can ask for a table has every rule in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
from fxloom_decomp.registry import REGISTRY, SETS, Decomposition, Op, Rule
from fxloom_interfaces.config import nearest
from fxloom_interfaces.errors import ConfigError


def registered() -> Mapping[Op, Decomposition]:
    """Every rule, by overload."""
    return MappingProxyType(REGISTRY)


def table(name: str) -> Mapping[Op, Rule]:
    """The rules of the set `name`, as they are registered now. ConfigError for an unknown one."""
    if name not in SETS:
        raise ConfigError(f"unknown set of decompositions {name!r}{nearest(name, list(SETS))}")
    return MappingProxyType({op: entry.call for op, entry in REGISTRY.items() if name in entry.sets})
