"""Imports every family of rules to prims, which registers its rules."""

from __future__ import annotations

from fxloom_decomp.prims import creation, elementwise, indexing, products, reductions, shape, windows  # noqa: F401  # see above
