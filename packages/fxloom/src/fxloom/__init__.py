"""fxloom.compile: the umbrella over the fxloom compile stack."""

import torch as torch  # first: the extensions find torch's libraries through it

from fxloom import exc
from fxloom.api import compile, compile_fx, explain, list_backends, plugins, reset, stats
from fxloom_dynamo.controls import disable, graph_break, skip
from fxloom_dynamo.dynamic import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic

__version__ = "0.1.0"

__all__ = [
    "compile",
    "compile_fx",
    "disable",
    "exc",
    "explain",
    "graph_break",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "plugins",
    "reset",
    "skip",
    "stats",
]
