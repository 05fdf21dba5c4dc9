"""Scatters: kernels that write elements at indices which they compute.

In: a kernel with outer axes only. Out: its loops. Invariant: no two threads write one element, and points that meet at one follow each
other in row-major order, so results don't depend on the number of threads.
"""

from __future__ import annotations

from contextlib import ExitStack

from fxloom_codegen_common.scatter import independent_axes
from fxloom_codegen_cpp.body import BodyEmitter
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import free_symbols, product, stride_of
from fxloom_interfaces.program import (
    Axis,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    Stage,
    Store,
    operands_of,
    results_of,
)

#: Elements of a row from which threads share its columns, and to a multiple of which they do: a cache line of float32.
_WIDE, _ALIGNED = 64, 16


class ScatterEmitter(BodyEmitter):
    def _scatter(self) -> None:
        """Points that may meet at an element run on one thread, in row-major order. Threads share the axes along which none meet:
        the outer ones, else the last one in blocks; where that is not enough, each takes a part of the elements, and of all
        points those that write there."""
        if self.kernel.inner:
            raise PluginError("cpp", f"kernel {self.name} scatters and folds")
        out, axes, stage = self.out, self.kernel.outer, self.kernel.stages[0]
        free = independent_axes(self.kernel)
        lanes = axes[-1] if axes and axes[-1] in free else None
        heads = [a for a in free if a is not lanes]
        rows = product(a.size for a in heads)
        shared = "nothing"
        if self.parallel and heads and (not isinstance(rows, int) or rows >= 16):
            shared = "heads"
        elif self.parallel and lanes is not None and (not isinstance(lanes.size, int) or lanes.size >= _WIDE):
            shared = "lanes"
        elif self.parallel and self._owned_symbol() is not None:
            shared = "elements"
        before, inside = hoisted(stage, lanes)
        with ExitStack() as loops:
            order = [a for a in axes if a is not lanes]
            if shared == "heads":
                order = [*heads, *(a for a in order if a not in heads)]
                collapse = [f"collapse({len(heads)})"] if len(heads) > 1 else []
                out.line(f"#pragma omp parallel for{self._clauses(*collapse, *self._if_large())}")
            elif shared == "lanes" and lanes is not None:
                begin, step = f"{lanes.name}_begin", f"{lanes.name}_step"
                out.line(f"const i64 {step} = (({self._size(lanes)}) / omp_get_max_threads() + {_ALIGNED}) / {_ALIGNED} * {_ALIGNED};")
                out.line(f"#pragma omp parallel for{self._clauses(*self._if_large())}")
                loops.enter_context(out.block(f"for (i64 {begin} = 0; {begin} < {self._size(lanes)}; {begin} += {step}) {{"))
                out.line(f"const i64 {lanes.name}_end = minimum<i64>({begin} + {step}, {self._size(lanes)});")
            elif shared == "elements":
                self.owned = self._owned_symbol()
                out.line(f"#pragma omp parallel{self._clauses(*self._if_large())}")
                loops.enter_context(out.block("{"))
                out.line("const i64 threads = omp_get_num_threads(), thread = omp_get_thread_num();")
                size = self._index(self._indirects()[self.owned].size) if self.owned else ""
                out.line(f"const i64 owned_begin = ({size}) * thread / threads, owned_end = ({size}) * (thread + 1) / threads;")
            for axis in order:
                loops.enter_context(self._loop(axis))
            if not order:  # for what leaves out a point to have a loop
                loops.enter_context(out.block("for (int point = 0; point < 1; ++point) {"))
            self._body(0, before)
            if lanes is not None:
                if not any(isinstance(i, Indirect) for i in inside.body):
                    out.line("#pragma omp simd")
                if shared == "lanes":
                    loops.enter_context(out.block(f"for (i64 {lanes.name} = {begin}; {lanes.name} < {lanes.name}_end; ++{lanes.name}) {{"))
                else:
                    loops.enter_context(self._loop(lanes))
                self._body(0, inside)

    def _indirects(self) -> dict[str, Indirect]:
        return {i.symbol: i for i in self.kernel.instructions() if isinstance(i, Indirect)}

    def _owned_symbol(self) -> str | None:
        """The indirect index that tells elements farthest apart, for the one scatter that there is."""
        if len(self.scatters) != 1:
            return None
        index = self.scatters[0].index
        plain = {name for name, made in self._indirects().items() if made.check and made.mask is None}
        strides = {s.name: stride_of(index, s) for s in free_symbols(index) if s.name in plain}
        known = {name: stride for name, stride in strides.items() if isinstance(stride, int)}
        if known:
            return max(known, key=lambda name: (known[name], name))
        return next(iter(strides)) if len(strides) == 1 and next(iter(strides.values())) is not None else None


def hoisted(stage: Stage, axis: Axis | None) -> tuple[Stage, Stage]:
    """What of a stage's body runs before the loop over `axis`, the innermost, and what runs in it: all that varies, and the stores."""
    if axis is None:
        return stage, Stage(False, ())
    before: list[Instruction] = []
    inside: list[Instruction] = []
    varying: set[int] = set()
    names = {axis.name}
    for instruction in stage.body:
        index = instruction.expr if isinstance(instruction, IndexValue) else instruction.index if isinstance(instruction, Load) else 0
        varies = any(s.name in names for s in free_symbols(index)) or any(o in varying for o in operands_of(instruction))
        if varies or isinstance(instruction, Store):
            inside.append(instruction)
            varying.update(results_of(instruction))
            if isinstance(instruction, Indirect):
                names.add(instruction.symbol)
        else:
            before.append(instruction)
    return Stage(False, tuple(before)), Stage(False, tuple(inside))
