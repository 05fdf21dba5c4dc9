"""Imports every family of shape rules, which fills the table of `registry`. Only `propagation` imports it, at first need."""

from fxloom_shapes.rules import (
    attention,
    convolution,
    creation,
    histogram,
    indexing,
    linalg,
    losses,
    matmul,
    normalization,
    pointwise,
    pooling,
    random,
    reduction,
    spatial,
    spectral,
    view,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "histogram",
    "indexing",
    "linalg",
    "losses",
    "matmul",
    "normalization",
    "pointwise",
    "pooling",
    "random",
    "reduction",
    "spatial",
    "spectral",
    "view",
]
