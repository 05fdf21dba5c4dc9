"""A code generator that runs kernels in the reference interpreter: slow, right, and without a toolchain. For tests of what
lies above the loop IR, and the shortest example of a plugin. Not registered as an entry point.

In: kernels. Out: sources whose text is the printed loop IR, and callables that interpret it on tensors. Invariant: a result depends
on the kernel alone, by the meanings of `interpreter`; nothing is compiled and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fxloom_codegen_common.interpreter import interpret_positional
from fxloom_interfaces.codegen import BuiltKernels, Capabilities, KernelSource
from fxloom_interfaces.dtypes import DTYPES
from fxloom_interfaces.ops import REDUCTION_RESULTS
from fxloom_interfaces.program import Kernel
from fxloom_interfaces.versions import LOOP_IR, Version

_CAPABILITIES = Capabilities(
    arguments="tensor",
    fusions=frozenset({"pointwise", "reduction_prologue", "reduction_epilogue", "horizontal", "grouped"}),
    reductions=frozenset(REDUCTION_RESULTS),
    scans=frozenset({"sum", "prod", "max", "min", "logsumexp"}),
    dtypes=frozenset(name for name, info in DTYPES.items() if info.kind != "complex"),
    scatters=frozenset(
        f"{mode} {name}"
        for name, info in DTYPES.items()
        for mode in ("assign", "add", "mul", "min", "max")
        if info.kind != "complex" and (mode not in ("add", "mul") or info.kind != "bool")
    ),
    ordered_scatters=True,
    random=True,
    max_scratch_nbytes=1 << 20,
)


@dataclass(frozen=True, slots=True)
class ReferenceCodegen:
    """Interprets kernels; takes every fusion."""

    name: str = "reference"
    device_types: tuple[str, ...] = ("cpu",)
    loop_ir: Version = LOOP_IR
    capabilities: Capabilities = _CAPABILITIES

    def emit(self, kernel: Kernel, name: str) -> KernelSource:
        """The kernel's own text."""
        return KernelSource(name, "loop-ir", kernel.text(), {"kernel": kernel})

    def emit_grouped(self, kernel: Kernel, name: str) -> KernelSource:
        """The kernel's own text; it runs on one set of arguments after the other."""
        return KernelSource(name, "loop-ir", kernel.text(), {"kernel": kernel, "grouped": True})

    def build(self, sources: Sequence[KernelSource], store: Any) -> BuiltKernels:
        """Callables over the interpreter; nothing is compiled."""
        callables = {
            source.name: partial(_interpret_sets if "grouped" in source.details else interpret_positional, source.details["kernel"])
            for source in sources
        }
        return BuiltKernels(callables, compiler_runs=0, cached=True, source="\n".join(s.text for s in sources))


def _interpret_sets(kernel: Kernel, arguments: Sequence[Any]) -> None:
    count = len(kernel.arguments) + len(kernel.sizes)
    for start in range(0, len(arguments), count):
        interpret_positional(kernel, *arguments[start : start + count])


REFERENCE = ReferenceCodegen()
