"""One kernel of the loop IR as one C++ function.

In: a `Kernel` and the name of the function. Out: its text; PluginError for what C++ has no spelling of. Invariant: the same kernel
gives the same bytes, on every machine; what differs between processors stands in the prelude and in the compiler's flags.

Scalar bodies inside `omp simd` loops: the compiler makes the vectors, the text stays what the kernel says. Four shapes:
- lanes along the last inner axis (rows are contiguous): one outer point at a time;
- lanes along the last outer axis (columns are contiguous): LANES outer points at a time; a value that a later stage reads is an
  array with an element for each lane;
- tiles of the last outer axis and another one (no inner axes, some tensors are contiguous along the other);
- scatters: no two threads write one element, and points that meet at one follow each other in order.

The function takes its arguments as an array of 64-bit integers (addresses, then sizes) and returns 0, or which kinds of errors
indices out of range raise: 1 for IndexError, or 2 for RuntimeError.
"""

from __future__ import annotations

from contextlib import ExitStack

from fxloom_codegen_cpp.columns import ColumnEmitter
from fxloom_codegen_cpp.dtypes import memory_type
from fxloom_codegen_cpp.rows import RowEmitter
from fxloom_codegen_cpp.scatters import ScatterEmitter
from fxloom_codegen_cpp.tiles import TileEmitter, tiling_of
from fxloom_interfaces.expr import product
from fxloom_interfaces.program import Kernel


def emit_kernel(kernel: Kernel, name: str, linkage: str = 'extern "C"') -> str:
    """The function `name`, ending in a newline."""
    return _Emitter(kernel, name).emit(linkage)


class _Emitter(RowEmitter, ColumnEmitter, TileEmitter, ScatterEmitter):
    """The function around the loops, and loops without inner axes."""

    def emit(self, linkage: str) -> str:
        kernel, out = self.kernel, self.out
        out.comment(f"{' + '.join(kernel.title) or 'copy'}")
        out.comment("; ".join(str(b) for b in kernel.buffers))
        with out.block(f"{linkage} i64 {self.name}(const i64* arguments) {{"):
            for position, buffer in enumerate(kernel.arguments):
                constant = "const " if buffer.role == "in" else ""
                kind = memory_type(buffer.dtype)
                out.line(f"{constant}{kind}* {buffer.name} = ({constant}{kind}*)arguments[{position}];")
            for position, size in enumerate(kernel.sizes, len(kernel.arguments)):
                out.line(f"const i64 {size} = arguments[{position}];")
            if self.checks:
                out.line("i64 bad = 0;")
            if self.scatters:
                self._scatter()
            elif not kernel.inner:
                self._pointwise()
            elif self.across:
                self._columns()
            else:
                self._rows()
            out.line(f"return {'bad' if self.checks else '0'};")
        return out.text()

    def _pointwise(self) -> None:
        axes, stage = self.kernel.outer, self.kernel.stages[0]
        if not axes:
            with self.out.block("{"):
                self._body(0, stage)
            return
        tiling = tiling_of(self.kernel)
        if tiling is not None:
            self._tiled(tiling)
            return
        head, last = axes[:-1], axes[-1]
        rows = product(a.size for a in head)
        share_rows = bool(head) and (not isinstance(rows, int) or rows >= 16)
        with ExitStack() as loops:
            if self.parallel and share_rows:
                collapse = [f"collapse({len(head)})"] if len(head) > 1 else []
                self.out.line(f"#pragma omp parallel for{self._clauses(*collapse, *self._if_large())}")
            for axis in head:
                loops.enter_context(self._loop(axis))
            if self.parallel and not share_rows:
                self.out.line(f"#pragma omp parallel for simd{self._clauses(*self._if_large())}")
            else:
                self.out.line(f"#pragma omp simd{self._clauses()}")
            with self._loop(last):
                self._body(0, stage)
