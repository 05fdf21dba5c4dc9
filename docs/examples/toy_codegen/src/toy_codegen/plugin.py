"""The entry object: what the plugin is called, which device it serves, what it can do. Imports neither torch nor NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxloom_interfaces.codegen import BuiltKernels, Capabilities, KernelSource
from fxloom_interfaces.versions import Version

if TYPE_CHECKING:
    from fxloom_interfaces.program import Kernel


@dataclass(frozen=True, slots=True)
class ToyCodegen:
    """NumPy on the CPU."""

    name: str = "toy"
    device_types: tuple[str, ...] = ("cpu",)
    loop_ir: Version = Version(2, 0)  # the version it was written for, not the one that is installed
    capabilities: Capabilities = Capabilities(
        arguments="tensor",
        fusions=frozenset({"pointwise", "reduction_prologue", "reduction_epilogue"}),
        reductions=frozenset({"sum", "max", "min"}),
        dtypes=frozenset({"bool", "int32", "int64", "float32", "float64"}),
        two_pass_numel=1 << 40,  # it has no Welford reduction
    )

    def emit(self, kernel: Kernel, name: str) -> KernelSource:
        from toy_codegen.emit import emit_kernel

        return emit_kernel(kernel, name)

    def build(self, sources: Sequence[KernelSource], store: Any) -> BuiltKernels:
        from toy_codegen.emit import build_kernels

        return build_kernels(sources, store)


PLUGIN = ToyCodegen()
