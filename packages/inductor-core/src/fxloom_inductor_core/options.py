"""Options of inductor-core. Filled by the umbrella; a snapshot is part of the cache keys."""

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
