"""Capture and replay of a compiled callable's GPU launches."""

from fxloom_cudagraphs.plugin import PLUGIN, CudaGraphs

__all__ = ["PLUGIN", "CudaGraphs"]
