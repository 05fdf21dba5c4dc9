"""All families of rules: importing this module fills the table of `registry`."""

from fxloom_dynamo.symbolic_numbers import (
    factories,
    losses,
    networks,
    normalization,
    optimizers,
    pointwise,
    powers,
    random_draws,
    reductions,
    shapes,
    statistics,
    unbacked_empty_checks,
)

__all__ = [
    "factories",
    "losses",
    "networks",
    "normalization",
    "optimizers",
    "pointwise",
    "powers",
    "random_draws",
    "reductions",
    "shapes",
    "statistics",
    "unbacked_empty_checks",
]
