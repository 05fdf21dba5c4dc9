"""Graph modules whose generated source dies with them.

In: what `torch.fx.GraphModule` takes. Out: such a module. torch.fx keeps the source of every module that it ever compiled, for
tracebacks; a process that compiles again and again would grow for ever.
"""

from __future__ import annotations

import linecache
import weakref

import torch
import torch.fx

from fxloom_interfaces._torch_private import GENERATED_SOURCES


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph, class_name: str = "GraphModule") -> torch.fx.GraphModule:
    """`torch.fx.GraphModule(root, graph, class_name)`. What it is compiled to anew later (`recompile`) is not looked after."""
    made = torch.fx.GraphModule(root, graph, class_name)
    weakref.finalize(made, _forget, type(made).forward.__code__.co_filename).atexit = False
    return made


def _forget(name: str) -> None:
    GENERATED_SOURCES.pop(name, None)
    linecache.cache.pop(name, None)
