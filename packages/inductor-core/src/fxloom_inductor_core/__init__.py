"""Lowerings, loop bodies, scheduler, fusion, memory planning and the wrapper.

Public: `compile_graph`, `CompiledGraph`, `InductorOptions`.
"""

from fxloom_inductor_core.compile import CompiledGraph, compile_graph
from fxloom_inductor_core.options import InductorOptions

__all__ = ["CompiledGraph", "InductorOptions", "compile_graph"]
