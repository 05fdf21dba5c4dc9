"""The table of lowering rules.

In: the families of operators, each imported here, which registers its rules. Out: `rules()`, overload -> rule. Invariant: neither
the families nor the registry import this module, so whoever can ask for the table has every rule in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fxloom_inductor_core.lowering import (  # noqa: F401  # imported for what they register
    arithmetic,
    attention,
    columns,
    convolution,
    creation,
    indexing,
    library_calls,
    linear_algebra,
    matmul,
    max_pooling,
    pointwise,
    pooling,
    randomness,
    reduction,
    scan,
    scatter,
    special,
    values,
    view,
)
from fxloom_inductor_core.lowering.registry import RULES, Rule


def rules() -> Mapping[Any, Rule]:
    """OpOverload -> rule, for all families."""
    return RULES
