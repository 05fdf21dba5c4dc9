"""Elementwise loops in which some tensors are contiguous along another axis than the last one: two axes are run through in tiles.

In: a kernel without inner axes. Out: what is transposed (`tiling_of`), and its loops. Invariant: memory is read and written along the
axis on which it is contiguous. The elements of a tile that lie across are turned in a buffer of the thread's: before the tile's points
run, if they are read, and afterwards, if they are written.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

from fxloom_codegen_cpp.body import BodyEmitter
from fxloom_codegen_cpp.dtypes import memory_type
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.expr import Expr, free_symbols, stride_of, symbol
from fxloom_interfaces.program import Axis, Kernel, Load, Store

#: Points of a tile along each axis: rows of several cache lines, for which the machine reads ahead.
TILE = 64

#: Bytes that a thread's tiles take at most. What is beyond is read or written in place, which is slow along columns, but in the cache.
_MAX_TILE_NBYTES = 1 << 18

#: Axes shorter than this are not worth a tile.
_SHORT = 8

#: Steps of so few elements touch a cache line several times.
_NEAR = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """across: the axis that is tiled beside the last one. transposed: loads and stores that are contiguous along it."""

    across: Axis
    transposed: tuple[Load | Store, ...]


def tiling_of(kernel: Kernel) -> Tiling | None:
    """How to tile an elementwise kernel; None where all memory is read and written along the last axis, or jumped about in anyway."""
    if len(kernel.outer) < 2 or _is_short(kernel.outer[-1]):
        return None
    accesses = [i for i in kernel.instructions() if isinstance(i, (Load, Store))]
    last = kernel.outer[-1]
    jumping = {index for index in {i.index for i in accesses} if not _is_near(stride_of(index, symbol(last.name)))}
    found: tuple[Axis, list[Load | Store]] | None = None
    for axis in kernel.outer[:-1] if jumping else ():
        lying = [] if _is_short(axis) else [i for i in accesses if i.index in jumping and _lies_along(i.index, axis)]
        if lying and (found is None or len(lying) > len(found[1])):
            found = axis, lying
    if found is None:
        return None
    transposed: list[Load | Store] = []
    room = _MAX_TILE_NBYTES
    for access in found[1]:
        room -= TILE * TILE * dtype_info(_buffer_dtype(kernel, access.buffer)).nbytes
        if room >= 0 and _may_be_moved(kernel, access, found[0], accesses):
            transposed.append(access)
    return Tiling(found[0], tuple(transposed))


def _is_short(axis: Axis) -> bool:
    return isinstance(axis.size, int) and axis.size < _SHORT


def _is_near(step: Expr | None) -> bool:
    """True where neighbours share cache lines, or nothing is known of the step."""
    return step is None or (isinstance(step, int) and abs(step) <= _NEAR)


def _lies_along(index: Expr, axis: Axis) -> bool:
    step = stride_of(index, symbol(axis.name))
    return isinstance(step, int) and step != 0 and _is_near(step)


def _may_be_moved(kernel: Kernel, access: Load | Store, axis: Axis, accesses: Collection[Load | Store]) -> bool:
    """True where a whole tile may be read before its points run, or written after they did."""
    known = {symbol(name) for name in (*(a.name for a in kernel.outer), *kernel.sizes)}
    if stride_of(access.index, symbol(axis.name)) != 1 or not free_symbols(access.index) <= known:
        return False
    if isinstance(access, Load):
        return access.mask is None and all(i.buffer != access.buffer for i in accesses if isinstance(i, Store))
    return sum(1 for i in accesses if i.buffer == access.buffer) == 1


def _buffer_dtype(kernel: Kernel, name: str) -> str:
    return next(b.dtype for b in kernel.buffers if b.name == name)


class TileEmitter(BodyEmitter):
    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(kernel, name)
        self.tiles: dict[Load | Store, str] = {}  # the buffers of what is transposed
        self.tile_element = ""

    def _tiled(self, tiling: Tiling) -> None:
        out, kernel, stage = self.out, self.kernel, self.kernel.stages[0]
        across, last = tiling.across, kernel.outer[-1]
        head = [a for a in kernel.outer if a not in (across, last)]
        self.tiles = {access: f"tile{number}" for number, access in enumerate(tiling.transposed)}
        row, column = (f"{axis.name} - {axis.name}_begin" for axis in (across, last))
        self.tile_element = f"({row}) * {TILE} + {column}"
        with ExitStack() as loops:
            if self.parallel:
                out.line(f"#pragma omp parallel for{self._clauses(f'collapse({len(head) + 2})', *self._if_large())}")
            for axis in head:
                loops.enter_context(self._loop(axis))
            for axis in (across, last):
                begin = f"{axis.name}_begin"
                loops.enter_context(out.block(f"for (i64 {begin} = 0; {begin} < {self._size(axis)}; {begin} += {TILE}) {{"))
            for axis in (across, last):
                out.line(f"const i64 {axis.name}_end = minimum<i64>({axis.name}_begin + {TILE}, {self._size(axis)});")
            for access, tile in self.tiles.items():
                out.line(f"alignas(64) {memory_type(self.buffers[access.buffer].dtype)} {tile}[{TILE * TILE}];")
            self._turn(Load, across, last)
            with out.block(f"for (i64 {across.name} = {across.name}_begin; {across.name} < {across.name}_end; ++{across.name}) {{"):
                out.line(f"#pragma omp simd{self._clauses()}")
                with out.block(f"for (i64 {last.name} = {last.name}_begin; {last.name} < {last.name}_end; ++{last.name}) {{"):
                    self._body(0, stage)
            self._turn(Store, across, last)

    def _turn(self, kind: type[Load] | type[Store], across: Axis, last: Axis) -> None:
        """Between memory and tiles, whose rows run along the last axis."""
        moved = [(access, tile) for access, tile in self.tiles.items() if isinstance(access, kind)]
        if not moved:
            return
        extents = [f"{axis.name}_end - {axis.name}_begin" for axis in (across, last)]
        with self.out.block("{"):
            for axis in (across, last):
                self.out.line(f"const i64 {axis.name} = {axis.name}_begin;")
            for access, tile in moved:
                first = f"&{access.buffer}[{self._index(access.index)}]"
                step = self._index(stride_of(access.index, symbol(last.name)) or 0)
                if kind is Load:
                    self.out.line(f"transpose({first}, {step}, {tile}, {TILE}, {extents[1]}, {extents[0]});")
                else:
                    self.out.line(f"transpose({tile}, {TILE}, {first}, {step}, {extents[0]}, {extents[1]});")

    def _element(self, access: Load | Store) -> str:
        tile = self.tiles.get(access)
        return super()._element(access) if tile is None else f"{tile}[{self.tile_element}]"
