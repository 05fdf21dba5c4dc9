"""Decompositions of ATen operators: to core ATen, or to what inductor-core lowers.

Public: `table` and `SETS` (what aot takes), `decompose` (rewrites a graph by a table), `decomposition` (registers a rule),
`registered` and `Decomposition` (what is registered).
"""

from fxloom_decomp.apply import decompose
from fxloom_decomp.registry import SETS, Decomposition, decomposition
from fxloom_decomp.tables import registered, table

__all__ = ["SETS", "Decomposition", "decompose", "decomposition", "registered", "table"]
