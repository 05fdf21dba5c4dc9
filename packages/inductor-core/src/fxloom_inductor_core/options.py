"""Options of inductor-core, filled by the umbrella and frozen for a compilation.

In: the user's options. Out: one frozen record that the passes, lowerings, scheduler and planner read. Invariant: options change
which program is made, never what it computes; so they are in no cache key: plugins keep built kernels under the text of their
sources, the toolchain and what else decides how they are built.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    fuse: bool = True
    max_fused_nodes: int = 64
    inline_ops: int = 60
    inline_reads: int = 8
    channels_last: bool = True
    reuse_memory: bool = True
    templates: bool = False
    early_gradients_nbytes: int = 1 << 25
