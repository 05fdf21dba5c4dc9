"""What a code generator plugin is: one frozen object per plugin, found under the entry-point group `fxloom.codegen`.

    kernel --emit--> KernelSource --build (many at once)--> BuiltKernels: name -> callable

In: kernels (`program.Kernel`). Out: callables with the launch convention `kernel(*buffers, *sizes)`: buffers as tensors or as
addresses by `capabilities.arguments`, in the order of `Kernel.arguments`; sizes are ints in the order of `Kernel.sizes`. A launch
returns nothing and runs on the current stream. A grouped kernel (`EmitsGrouped`) is launched on many sets of arguments at once:
`kernel([*buffers, *sizes, *buffers, *sizes, ...])`.
Invariant: the scheduler reads `capabilities` and knows nothing else about the device. Importing the plugin's object pulls in
neither torch nor the target's toolchain: the methods import what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fxloom_interfaces.errors import PluginVersionError
from fxloom_interfaces.versions import LOOP_IR, Version

if TYPE_CHECKING:
    from fxloom_interfaces.program import Kernel, Program

GROUP = "fxloom.codegen"

#: Fusions that the scheduler may ask for, by name.
Fusion = Literal["pointwise", "reduction_prologue", "reduction_epilogue", "horizontal", "grouped"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target can do; the scheduler asks nothing else.

    arguments: whether launches take addresses (ints) or tensors.
    fusions: "pointwise" into pointwise; "reduction_prologue": pointwise into a reduction that reads it;
    "reduction_epilogue": what follows a reduction over the same rows into its kernel, further reductions included;
    "horizontal": independent loops of the same ranges. "grouped": independent loops with the same body, over other sizes and
    buffers, in one launch; the plugin is an `EmitsGrouped`.
    reductions, scans: kinds it can emit. dtypes: it can load, store and compute.
    max_scratch_nbytes: largest scratch buffer per outer point (0: none; the scheduler then never asks for one).
    two_pass_numel: reductions of at most that many elements compute a variance in two passes, longer ones by Welford.
    max_scan_numel: longest scan; None: no limit. Longer ones, and ones of unknown length, are left to libraries.
    scatters: modes of scatters it can emit and the dtypes they work on, as "add float32"; "assign" is the mode None.
    ordered_scatters: points that meet at an element do so in row-major order of the axes, so that results don't vary.
    parallelism: independent outer points wanted to fill the device (for splitting reductions).
    enough_rows: outer points from which on a reduction is left whole; 0: as many as `parallelism`.
    column_tile: outer points that share a processor where they lie side by side in memory and what is folded does not.
    serial_numel: elements that one processor may run through by itself rather than to start a second kernel.
    uneven_chunks: a reduction may be split in chunks the last of which is shorter, at the cost of a mask.
    max_arguments: most launch arguments of a kernel; of a grouped one, most arguments in a set.
    least_sets: of a grouped kernel; fewer are launched one after the other.
    vector_nbytes: width of a vector register, 0 where the notion does not apply.
    templates: template kinds it offers.
    """

    arguments: Literal["address", "tensor"] = "tensor"
    fusions: frozenset[Fusion] = frozenset({"pointwise"})
    reductions: frozenset[str] = frozenset({"sum", "max", "min"})
    scans: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset({"float32", "int64", "bool"})
    scatters: frozenset[str] = frozenset()
    ordered_scatters: bool = False
    random: bool = False
    max_scratch_nbytes: int = 0
    two_pass_numel: int = 1 << 16
    max_scan_numel: int | None = None
    parallelism: int = 1
    enough_rows: int = 0
    column_tile: int = 1
    serial_numel: int = 1 << 12
    uneven_chunks: bool = False
    max_arguments: int = 64
    least_sets: int = 2
    vector_nbytes: int = 0
    templates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The source of one kernel: a function `name` in the target's language. details: for the plugin's own `build`."""

    name: str
    language: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuiltKernels:
    """Callable kernels by name. compiler_runs: compilers started; cached: all were found in the store.

    source: everything that was compiled, as one text for the debug folder.
    """

    callables: Mapping[str, Callable[..., None]]
    compiler_runs: int
    cached: bool
    source: str = ""


@runtime_checkable
class Codegen(Protocol):
    """A code generator. All properties are constants of the plugin."""

    @property
    def name(self) -> str: ...

    @property
    def device_types(self) -> tuple[str, ...]:
        """Types of `torch.device` it serves: ("cpu",)."""
        ...

    @property
    def loop_ir(self) -> Version:
        """The version of the loop IR it was written for."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def emit(self, kernel: Kernel, name: str) -> KernelSource:
        """The source of `kernel` as function `name`; deterministic to the byte. PluginError for what it can't express."""
        ...

    def build(self, sources: Sequence[KernelSource], store: Any) -> BuiltKernels:
        """Compile (or find in `store`, an ArtifactStore) all sources at once. ToolchainError when the tools fail."""
        ...


@runtime_checkable
class WrapsProgram(Protocol):
    """A code generator that can also turn a whole program into one callable (the C++ wrapper). Optional."""

    def wrap(self, program: Program, kernels: Mapping[str, Callable[..., None]], store: Any) -> Callable[[list[Any]], list[Any]]:
        """`call(inputs)`: runs the program. `inputs` may be cleared to free memory early."""
        ...


@runtime_checkable
class EmitsGrouped(Protocol):
    """A code generator with grouped launches; `capabilities.fusions` has "grouped". Optional: others launch kernels one by one."""

    def emit_grouped(self, kernel: Kernel, name: str) -> KernelSource:
        """The source of function `name`, which runs `kernel` on each of several sets of arguments, as many as a launch gives.

        The kernel is elementwise or a fold (sum, prod, max, min, any, all), and all its extents are sizes: no scans, scratch, indirect
        indices, scatters or random numbers. No set writes what another touches.
        Deterministic to the byte; PluginError for what it can't express.
        """
        ...


@runtime_checkable
class OffersTemplates(Protocol):
    """A code generator with kernels of its own for whole operators; `capabilities.templates` names their kinds. Optional.

    kind "mm": parameters dtype and bias (bool); the callable is `mm(a, b, [bias,] out=)` of (M, K), (K, N), (N,), (M, N).
    """

    def template(self, kind: str, name: str, parameters: Mapping[str, Any]) -> KernelSource:
        """The source of function `name`, built with the kernels of the graph. Its callable takes tensors."""
        ...


def check_codegen(plugin: Codegen) -> Codegen:
    """`plugin` itself; PluginVersionError when it speaks a loop IR that this fxloom doesn't."""
    if not LOOP_IR.accepts(plugin.loop_ir):
        raise PluginVersionError(plugin.name, "loop IR", plugin.loop_ir, LOOP_IR)
    return plugin
