"""One kernel of the loop IR as one C++ function.

In: a `Kernel` and the name of the function. Out: its text; PluginError for what C++ has no spelling of. Invariant: the same kernel
gives the same bytes, on every machine; what differs between processors stands in the prelude and in the compiler's flags.

Scalar bodies inside `omp simd` loops: the compiler makes the vectors, the text stays what the kernel says. Three shapes:
- lanes along the last inner axis (rows are contiguous): one outer point at a time;
- lanes along the last outer axis (columns are contiguous): LANES outer points at a time; a value that a later stage reads is an
  array with an element for each lane;
- scatters: no two threads write one element, and points that meet at one follow each other in order (see `_scatter`).

The function takes its arguments as an array of 64-bit integers (addresses, then sizes) and returns 0, or which kinds of errors
indices out of range raise: 1 for IndexError, or 2 for RuntimeError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from fxloom_codegen_common.scatter import independent_axes, scatters
from fxloom_codegen_common.text import ATOM, EQUALITY, LOGICAL_OR, TERNARY, Text
from fxloom_codegen_common.writer import SourceWriter
from fxloom_codegen_cpp.dtypes import HIGHEST, LOWEST, ctype, literal, memory_type
from fxloom_codegen_cpp.spelling import convert, spell
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import Expr, FloorDiv, Mod, bounds, free_symbols, print_expr, product, stride_of, symbol
from fxloom_interfaces.ops import StoreMode
from fxloom_interfaces.program import (
    Accumulate,
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    operands_of,
    results_of,
)

#: Outer points per pass when lanes lie along an outer axis: a few vectors of float32.
LANES = 64

#: Element operations below which waking threads costs more than they save.
PARALLEL_OPS = 1 << 16

#: Terms of a sum along a row that are added in their own type, then to a wider one: errors grow with the block, not with the
#: row. The prelude knows how many vectors they are.
SUM_BLOCK = "FXLOOM_SUM_BLOCK"

#: Where the end of a block costs as much as a short one does: a maximum's lanes are folded, means and deviations are joined.
LONG_BLOCK = f"4 * {SUM_BLOCK}"

#: Rows of at most this many terms are one block.
SHORT_ROW = 128

#: The same for sums down a column, where nothing but the block splits the chain of additions.
COLUMN_BLOCK = 64

_MAX_LINE = 100

#: Elements of a row from which threads share its columns, and to a multiple of which they do: a cache line of float32.
_WIDE, _ALIGNED = 64, 16

#: What a scatter's modes compute of the element and the value.
_COMBINED = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}

_PLAIN = {"FloorDiv": "({0}) / ({1})", "Mod": "({0}) % ({1})"}
_SIGNED = {"FloorDiv": "floor_div<i64>({0}, {1})", "Mod": "remainder_int<i64>({0}, {1})"}
_EXTREMES = {"Min": "minimum<i64>({0}, {1})", "Max": "maximum<i64>({0}, {1})"}


def emit_kernel(kernel: Kernel, name: str) -> str:
    """The function `name`, ending in a newline."""
    return _Emitter(kernel, name).emit()


class _Emitter:
    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.out = SourceWriter(comment_mark="//")
        self.extents = {symbol(a.name): a.size for a in (*kernel.outer, *kernel.inner)}
        self.buffers = {b.name: b for b in kernel.buffers}
        self.dtypes: dict[int, str] = {}
        self.texts: dict[int, Text] = {}
        self.uses: dict[int, list[int]] = {}
        self.wide: set[int] = set()  # results of sums that are kept in a wider type
        for number, stage in enumerate(kernel.stages):
            for instruction in stage.body:
                for operand in operands_of(instruction):
                    self.uses.setdefault(operand, []).append(number)
        self.checks = any(isinstance(i, Indirect) and i.check for i in kernel.instructions())
        self.scatters = scatters(kernel)
        self.across = _lanes_across(kernel)
        self.parallel = self._is_parallel()
        self.owned: str | None = None  # the index by which threads share the elements that they scatter to

    # ---------------------------------------------------------------------------------------------- the function

    def emit(self) -> str:
        kernel, out = self.kernel, self.out
        out.comment(f"{' + '.join(kernel.title) or 'copy'}")
        out.comment("; ".join(str(b) for b in kernel.buffers))
        with out.block(f'extern "C" i64 {self.name}(const i64* arguments) {{'):
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

    def _is_parallel(self) -> bool:
        numel = product(a.size for a in (*self.kernel.outer, *self.kernel.inner))
        return not isinstance(numel, int) or numel * max(1, self._weight()) > PARALLEL_OPS

    def _weight(self) -> int:
        """Elementwise operations per point, libm-like ones counted several times."""
        heavy = {"exp", "erf", "tanh", "sigmoid", "log", "pow", "sin", "cos", "rand", "randn", "randint64"}
        return sum(8 if isinstance(i, Compute) and i.op in heavy else 1 for i in self.kernel.instructions() if not isinstance(i, Constant))

    def _clauses(self, *more: str, stage: Stage | None = None) -> str:
        """Text of the clauses; with the flag of bad indices where the loop (or this stage of it) checks any."""
        checks = self.checks if stage is None else any(isinstance(i, Indirect) and i.check for i in stage.body)
        wanted = [*more, *(["reduction(|:bad)"] if checks else [])]
        return f" {' '.join(wanted)}" if wanted else ""

    def _if_large(self) -> list[str]:
        """For sizes known at run time only: whether there is enough to do for threads."""
        numel = product(a.size for a in (*self.kernel.outer, *self.kernel.inner))
        if isinstance(numel, int):
            return []
        return [f"if ({self._index(numel * max(1, self._weight()))} > {PARALLEL_OPS})"]

    # ------------------------------------------------------------------------------------------ loops without inner axes

    def _pointwise(self) -> None:
        axes, stage = self.kernel.outer, self.kernel.stages[0]
        if not axes:
            with self.out.block("{"):
                self._body(0, stage)
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

    def _loop(self, axis: Axis):  # type: ignore[no-untyped-def]  # a context manager of the writer
        return self.out.block(f"for (i64 {axis.name} = 0; {axis.name} < {self._size(axis)}; ++{axis.name}) {{")

    def _size(self, axis: Axis) -> str:
        return self._index(axis.size)

    # ---------------------------------------------------------------------------------------------------------- scatters

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
        before, inside = _split(stage, lanes)
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

    # ------------------------------------------------------------------------------------------ lanes along inner axes

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
        sums = [] if isinstance(terms, int) and terms <= SHORT_ROW else [r for r in reductions if _is_float_sum(r)]
        self.wide.update(r.results[0] for r in sums)
        for reduction in reductions:
            self._declare(reduction)
        for instruction in stage.body:
            if isinstance(instruction, Accumulate):
                start = _identity(instruction.kind, instruction.dtype)
                out.line(f"{_running_type(instruction.dtype)} v{instruction.result} = {start};")
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
                out.line(f"#pragma omp simd{self._clauses(*(_clause(r) for r in reductions), stage=stage)}")
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
            clauses = [_clause(r, "_block" if r in sums else "") for r in reductions]
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

    def _declare(self, reduction: Reduce, lanes: bool = False) -> None:
        """Accumulators of a reduction, at their identity."""
        for position, (variable, kind, start) in enumerate(_accumulators(reduction)):
            wide = reduction.results[0] in self.wide
            kind = _wider(reduction.dtype) if wide else kind
            if lanes:
                self.out.line(f"{kind} {variable}[{LANES}];")
                with self.out.block(f"for (int lane = 0; lane < {LANES}; ++lane) {{"):
                    self.out.line(f"{variable}[lane] = {start};")
            else:
                self.out.line(f"{kind} {variable} = {start};")
            if position < len(reduction.results):
                text = Text(f"{variable}[lane]" if lanes else variable)
                if wide or (reduction.kind == "welford" and reduction.dtype != "float64"):
                    text = Text(f"({ctype(reduction.dtype)}){text}", ATOM - 1)
                truth = reduction.kind in ("any", "all")
                value = reduction.results[position]
                self.texts[value] = Text(f"{text} != 0", EQUALITY) if truth else text
                self.dtypes[value] = "int64" if reduction.kind in ("argmax", "argmin") else "bool" if truth else reduction.dtype

    # ----------------------------------------------------------------------------------------- lanes along the last outer axis

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
                    self.wide.update(i.results[0] for i in stage.body if isinstance(i, Reduce) and _is_float_sum(i))
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
        if not stage.inner or not any(_is_float_sum(i) for i in stage.body):
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
        sums = [i for i in stage.body if isinstance(i, Reduce) and _is_float_sum(i)]
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
        self.out.line(f"{_running_type(instruction.dtype)} {variable}[{LANES}];")
        with self.out.block(f"for (int lane = 0; lane < {LANES}; ++lane) {{"):
            self.out.line(f"{variable}[lane] = {_identity(instruction.kind, instruction.dtype)};")

    def _crosses(self, number: int, made: Indirect) -> bool:
        """True when an index made in an outer stage is used in another one."""
        stages = self.kernel.stages
        return not stages[number].inner and any(made.symbol in _symbols_of(stage) for other, stage in enumerate(stages) if other != number)

    def _crossing_indices(self, number: int) -> None:
        """Names for the indices of this lane that earlier stages made."""
        used = _symbols_of(self.kernel.stages[number])
        for stage in self.kernel.stages[:number]:
            for made in stage.body:
                if isinstance(made, Indirect) and not stage.inner and made.symbol in used:
                    self.out.line(f"const i64 {made.symbol} = {made.symbol}_lanes[lane];")

    def _declare_crossing(self, number: int, instruction: Instruction) -> None:
        for result in results_of(instruction):
            if any(use != number for use in self.uses.get(result, ())):
                self.out.line(f"{ctype(_result_dtype(instruction))} v{result}_lanes[{LANES}];")

    # ------------------------------------------------------------------------------------------------------- bodies

    def _body(self, number: int, stage: Stage, block_sums: bool = False) -> None:
        stores = sum(1 for i in stage.body if isinstance(i, (Store, Reduce)))
        if self.across:
            self._crossing_indices(number)
        for instruction in stage.body:
            match instruction:
                case Load():
                    self._value(number, instruction, self._load(instruction), inline=stores <= 1)
                case Constant(result=result, value=value, dtype=dtype):
                    constant = literal(value, dtype)
                    simple = constant[0].isalnum() or constant[0] == "_"
                    self.texts[result] = Text(constant, ATOM if simple else ATOM - 1)
                    self.dtypes[result] = dtype
                case IndexValue(expr=expr, dtype=dtype):
                    self._value(number, instruction, convert(Text(f"({self._index(expr)})"), "int64", dtype))
                case Compute(op=op, args=args, dtype=dtype):
                    text = spell(op, [self.texts[a] for a in args], dtype, [self.dtypes[a] for a in args])
                    self._value(number, instruction, text)
                case Indirect():
                    self._indirect(instruction)
                    if self.across and self._crosses(number, instruction):
                        self.out.line(f"{instruction.symbol}_lanes[lane] = {instruction.symbol};")
                case Reduce():
                    self._update(instruction, block_sums)
                case Accumulate(result=result, kind=kind, value=value, dtype=dtype):
                    variable = f"v{result}_lanes[lane]" if self.across else f"v{result}"
                    self.out.line(_fold(kind, variable, self.texts[value], dtype))
                    self.texts[result] = (
                        Text(variable) if _running_type(dtype) == ctype(dtype) else Text(f"({ctype(dtype)}){variable}", ATOM - 1)
                    )
                    self.dtypes[result] = dtype
                case Store(buffer=buffer, index=index, value=value, mode=mode):
                    self._store(buffer, index, self.texts[value], mode)

    def _store(self, buffer: str, index: Expr, value: Text, mode: StoreMode) -> None:
        address = self._address(buffer, index)
        if mode is None:
            self.out.line(f"{buffer}[{address}] = {value};")
            return
        dtype, here = self.buffers[buffer].dtype, f"{buffer}_here"
        self.out.line(f"{memory_type(dtype)}& {here} = {buffer}[{address}];")
        self.out.line(f"{here} = {spell(_COMBINED[mode], [Text(here), value], dtype, [dtype, dtype])};")

    def _value(self, number: int, instruction: Load | IndexValue | Compute, text: Text, inline: bool = True) -> None:
        result, dtype = instruction.result, instruction.dtype
        uses = self.uses.get(result, [])
        self.dtypes[result] = dtype
        if self.across and any(use != number for use in uses):
            self.out.line(f"v{result}_lanes[lane] = {text};")
            self.texts[result] = Text(f"v{result}_lanes[lane]")
            return
        if inline and len(uses) == 1 and uses[0] == number and len(text.text) < _MAX_LINE // 2:
            self.texts[result] = text
            return
        self.out.line(f"const {ctype(dtype)} v{result} = {text};")
        self.texts[result] = Text(f"v{result}")

    def _load(self, load: Load) -> Text:
        address = f"{load.buffer}[{self._address(load.buffer, load.index)}]"
        value = Text(f"{address} != 0", EQUALITY) if load.dtype == "bool" else Text(address)
        if load.mask is None:
            return value
        zero = "0" if load.dtype != "bool" else "false"
        return Text(f"{self.texts[load.mask].at(LOGICAL_OR)} ? {value} : ({ctype(load.dtype)}){zero}", TERNARY)

    def _address(self, buffer: str, index: Expr) -> str:
        text = self._index(index)
        if self.across and self.buffers[buffer].role == "scratch":
            return f"({text}) * {LANES} + lane"
        return text

    def _index(self, expr: Expr) -> str:
        functions = {**_EXTREMES, **(_PLAIN if self._nonnegative(expr) else _SIGNED)}
        return print_expr(expr, functions)

    def _nonnegative(self, expr: Expr) -> bool:
        if isinstance(expr, int):
            return True
        for part in expr.atoms(FloorDiv, Mod):
            low, _ = bounds(part.args[0], self.extents)
            if low is None or low < 0:
                return False
        return True

    def _indirect(self, made: Indirect) -> None:
        out, name, size = self.out, made.symbol, self._index(made.size)
        value = convert(self.texts[made.value], self.dtypes[made.value], "int64")
        out.line(f"i64 {name} = {value};")
        if made.wrap:
            out.line(f"{name} += {name} < 0 ? {size} : 0;")
        outside = f"{name} < 0 | {name} >= {size}"
        if made.check and self.scatters and made.mask is None:  # such points write nothing
            bad = f"bad |= {1 if made.error == 'IndexError' else 2};"
            if name == self.owned:
                out.line(f"if ({name} < owned_begin | {name} >= owned_end) {{ if ({outside}) {bad} continue; }}")
            else:
                out.line(f"if ({outside}) {{ {bad} continue; }}")
        elif made.check:
            mask = "" if made.mask is None else f" & {self.texts[made.mask].at(ATOM)}"
            flag = f"({outside}){mask}"
            out.line(f"bad |= {flag if made.error == 'IndexError' else f'({flag}) << 1'};")
            out.line(f"{name} = {outside} ? 0 : {name};")

    def _update(self, reduction: Reduce, block_sums: bool) -> None:
        value = self.texts[reduction.value]
        names = [v for v, _, _ in _accumulators(reduction)]
        if block_sums and _is_float_sum(reduction):
            names = [f"{n}_block" for n in names]
        if self.across:
            names = [f"{n}[lane]" for n in names]
        out = self.out
        if reduction.kind in ("argmax", "argmin"):
            position, best = names
            comparison = ">" if reduction.kind == "argmax" else "<"
            temporary = f"v{reduction.results[0]}_now"  # a value may have several reductions
            out.line(f"const {ctype(reduction.dtype)} {temporary} = {value};")
            nan = f" || ({temporary} != {temporary} && {best} == {best})" if dtype_info(reduction.dtype).kind == "float" else ""
            flat = self._index(_flat(self.kernel.inner))
            with out.block(f"if ({temporary} {comparison} {best}{nan}) {{"):
                out.line(f"{best} = {temporary};")
                out.line(f"{position} = {flat};")
        elif reduction.kind == "welford":
            mean, squares, count = names
            temporary = f"v{reduction.results[0]}_step"
            out.line(f"{count} += 1;")
            out.line(f"const double {temporary} = {value.at(ATOM - 2)} - {mean};")
            out.line(f"{mean} += {temporary} / {count};")
            out.line(f"{squares} += {temporary} * ({value} - {mean});")
        else:
            out.line(_fold(reduction.kind, names[0], value, reduction.dtype))


def _split(stage: Stage, axis: Axis | None) -> tuple[Stage, Stage]:
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


# ------------------------------------------------------------------------------------------------------------ folds


def _is_float_sum(instruction: Instruction) -> bool:
    return isinstance(instruction, Reduce) and instruction.kind == "sum" and dtype_info(instruction.dtype).kind == "float"


def _symbols_of(stage: Stage) -> set[str]:
    """Names in the indices of a stage's instructions."""
    indices = [i.expr if isinstance(i, IndexValue) else i.index for i in stage.body if isinstance(i, (IndexValue, Load, Store))]
    return {str(s) for index in indices if not isinstance(index, int) for s in index.free_symbols}


def _accumulators(reduction: Reduce) -> list[tuple[str, str, str]]:
    """(variable, type, identity) of everything that a reduction carries; its results come first."""
    names = [f"v{r}" for r in reduction.results]
    kind = ctype(reduction.dtype)
    if reduction.kind in ("argmax", "argmin"):
        table: Mapping[str, str] = LOWEST if reduction.kind == "argmax" else HIGHEST
        return [(names[0], "i64", "0"), (f"{names[0]}_best", kind, table[reduction.dtype])]
    if reduction.kind == "welford":
        return [(n, "double", "0") for n in names]
    if reduction.kind in ("any", "all"):
        return [(names[0], "int", "0" if reduction.kind == "any" else "1")]
    return [(names[0], kind, _identity(reduction.kind, reduction.dtype))]


def _identity(kind: str, dtype: str) -> str:
    match kind:
        case "sum" | "xor_sum":
            return "0"
        case "prod":
            return "1"
        case "max":
            return LOWEST[dtype]
        case "min":
            return HIGHEST[dtype]
    raise PluginError("cpp", f"no reduction {kind}")


def _fold(kind: str, into: str, value: Text, dtype: str) -> str:
    match kind:
        case "sum":
            return f"{into} += {value};"
        case "prod":
            return f"{into} *= {value};"
        case "max" | "min":
            return f"{into} = {kind}imum<{ctype(dtype)}>({value}, {into});"
        case "any":
            return f"{into} |= {value.at(ATOM - 1)};"
        case "all":
            return f"{into} &= {value.at(ATOM - 1)};"
        case "xor_sum":
            return f"{into} ^= {value};"
    raise PluginError("cpp", f"no reduction {kind}")


def _clause(reduction: Reduce, suffix: str = "") -> str:
    name = f"v{reduction.results[0]}{suffix}"
    is_float = dtype_info(reduction.dtype).kind == "float"
    operators = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
    if reduction.kind in operators:
        return f"reduction({operators[reduction.kind]}:{name})"
    return f"reduction({'nan_' if is_float else ''}{reduction.kind}:{name})"


def _wider(dtype: str) -> str:
    """The type in which the blocks of a sum of floats are added."""
    return "long double" if dtype == "float64" else "double"


def _running_type(dtype: str) -> str:
    """A running float32 sum is kept in double, as eager keeps it."""
    return "double" if dtype == "float32" else ctype(dtype)


def _result_dtype(instruction: Instruction) -> str:
    if isinstance(instruction, (Load, Constant, IndexValue, Compute)):
        return instruction.dtype
    raise PluginError("cpp", f"{instruction} in an outer stage")


def _flat(axes: Sequence[Axis]) -> Expr:
    position: Expr = 0
    for axis in axes:
        position = position * axis.size + symbol(axis.name)
    return position


def _lanes_across(kernel: Kernel) -> bool:
    """True when lanes should lie along the last outer axis: it is contiguous where the last inner axis is not."""
    if not kernel.inner or not kernel.outer:
        return False
    down, along = symbol(kernel.inner[-1].name), symbol(kernel.outer[-1].name)
    score = 0
    for stage in kernel.stages:
        if not stage.inner:
            continue
        for instruction in stage.body:
            if isinstance(instruction, (Load, Store)) and kernel_buffer_role(kernel, instruction.buffer) != "scratch":
                score += (stride_of(instruction.index, along) == 1) - (stride_of(instruction.index, down) == 1)
    if score <= 0:
        return False
    scratch = 0
    for buffer in kernel.buffers:
        if buffer.role == "scratch":
            if not isinstance(buffer.numel, int):
                return False
            scratch += buffer.numel * LANES * dtype_info(buffer.dtype).nbytes
    size = kernel.outer[-1].size
    return scratch <= 1 << 18 and (not isinstance(size, int) or size >= 8)


def kernel_buffer_role(kernel: Kernel, name: str) -> str:
    return next(b.role for b in kernel.buffers if b.name == name)
