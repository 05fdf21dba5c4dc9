"""Lowering rules by op family. `rules()` gives the table; every family module registers its own on import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fxloom_inductor_core.lowering.registry import RULES


def rules() -> Mapping[Any, Any]:
    """OpOverload -> rule, for all families."""
    from fxloom_inductor_core.lowering import (  # noqa: F401  # imported for what they register
        attention,
        convolution,
        creation,
        indexing,
        linear_algebra,
        matmul,
        pointwise,
        pooling,
        randomness,
        reduction,
        scan,
        values,
        view,
    )

    return RULES
