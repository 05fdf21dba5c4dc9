"""Shape rules of ours for the commonest operators, by family. Importing registers them.

A rule takes the result's device and the operator's arguments and gives a plan, or None to leave the case to torch's Meta
kernel: it answers only what it is sure of, and it never raises on a program's behalf.
"""

from fxloom_shapes.rules import (
    attention,
    creation,
    distributions,
    indexing,
    linalg,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    reduction,
    spatial,
    spectral,
    statistics,
    view,
)

__all__ = [
    "attention",
    "creation",
    "distributions",
    "indexing",
    "linalg",
    "losses",
    "matmul",
    "normalization",
    "pointwise",
    "pooling",
    "reduction",
    "spatial",
    "spectral",
    "statistics",
    "view",
]
