"""Imports every family of rules, which registers them."""

from fxloom_decomp import (  # noqa: F401  # imported for their registrations
    activation,
    creation,
    elementwise,
    indexing,
    linear,
    loss,
    normalization,
    pooling,
    randomness,
    reduction,
    shape,
    softmax,
)
