"""Ahead-of-time autograd: functionalization, joint tracing, partitioning, runtime wrappers."""

from fxloom_aot.eager import eager_compiler
from fxloom_aot.functions import aot_export, aot_function, aot_module
from fxloom_aot.mincut import MinCut
from fxloom_aot.module import Compiler, aot_graph, export_graph, verify_traced
from fxloom_aot.partition import Joint, Partition, Partitioner, save_all
from fxloom_aot.traced import Traced, TracedGraph

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
