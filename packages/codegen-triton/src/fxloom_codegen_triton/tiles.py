"""Launch parameters of a kernel: how many points one program computes at a time, and in which integers it counts them.

In: a `Kernel`, of which only extents and index expressions are looked at. Out: `Tiles`, and whether 64-bit indices are needed.
Invariant: a persistent kernel's inner tile covers its whole inner range.
"""

from __future__ import annotations

from dataclasses import dataclass

from fxloom_codegen_triton.capabilities import PERSISTENT_NUMEL
from fxloom_interfaces.expr import bounds, folds_columns, is_static, product, symbol
from fxloom_interfaces.program import Kernel, Load, Store

#: Elements of a fold of columns whose rows stay in registers: with short rows a tile spans enough columns for whole sectors.
_SHORT_ROW = 64
_SMALL_NUMEL = 1 << 18


@dataclass(frozen=True, slots=True)
class Tiles:
    """Launch parameters. outer_tile, inner_tile: points that a program computes at a time, powers of two.

    inner_tile: 0 in pointwise kernels. persistent: it covers the inner range.
    """

    outer_tile: int
    inner_tile: int
    num_warps: int
    persistent: bool


def choose_tiles(kernel: Kernel) -> Tiles:
    """Tiles by a rule of thumb: enough points per program to fill its warps, rows contiguous along lanes."""
    if not kernel.inner:
        numel = product([axis.size for axis in kernel.outer])
        small = is_static(numel) and int(numel) < 1 << 17
        return Tiles(256 if small else 1024, 0, 4, False)
    inner_count = product([axis.size for axis in kernel.inner])
    persistent = is_static(inner_count) and int(inner_count) <= PERSISTENT_NUMEL
    loads = [i.index for i in kernel.instructions() if isinstance(i, Load)]
    columns = folds_columns(loads, *([symbol(axis.name) for axis in axes] for axes in (kernel.outer, kernel.inner)))
    if columns and not (persistent and _is_small(kernel)):
        return Tiles(64, 32, 8, False)
    if persistent:
        inner_tile = max(_power_of_two(int(inner_count)), 1)
        outer_tile = 64 if columns and inner_tile <= _SHORT_ROW else max(1, min(64, 2048 // inner_tile))
        tile = outer_tile * inner_tile
        return Tiles(outer_tile, inner_tile, 4 if tile <= 2048 else 8 if tile <= 8192 else 16, True)
    return Tiles(1, 2048, 8, False)


def _is_small(kernel: Kernel) -> bool:
    """Whether it costs less to read whole sectors of memory for single elements than to have few programs, each with a long loop."""
    inner, numel = (product([axis.size for axis in axes]) for axes in (kernel.inner, (*kernel.outer, *kernel.inner)))
    return is_static(numel) and (int(inner) <= _SHORT_ROW or int(numel) <= _SMALL_NUMEL)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def needs_64_bits(kernel: Kernel) -> bool:
    """Whether some index may not fit 32 bits; unknown bounds count as too large."""
    extents = {symbol(axis.name): axis.size for axis in (*kernel.outer, *kernel.inner)}
    limit = (1 << 31) - 1
    for axes in (kernel.outer, kernel.inner):
        numel = product([axis.size for axis in axes])
        if not is_static(numel) or int(numel) + (1 << 16) > limit:
            return True
    for instruction in kernel.instructions():
        if isinstance(instruction, (Load, Store)) and not isinstance(instruction.index, int):
            if not all(s in extents for s in instruction.index.free_symbols):
                continue  # indirect: computed from int64 data
            low, high = bounds(instruction.index, extents)
            if low is None or high is None or high > limit or low < -limit:
                return True
    return False
