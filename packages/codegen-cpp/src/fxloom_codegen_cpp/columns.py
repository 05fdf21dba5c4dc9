"""Lanes along the last outer axis: LANES outer points at a time, whose columns are contiguous.

In: a kernel for which `lanes_across` holds. Out: its loops. Invariant: a value that a later stage reads is an array with an element for
each lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fxloom_codegen_cpp.body import BodyEmitter
from fxloom_codegen_cpp.dtypes import ctype, memory_type
from fxloom_codegen_cpp.folds import identity, is_float_sum, running_type
from fxloom_codegen_cpp.lanes import LANES
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import product
from fxloom_interfaces.program import (
    Accumulate,
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    Reduce,
    Stage,
    results_of,
)

#: Terms of a sum down a column that are added in their own type; nothing but the block splits the chain of additions there.
COLUMN_BLOCK = 64


class ColumnEmitter(BodyEmitter):
    def _columns(self) -> None:
        kernel, out = self.kernel, self.out
        head, last = kernel.outer[:-1], kernel.outer[-1]
        with ExitStack() as loops:
            if self.parallel:
                collapse = [f"collapse({len(kernel.outer)})"] if head else []
                out.line(f"#pragma omp parallel for{self._clauses(*collapse, *self._if_large())}")
            for axis in head:
                loops.enter_context(self._loop(axis))
            begin = f"{last.name}_begin"
            loops.enter_context(out.block(f"for (i64 {begin} = 0; {begin} < {self._size(last)}; {begin} += {LANES}) {{"))
            out.line(f"const int lanes = (int)minimum<i64>({LANES}, {self._size(last)} - {begin});")
            for buffer in kernel.buffers:
                if buffer.role == "scratch":
                    out.line(f"alignas(64) {memory_type(buffer.dtype)} {buffer.name}[{self._index(buffer.numel)} * {LANES}];")
            for number, stage in enumerate(kernel.stages):
                block = self._column_block(stage)
                if block is not None:
                    self.wide.update(i.results[0] for i in stage.body if isinstance(i, Reduce) and is_float_sum(i))
                for instruction in stage.body:
                    if isinstance(instruction, Reduce):
                        self._declare(instruction, lanes=True)
                    elif isinstance(instruction, Accumulate):
                        self._declare_running(instruction)
                    elif isinstance(instruction, Indirect):
                        if self._crosses(number, instruction):
                            out.line(f"i64 {instruction.symbol}_lanes[{LANES}];")
                    elif not stage.inner and not isinstance(instruction, Constant):
                        self._declare_crossing(number, instruction)
                with ExitStack() as inner:
                    for position, axis in enumerate(kernel.inner if stage.inner else ()):
                        if position == 0 and block is not None:
                            inner.enter_context(self._column_blocks(stage, axis, block))
                        else:
                            inner.enter_context(self._loop(axis))
                    out.line(f"#pragma omp simd{self._clauses(stage=stage)}")
                    inner.enter_context(out.block("for (int lane = 0; lane < lanes; ++lane) {"))
                    out.line(f"const i64 {last.name} = {begin} + lane;")
                    self._body(number, stage, block_sums=block is not None)

    def _column_block(self, stage: Stage) -> str | None:
        """Steps of the first inner axis per block of a sum; None where the column is short or nothing is summed."""
        inner = self.kernel.inner
        if not stage.inner or not any(is_float_sum(i) for i in stage.body):
            return None
        rest = product(a.size for a in inner[1:])
        total = product(a.size for a in inner)
        if isinstance(total, int) and total <= COLUMN_BLOCK:
            return None
        if isinstance(rest, int):
            return str(max(1, COLUMN_BLOCK // max(1, rest)))
        return f"maximum<i64>(1, {COLUMN_BLOCK} / maximum<i64>(1, {self._index(rest)}))"

    @contextmanager
    def _column_blocks(self, stage: Stage, axis: Axis, block: str) -> Iterator[None]:
        """The loop over `axis` in blocks, each summed on its own into `_block` arrays."""
        out = self.out
        sums = [i for i in stage.body if isinstance(i, Reduce) and is_float_sum(i)]
        start = f"{axis.name}_begin"
        with out.block(f"for (i64 {start} = 0; {start} < {self._size(axis)}; {start} += {block}) {{"):
            for reduction in sums:
                out.line(f"{ctype(reduction.dtype)} v{reduction.results[0]}_block[{LANES}] = {{}};")
            end = f"minimum<i64>({start} + {block}, {self._size(axis)})"
            with out.block(f"for (i64 {axis.name} = {start}; {axis.name} < {end}; ++{axis.name}) {{"):
                yield
            for reduction in sums:
                with out.block(f"for (int lane = 0; lane < {LANES}; ++lane) {{"):
                    out.line(f"v{reduction.results[0]}[lane] += v{reduction.results[0]}_block[lane];")

    def _declare_running(self, instruction: Accumulate) -> None:
        variable = f"v{instruction.result}_lanes"
        self.out.line(f"{running_type(instruction.kind, instruction.dtype)} {variable}[{LANES}];")
        with self.out.block(f"for (int lane = 0; lane < {LANES}; ++lane) {{"):
            self.out.line(f"{variable}[lane] = {identity(instruction.kind, instruction.dtype)};")

    def _declare_crossing(self, number: int, instruction: Instruction) -> None:
        for result in results_of(instruction):
            if any(use != number for use in self.uses.get(result, ())):
                self.out.line(f"{ctype(_result_dtype(instruction))} v{result}_lanes[{LANES}];")


def _result_dtype(instruction: Instruction) -> str:
    if isinstance(instruction, (Load, Constant, IndexValue, Compute)):
        return instruction.dtype
    raise PluginError("cpp", f"{instruction} in an outer stage")
