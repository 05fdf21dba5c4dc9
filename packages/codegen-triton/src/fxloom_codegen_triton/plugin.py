"""The entry object of the Triton code generator: `fxloom_interfaces.codegen.Codegen`, each method in a module of its own.

In: kernels, or the parameters of a template. Out: sources (`emit`, `grouped`, `templates`), and callables of them (`build`).
Invariant: importing this module pulls in neither torch nor Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fxloom_codegen_triton.capabilities import CAPABILITIES
from fxloom_codegen_triton.templates import TEMPLATES
from fxloom_interfaces.codegen import BuiltKernels, Capabilities, KernelSource
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.versions import LOOP_IR, Version

if TYPE_CHECKING:
    from fxloom_interfaces.program import Kernel


@dataclass(frozen=True, slots=True)
class TritonCodegen:
    """Triton kernels for CUDA devices; see `emit` for what a kernel looks like."""

    name: str = "triton"
    device_types: tuple[str, ...] = ("cuda",)
    loop_ir: Version = LOOP_IR
    capabilities: Capabilities = CAPABILITIES

    def emit(self, kernel: Kernel, name: str) -> KernelSource:
        """A Triton function `name`, with its block sizes and grid in `details`. PluginError for what Triton can't express."""
        from fxloom_codegen_triton.emit import emit_kernel

        return emit_kernel(kernel, name)

    def emit_grouped(self, kernel: Kernel, name: str) -> KernelSource:
        """A Triton function `name` that runs an elementwise kernel on several sets of arguments; see `grouped`."""
        from fxloom_codegen_triton.grouped import emit_grouped_kernel

        return emit_grouped_kernel(kernel, name)

    def template(self, kind: str, name: str, parameters: Mapping[str, Any]) -> KernelSource:
        """The template `kind` of `templates.TEMPLATES` as function `name`. PluginError for one that is not there."""
        if kind not in TEMPLATES:
            raise PluginError(self.name, f"has no template {kind!r}")
        source = TEMPLATES[kind].render(name, parameters)
        return replace(source, details={**source.details, "template": kind})

    def build(self, sources: Sequence[KernelSource], store: Any) -> BuiltKernels:
        """Write the sources as one module into `store`, import it and compile its kernels.

        ToolchainError when Triton is missing or refuses a kernel.
        """
        from fxloom_codegen_triton.build import build_kernels

        return build_kernels(sources, store)


PLUGIN = TritonCodegen()
