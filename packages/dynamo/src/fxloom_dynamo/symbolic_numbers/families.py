"""All families of rules: importing this module fills the table of `registry`."""

from fxloom_dynamo.symbolic_numbers import (
    draws,
    empty,
    factories,
    losses,
    networks,
    normalization,
    pointwise,
    powers,
    reductions,
    shapes,
    statistics,
)

__all__ = [
    "draws",
    "empty",
    "factories",
    "losses",
    "networks",
    "normalization",
    "pointwise",
    "powers",
    "reductions",
    "shapes",
    "statistics",
]
