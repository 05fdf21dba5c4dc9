"""Decompositions: ATen to core ATen to prims."""

from fxloom_decomp.apply import decompose
from fxloom_decomp.registry import SETS, Decomposition, decomposition, registered, table

__all__ = ["SETS", "Decomposition", "decompose", "decomposition", "registered", "table"]
