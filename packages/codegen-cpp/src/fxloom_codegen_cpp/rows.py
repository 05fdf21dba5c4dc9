"""Lanes along the last inner axis: one outer point at a time, its row in vectors.

In: a kernel with inner axes whose rows are contiguous. Out: its loops. Invariant: sums of floats are added in blocks of their own type,
and the blocks in a wider one; means and deviations are joined in double.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from fxloom_codegen_cpp.body import BodyEmitter
from fxloom_codegen_cpp.dtypes import ctype, memory_type
from fxloom_codegen_cpp.folds import clause, identity, is_float_sum, running_type
from fxloom_interfaces.expr import product
from fxloom_interfaces.program import Accumulate, Axis, Reduce, Stage, Store

#: Terms of a sum along a row that are added in their own type, then to a wider one: errors grow with the block, not with the
#: row. The prelude knows how many vectors they are.
SUM_BLOCK = "FXLOOM_SUM_BLOCK"

#: Where the end of a block costs as much as a short one does: a maximum's lanes are folded, means and deviations are joined.
LONG_BLOCK = f"4 * {SUM_BLOCK}"

#: Rows of at most this many terms are one block.
SHORT_ROW = 128


class RowEmitter(BodyEmitter):
    def _rows(self) -> None:
        kernel, out = self.kernel, self.out
        with ExitStack() as loops:
            if self.parallel and kernel.outer:
                collapse = [f"collapse({len(kernel.outer)})"] if len(kernel.outer) > 1 else []
                out.line(f"#pragma omp parallel for{self._clauses(*collapse, *self._if_large())}")
            for axis in kernel.outer:
                loops.enter_context(self._loop(axis))
            for buffer in kernel.buffers:
                if buffer.role == "scratch":
                    out.line(f"alignas(64) {memory_type(buffer.dtype)} {buffer.name}[{self._index(buffer.numel)}];")
            for number, stage in enumerate(kernel.stages):
                if stage.inner:
                    self._row_stage(number, stage)
                else:
                    self._body(number, stage)

    def _row_stage(self, number: int, stage: Stage) -> None:
        out, inner = self.out, self.kernel.inner
        reductions = [i for i in stage.body if isinstance(i, Reduce)]
        ordered = any(r.kind in ("argmax", "argmin", "welford", "xor_sum") for r in reductions) or any(
            isinstance(i, Accumulate) for i in stage.body
        )
        terms = product(a.size for a in inner)
        sums = [] if isinstance(terms, int) and terms <= SHORT_ROW else [r for r in reductions if is_float_sum(r)]
        self.wide.update(r.results[0] for r in sums)
        for reduction in reductions:
            self._declare(reduction)
        for instruction in stage.body:
            if isinstance(instruction, Accumulate):
                start = identity(instruction.kind, instruction.dtype)
                out.line(f"{running_type(instruction.kind, instruction.dtype)} v{instruction.result} = {start};")
        last = inner[-1]
        welford = [r for r in reductions if r.kind == "welford"]
        if welford and len(reductions) == len(welford) and not any(isinstance(i, (Store, Accumulate)) for i in stage.body):
            self._welford_rows(number, stage, welford)
            return
        with ExitStack() as loops:
            for axis in inner[:-1]:
                loops.enter_context(self._loop(axis))
            if sums and not ordered:  # where the order counts, each term is added to the wider type
                self._blocked(number, stage, reductions, sums, last)
                return
            if not ordered:
                out.line(f"#pragma omp simd{self._clauses(*(clause(r) for r in reductions), stage=stage)}")
            with self._loop(last):
                self._body(number, stage)

    def _blocked(self, number: int, stage: Stage, reductions: Sequence[Reduce], sums: Sequence[Reduce], last: Axis) -> None:
        out = self.out
        begin, end = f"{last.name}_begin", f"{last.name}_end"
        block = SUM_BLOCK if len(sums) == len(reductions) else LONG_BLOCK
        with ExitStack() as loops:
            if isinstance(last.size, int) and last.size <= SHORT_ROW:
                head = f"for (i64 {last.name} = 0; {last.name} < {last.size}; ++{last.name}) {{"
            else:
                head = f"for (i64 {last.name} = {begin}; {last.name} < {end}; ++{last.name}) {{"
                loops.enter_context(out.block(f"for (i64 {begin} = 0; {begin} < {self._size(last)}; {begin} += {block}) {{"))
                out.line(f"const i64 {end} = minimum<i64>({begin} + {block}, {self._size(last)});")
            for reduction in sums:
                out.line(f"{ctype(reduction.dtype)} v{reduction.results[0]}_block = 0;")
            clauses = [clause(r, "_block" if r in sums else "") for r in reductions]
            out.line(f"#pragma omp simd{self._clauses(*clauses, stage=stage)}")
            with out.block(head):
                self._body(number, stage, block_sums=True)
            for reduction in sums:
                out.line(f"v{reduction.results[0]} += v{reduction.results[0]}_block;")

    def _welford_rows(self, number: int, stage: Stage, reductions: Sequence[Reduce]) -> None:
        """Mean and squared deviations by blocks: two passes over a block that lies in the cache, then joined in double
        (Chan, Golub, LeVeque 1983, equation 2.1)."""
        out, inner = self.out, self.kernel.inner
        last = inner[-1]
        start, end = f"{last.name}_begin", f"{last.name}_end"
        with ExitStack() as loops:
            for axis in inner[:-1]:
                loops.enter_context(self._loop(axis))
            head = f"for (i64 {start} = 0; {start} < {self._size(last)}; {start} += {LONG_BLOCK}) {{"
            loops.enter_context(out.block(head))
            out.line(f"const i64 {end} = minimum<i64>({start} + {LONG_BLOCK}, {self._size(last)});")
            out.line(f"const double terms = (double)({end} - {start});")
            for reduction in reductions:
                name = f"v{reduction.results[0]}"
                kind = ctype(reduction.dtype)
                out.line(f"alignas(64) {kind} {name}_block[{LONG_BLOCK}];")
                out.line(f"{kind} {name}_sum = 0, {name}_squares = 0;")
            clauses = [f"reduction(+:v{r.results[0]}_sum)" for r in reductions]
            out.line(f"#pragma omp simd{self._clauses(*clauses, stage=stage)}")
            with out.block(f"for (i64 {last.name} = {start}; {last.name} < {end}; ++{last.name}) {{"):
                self._body(number, Stage(True, tuple(i for i in stage.body if not isinstance(i, Reduce))))
                for reduction in reductions:
                    name = f"v{reduction.results[0]}"
                    out.line(f"{name}_block[{last.name} - {start}] = {self.texts[reduction.value]};")
                    out.line(f"{name}_sum += {name}_block[{last.name} - {start}];")
            for reduction in reductions:
                self._welford_join(reduction, f"{end} - {start}")

    def _welford_join(self, reduction: Reduce, terms: str) -> None:
        out = self.out
        mean, squares, count = (f"v{r}" for r in reduction.results)
        kind = ctype(reduction.dtype)
        out.line(f"const {kind} {mean}_here = ({kind})({mean}_sum / terms);")
        out.line(f"#pragma omp simd reduction(+:{mean}_squares)")
        with out.block(f"for (i64 term = 0; term < {terms}; ++term) {{"):
            out.line(f"const {kind} deviation = {mean}_block[term] - {mean}_here;")
            out.line(f"{mean}_squares += deviation * deviation;")
        with out.block("{"):
            out.line(f"const double step = (double){mean}_here - {mean};")
            out.line(f"const double total = {count} + terms;")
            out.line(f"{squares} += {mean}_squares + step * step * {count} * terms / total;")
            out.line(f"{mean} += step * terms / total;")
            out.line(f"{count} = total;")
