"""All families of rules: importing this module fills the table of `symbolic_registry`."""

from fxloom_dynamo import (
    symbolic_calls,
    symbolic_draws,
    symbolic_empty,
    symbolic_factories,
    symbolic_losses,
    symbolic_networks,
    symbolic_normalization,
    symbolic_pointwise,
    symbolic_powers,
    symbolic_reductions,
    symbolic_statistics,
)

__all__ = [
    "symbolic_calls",
    "symbolic_draws",
    "symbolic_empty",
    "symbolic_factories",
    "symbolic_losses",
    "symbolic_networks",
    "symbolic_normalization",
    "symbolic_pointwise",
    "symbolic_powers",
    "symbolic_reductions",
    "symbolic_statistics",
]
