"""Graph modules that are printed and compiled to Python when they are first called, and whose generated source dies with them.

In: what `torch.fx.GraphModule` takes. Out: such a module. Most graphs are read and never called: a graph of thousands of nodes takes
Python a second to compile. torch.fx keeps the source of every module that it ever compiled, for tracebacks; a process that compiles
again and again would grow for ever.
"""

from __future__ import annotations

import linecache
import weakref
from types import MethodType
from typing import Any

import torch
import torch.fx

from fxloom_interfaces._torch_private import GENERATED_SOURCES


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph, class_name: str = "GraphModule") -> torch.fx.GraphModule:
    """`torch.fx.GraphModule(root, graph, class_name)`, compiled when it is called or its code is asked for."""
    made = CompiledWhenCalled(root, graph, class_name)
    weakref.finalize(made, _forget, made.__dict__["_sources"]).atexit = False
    return made


class CompiledWhenCalled(torch.fx.GraphModule):
    """A graph module that puts its compilation off. torch.fx makes a class of its own for each instance, and sets `forward` there."""

    _is_compiled = False

    def __init__(self, root: Any, graph: torch.fx.Graph, class_name: str = "GraphModule") -> None:
        self.__dict__["_sources"] = []  # names of the files that it was compiled from; before torch.fx sets the graph
        super().__init__(root, graph, class_name)

    def recompile(self) -> Any:
        """Compile anew where the module is compiled already; else that is left to the first call."""
        return self._compile() if self._is_compiled else None

    def _compile(self) -> Any:
        self.__dict__["_is_compiled"] = True
        made = super().recompile()
        self.__dict__.setdefault("_sources", []).append(type(self).forward.__code__.co_filename)  # copies come without `__init__`
        return made

    @property
    def forward(self) -> Any:  # type: ignore[override]  # read as the method that it becomes
        """The compiled method."""
        self._compile()
        return MethodType(type(self).forward, self)

    @property
    def code(self) -> str:
        if not self._is_compiled:
            self._compile()
        return super().code

    def __reduce__(self) -> Any:
        if not self._is_compiled:
            self._compile()
        return super().__reduce__()


def _forget(names: list[str]) -> None:
    for name in names:
        GENERATED_SOURCES.pop(name, None)
        linecache.cache.pop(name, None)
