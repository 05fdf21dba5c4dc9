"""Graph capture from Python bytecode."""

from fxloom_dynamo.breaks import CATALOGUE, BreakKind
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.directives import is_compiling
from fxloom_dynamo.public_api.compile import Capture, capture, explain, export, optimize
from fxloom_dynamo.public_api.controls import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    graph_break,
    reset,
    run,
    skip,
)

__all__ = [
    "CATALOGUE",
    "BreakKind",
    "Capture",
    "CaptureConfig",
    "allow_in_graph",
    "assume_constant_result",
    "capture",
    "disable",
    "disallow_in_graph",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "optimize",
    "reset",
    "run",
    "skip",
]
