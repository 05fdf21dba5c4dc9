"""One kernel on many sets of arguments, in one call.

In: a kernel whose extents are sizes. Out: functions. Of a fold `NAME_one` is the kernel's own function, and threads take sets, or share
one set after the other where these are few. Of an elementwise kernel `NAME_part` runs a range of the rows of one set: of its points
along the last axis where there is no other. `NAME` takes the number of sets, then their arguments, and gives each thread an equal
share of all elements, so that thousands of small tensors and a single large one keep all threads busy.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from fxloom_codegen_common.writer import SourceWriter
from fxloom_codegen_cpp.body import PARALLEL_OPS, BodyEmitter
from fxloom_codegen_cpp.dtypes import memory_type
from fxloom_codegen_cpp.emit import emit_kernel
from fxloom_interfaces.expr import Expr, free_symbols, product, symbol
from fxloom_interfaces.program import Axis, Compute, Constant, Instruction, Kernel, Load, Stage, results_of


def emit_grouped(kernel: Kernel, name: str) -> str:
    """The function `name`, which takes the number of sets, then their arguments, and those that it calls."""
    if kernel.inner:
        return _fold(kernel, name)
    return _GroupedEmitter(replace(kernel, stages=_split(kernel)), name).emit()


def _fold(kernel: Kernel, name: str) -> str:
    out = SourceWriter(comment_mark="//")
    count = len(kernel.arguments) + len(kernel.sizes)
    with out.block(f'extern "C" i64 {name}(const i64* arguments) {{'):
        out.line("const i64 sets = *arguments++;")
        out.line("#pragma omp parallel for schedule(dynamic) if (sets >= 2 * omp_get_max_threads())")
        with out.block("for (i64 set = 0; set < sets; ++set) {"):
            out.line(f"{name}_one(arguments + set * {count});")
        out.line("return 0;")
    return emit_kernel(kernel, f"{name}_one", "static") + out.text()


class _GroupedEmitter(BodyEmitter):
    def emit(self) -> str:
        kernel, out = self.kernel, self.out
        out.comment(f"{' + '.join(kernel.title) or 'copy'}, on many sets of arguments")
        out.comment("; ".join(str(b) for b in kernel.buffers))
        with out.block(f"static inline void {self.name}_part(const i64* arguments, i64 begin, i64 end) {{"):
            for position, buffer in enumerate(kernel.arguments):
                constant = "const " if buffer.role == "in" else ""
                kind = memory_type(buffer.dtype)
                out.line(f"{constant}{kind}* {buffer.name} = ({constant}{kind}*)arguments[{position}];")
            self._sizes()
            self._rows()
        count, head = len(kernel.arguments) + len(kernel.sizes), kernel.outer[:-1]
        with out.block(f"static inline void {self.name}_extent(const i64* arguments, i64& rows, i64& row) {{"):
            self._sizes()
            axes = head or kernel.outer
            out.line(f"rows = {self._index(product(a.size for a in axes))};")
            out.line(f"row = {self._index(kernel.outer[-1].size) if head else '1'};")
        with out.block(f'extern "C" i64 {self.name}(const i64* arguments) {{'):
            out.line("const i64 sets = *arguments++;")
            out.line("i64 total = 0, rows, row;")
            with out.block("for (i64 set = 0; set < sets; ++set) {"):
                out.line(f"{self.name}_extent(arguments + set * {count}, rows, row);")
                out.line("total += rows * row;")
            out.line(f"#pragma omp parallel private(rows, row) if (total * {max(1, self._weight())} > {PARALLEL_OPS})")
            with out.block("{"):
                out.line("const i64 threads = omp_get_num_threads(), thread = omp_get_thread_num();")
                out.line("const i64 first = total * thread / threads, last = total * (thread + 1) / threads;")
                out.line("i64 before = 0;")
                with out.block("for (i64 set = 0; set < sets && before < last; ++set) {"):
                    out.line(f"{self.name}_extent(arguments + set * {count}, rows, row);")
                    with out.block("if (rows * row == 0) {"):
                        out.line("continue;")
                    out.line("// a row belongs to the thread in whose share it begins")
                    out.line("const i64 begin = first > before ? (first - before + row - 1) / row : 0;")
                    out.line("const i64 end = minimum<i64>((last - before + row - 1) / row, rows);")
                    with out.block("if (begin < end) {"):
                        out.line(f"{self.name}_part(arguments + set * {count}, begin, end);")
                    out.line("before += rows * row;")
            out.line("return 0;")
        return out.text()

    def _sizes(self) -> None:
        for position, size in enumerate(self.kernel.sizes, len(self.kernel.arguments)):
            self.out.line(f"const i64 {size} = arguments[{position}];")

    def _rows(self) -> None:
        """Points of the rows from `begin` to `end`; what is the same for all of them stands in front."""
        kernel, out = self.kernel, self.out
        fixed, varying = kernel.stages
        self._body(0, fixed)
        if len(kernel.outer) < 2:
            axis = kernel.outer[0].name if kernel.outer else "point"
            out.line("#pragma omp simd")
            with out.block(f"for (i64 {axis} = begin; {axis} < end; ++{axis}) {{"):
                self._body(1, varying)
            return
        with ExitStack() as loops:
            loops.enter_context(out.block("for (i64 at = begin; at < end; ++at) {"))
            self._coordinates(kernel.outer[:-1])
            out.line("#pragma omp simd")
            with self._loop(kernel.outer[-1]):
                self._body(1, varying)

    def _coordinates(self, axes: tuple[Axis, ...]) -> None:
        """The coordinates of row `at`, row-major."""
        step: Expr = 1
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = "at" if step == 1 else f"at / ({self._index(step)})"
            self.out.line(f"const i64 {axis.name} = {text}{f' % {self._index(axis.size)}' if position else ''};")
            step = product([step, axis.size])


def _split(kernel: Kernel) -> tuple[Stage, Stage]:
    """The body as two: what is the same at all points (constants, numbers read from buffers that the kernel doesn't write, and what is
    computed of them), and the rest."""
    axes = {symbol(axis.name) for axis in kernel.outer}
    roles = {buffer.name: buffer.role for buffer in kernel.buffers}
    fixed: list[Instruction] = []
    varying: list[Instruction] = []
    known: set[int] = set()
    for instruction in kernel.instructions():
        match instruction:
            case Load(index=index, mask=None, buffer=buffer):
                same = roles[buffer] == "in" and not free_symbols(index) & axes
            case Constant():
                same = True
            case Compute(args=args):
                same = known.issuperset(args)
            case _:
                same = False
        if same:
            known.update(results_of(instruction))
        (fixed if same else varying).append(instruction)
    return Stage(False, tuple(fixed)), Stage(False, tuple(varying))
