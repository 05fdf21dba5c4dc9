"""Triton kernels and templates for GPUs."""

from fxloom_codegen_triton.plugin import PLUGIN, TritonCodegen

__all__ = ["PLUGIN", "TritonCodegen"]
