"""From graphs in the aten dialect to programs of fused kernels and library calls.

Public: `compile_graph`, `CompiledGraph`, `InductorOptions`; `prepare` and `check_disabled`, for graphs before AOT. Subpackages:
`passes` edit graphs, `lowering` makes `ir`, `scheduler` makes kernels of it,
`memory` says where buffers lie, `wrapper` is the program and its printing, `compile` goes all the way.
"""

from fxloom_inductor_core.compile import CompiledGraph, compile_graph
from fxloom_inductor_core.options import InductorOptions
from fxloom_inductor_core.passes.before_aot import Prepared, check_disabled, prepare

__all__ = ["CompiledGraph", "InductorOptions", "Prepared", "check_disabled", "compile_graph", "prepare"]
