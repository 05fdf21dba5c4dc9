"""fxloom.compile: the umbrella over the fxloom compile stack."""

import torch as torch  # first: the extensions find torch's libraries through it

from fxloom import config, exc
from fxloom.api import (
    compile,
    compile_fx,
    cudagraph_mark_step_begin,
    explain,
    explain_fusion,
    export,
    list_backends,
    plugins,
    reset,
    stats,
)
from fxloom_dynamo.directives import is_compiling
from fxloom_dynamo.guard.dynamic_shapes import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
from fxloom_dynamo.public_api.controls import allow_in_graph, assume_constant_result, disable, disallow_in_graph, graph_break, run, skip
from fxloom_interfaces.passes import register_pass, unregister_pass

__version__ = "0.1.0"

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_fx",
    "config",
    "cudagraph_mark_step_begin",
    "disable",
    "disallow_in_graph",
    "exc",
    "explain",
    "explain_fusion",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "plugins",
    "register_pass",
    "reset",
    "run",
    "skip",
    "stats",
    "unregister_pass",
]
