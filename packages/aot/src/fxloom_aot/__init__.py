"""Ahead-of-time autograd: functionalization, joint tracing, partitioning, runtime wrappers."""

from fxloom_aot.api.compile_graph import Compiler, aot_graph, export_graph, verify_traced
from fxloom_aot.api.eager_compiler import eager_compiler
from fxloom_aot.api.functions import aot_export, aot_function, aot_module
from fxloom_aot.partitioning.mincut import MinCut
from fxloom_aot.partitioning.partition import Joint, Partition, Partitioner, save_all
from fxloom_aot.trace_result import Traced, TracedGraph

__all__ = [
    "Compiler",
    "Joint",
    "MinCut",
    "Partition",
    "Partitioner",
    "Traced",
    "TracedGraph",
    "aot_export",
    "aot_function",
    "aot_graph",
    "aot_module",
    "eager_compiler",
    "export_graph",
    "save_all",
    "verify_traced",
]
