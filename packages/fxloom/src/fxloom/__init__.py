"""fxloom.compile: the umbrella over the fxloom compile stack."""

import torch as torch  # first: the extensions find torch's libraries through it
from fxloom_dynamo import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    explain,
    graph_break,
    is_compiling,
    run,
    skip,
)

from fxloom import exc
from fxloom.api import compile, compile_fx, list_backends, plugins, reset, stats

__version__ = "0.1.0"

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_fx",
    "disable",
    "disallow_in_graph",
    "exc",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "plugins",
    "reset",
    "run",
    "skip",
    "stats",
]
