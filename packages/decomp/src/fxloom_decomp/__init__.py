"""Decompositions of ATen operators: to core ATen, to what inductor-core lowers, or to prims.

Public: `table` and `SETS` (what aot takes), `decompose` (rewrites a graph by a table), `lower_to_prims`,
`prims_compiler` (runs what that gives, for aot), `decomposition` (registers a rule), `registered` and `Decomposition` (what is registered).
"""

from fxloom_decomp.apply import decompose
from fxloom_decomp.lower_to_prims import lower_to_prims, prims_compiler
from fxloom_decomp.registry import SETS, Decomposition, decomposition
from fxloom_decomp.tables import registered, table

__all__ = ["SETS", "Decomposition", "decompose", "decomposition", "lower_to_prims", "prims_compiler", "registered", "table"]
