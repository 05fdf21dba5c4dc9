"""Options of inductor-core, filled by the umbrella and frozen for a compilation.

In: the user's options. Out: one frozen record that the passes, lowerings, scheduler and planner read. Invariant: options change
which program is made, and nothing but `numerics` how its results are rounded. Plugins keep built kernels under the text of their
sources, the toolchain and what else decides how they are built; whoever keeps more than kernels has `InductorOptions.declared` in its key.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from fxloom_interfaces.config import nearest
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.passes import Placed, key_of_passes, placed_passes

#: what `numerics` may be
NUMERICS = ("eager-rounding", "fast", "exact")


@dataclass(frozen=True, slots=True)
class InductorOptions:
    """What changes the generated program.

    fuse: fuse loops at all (off for debugging). max_fused_nodes: loops in one kernel at most. inline_ops: a lazily computed
    value with more ops than this is stored. inline_reads: likewise for distinct buffers read.
    channels_last: let convolutions choose a channels-last layout and carry it through the elementwise ops behind them.
    reuse_memory: let buffers take over the memory of dead ones. templates: let the plugin's own kernels compete with the
    library where it offers them (matrix products); the plugin measures and takes the faster.
    early_gradients_nbytes: a backward graph whose gradients take at least so many bytes gives them away in parts as it makes
    them, so that they are accumulated and freed; 0: never.

    numerics: how results are rounded. "eager-rounding": every operator rounds its result to its dtype, as eager's does, also where
    it stays in a kernel. "fast": a float16 or bfloat16 that stays in a kernel keeps the float32 that it was computed in. "exact":
    results are eager's, bit by bit: what a kernel may round differently (sums, functions, products of matrices) is eager's own
    call, and random numbers are those that eager draws. ConfigError for another name.

    disabled_passes: names of graph passes that don't run (`passes.pipeline`, or a user's). passes: the user's own, as pairs of a point
    and a pass, or a mapping of points to lists of passes (`fxloom_interfaces.passes`).
    """

    fuse: bool = True
    max_fused_nodes: int = 64
    inline_ops: int = 60
    inline_reads: int = 8
    channels_last: bool = True
    reuse_memory: bool = True
    templates: bool = False
    early_gradients_nbytes: int = 1 << 25
    numerics: str = "eager-rounding"
    disabled_passes: tuple[str, ...] = ()
    passes: tuple[Placed, ...] = ()

    def __post_init__(self) -> None:
        disabled = (self.disabled_passes,) if isinstance(self.disabled_passes, str) else tuple(self.disabled_passes)
        object.__setattr__(self, "disabled_passes", disabled)
        object.__setattr__(self, "passes", placed_passes(self.passes))
        if self.numerics not in NUMERICS:
            raise ConfigError(f"unknown numerics {self.numerics!r}{nearest(str(self.numerics), list(NUMERICS))}")

    def declared(self) -> dict[str, str]:
        """All options as text, by name: what an artifact made under them depends on. Passes go by their keys."""
        texts = {field.name: repr(getattr(self, field.name)) for field in fields(self)}
        return texts | {"passes": key_of_passes(self.passes)}
