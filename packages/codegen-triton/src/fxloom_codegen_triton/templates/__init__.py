"""The templates that this code generator offers: kernels written by hand for whole operators, one module for each.

A lowering, in inductor-core's `lowering/`, asks for one by its kind (`LoweringContext.template`); `OffersTemplates` in the
interfaces says what a kind's parameters and operands are. Importing this pulls in neither torch nor Triton.
"""

from fxloom_codegen_triton.templates.gemm import GEMM
from fxloom_codegen_triton.templates.template import Template

#: Kind -> template; the kinds are `capabilities.templates` of the plugin.
TEMPLATES: dict[str, Template] = {"mm": GEMM}

__all__ = ["TEMPLATES", "Template"]
