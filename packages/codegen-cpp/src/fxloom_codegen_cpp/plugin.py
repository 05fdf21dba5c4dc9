"""The entry object of the C++ code generator. Importing it imports neither torch nor a compiler.

In: kernels. Out: their C++ sources (`emit`), and callables (`build`) that take addresses of buffers, then sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fxloom_interfaces.codegen import BuiltKernels, Capabilities, KernelSource
from fxloom_interfaces.ops import REDUCTION_RESULTS
from fxloom_interfaces.versions import Version

if TYPE_CHECKING:
    from fxloom_interfaces.artifacts import ArtifactStore
    from fxloom_interfaces.program import Kernel


#: The loop IR this emitter was written for.
_LOOP_IR = Version(2, 1)

_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

_CAPABILITIES = Capabilities(
    arguments="address",
    fusions=frozenset({"pointwise", "reduction_prologue", "reduction_epilogue", "horizontal", "grouped"}),
    reductions=frozenset(REDUCTION_RESULTS),
    scans=frozenset({"sum", "prod", "max", "min", "logsumexp"}),
    dtypes=frozenset(_DTYPES),
    scatters=frozenset(
        f"{mode} {dtype}"
        for mode in ("assign", "add", "mul", "min", "max")
        for dtype in _DTYPES
        if mode not in ("add", "mul") or dtype != "bool"
    ),
    ordered_scatters=True,
    random=True,
    max_scratch_nbytes=1 << 18,
    two_pass_numel=1 << 16,
    parallelism=16,
    max_arguments=128,
    vector_nbytes=64,
)


@dataclass(frozen=True, slots=True)
class CppCodegen:
    """C++/OpenMP kernels for the CPU."""

    name: str = "cpp"
    device_types: tuple[str, ...] = ("cpu",)
    loop_ir: Version = _LOOP_IR
    capabilities: Capabilities = _CAPABILITIES

    def emit(self, kernel: Kernel, name: str) -> KernelSource:
        """The C++ function of a kernel."""
        from fxloom_codegen_cpp.emit import emit_kernel

        return KernelSource(name, "c++", emit_kernel(kernel, name), {"arguments": len(kernel.arguments) + len(kernel.sizes)})

    def emit_grouped(self, kernel: Kernel, name: str) -> KernelSource:
        """The C++ function that runs a kernel on many sets of arguments."""
        from fxloom_codegen_cpp.grouped import emit_grouped

        details = {"arguments": len(kernel.arguments) + len(kernel.sizes), "grouped": True}
        return KernelSource(name, "c++", emit_grouped(kernel, name), details)

    def build(self, sources: Sequence[KernelSource], store: ArtifactStore) -> BuiltKernels:
        """One translation unit, one compiler run."""
        from fxloom_codegen_cpp.build import build_kernels

        return build_kernels(sources, store)


PLUGIN = CppCodegen()
