"""The body of a loop: each instruction of a stage as a statement, or as part of the expression that uses it.

In: the instructions of a stage, one after the other. Out: lines of C++ at the writer, and `texts`, what later instructions call each
value. Invariant: a value is computed once, where it stands; only loads and operations that one statement uses move into it.
The loops around bodies are the subclasses' (`rows`, `columns`, `tiles`, `scatters`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fxloom_codegen_common.scatter import scatters
from fxloom_codegen_common.text import ATOM, EQUALITY, LOGICAL_OR, TERNARY, Text, call
from fxloom_codegen_common.writer import SourceWriter
from fxloom_codegen_cpp.dtypes import HALVES, ctype, literal, memory_type
from fxloom_codegen_cpp.folds import accumulators, fold_text, is_float_sum, running_type, wider
from fxloom_codegen_cpp.lanes import LANES, lanes_across
from fxloom_codegen_cpp.spelling import convert, spell
from fxloom_codegen_cpp.vector_math import FUNCTIONS_F64, function_name
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.expr import Expr, FloorDiv, Mod, bounds, print_expr, product, symbol
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
)

#: Element operations below which waking threads costs more than they save.
PARALLEL_OPS = 1 << 16

_MAX_LINE = 100

#: What a scatter's modes compute of the element and the value.
_COMBINED = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})

_PLAIN = {"FloorDiv": "({0}) / ({1})", "Mod": "({0}) % ({1})"}
_SIGNED = {"FloorDiv": "floor_div<i64>({0}, {1})", "Mod": "remainder_int<i64>({0}, {1})"}
_EXTREMES = {"Min": "minimum<i64>({0}, {1})", "Max": "maximum<i64>({0}, {1})"}


def _is_vector_call(instruction: Instruction) -> bool:
    """A call of `vector_math`. It stands in a statement of its own, and choices beside it are made without branches: compilers make
    no vectors of loops with a call in one arm."""
    if not isinstance(instruction, Compute):
        return False
    dtype = "float32" if instruction.dtype in HALVES else instruction.dtype
    return instruction.op == "remainder" or function_name(instruction.op, dtype) is not None


class BodyEmitter:
    """What all shapes of loops share: the kernel, the text so far, names and types of values."""

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
        self.calls = any(_is_vector_call(instruction) for instruction in kernel.instructions())
        self.simple: set[int] = set()  # truth values that one comparison gives
        self.scatters = scatters(kernel)
        self.across = lanes_across(kernel)
        self.parallel = self._is_parallel()
        self.owned: str | None = None  # the index by which threads share the elements that they scatter to

    def _is_parallel(self) -> bool:
        numel = product(a.size for a in (*self.kernel.outer, *self.kernel.inner))
        return not isinstance(numel, int) or numel * max(1, self._weight()) > PARALLEL_OPS

    def _weight(self) -> int:
        """Elementwise operations per point, libm-like ones counted several times."""
        heavy = {"sigmoid", "rand", "randn", "randint64", *FUNCTIONS_F64}
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

    def _loop(self, axis: Axis):  # type: ignore[no-untyped-def]  # a context manager of the writer
        return self.out.block(f"for (i64 {axis.name} = 0; {axis.name} < {self._size(axis)}; ++{axis.name}) {{")

    def _size(self, axis: Axis) -> str:
        return self._index(axis.size)

    def _declare(self, reduction: Reduce, lanes: bool = False) -> None:
        """Accumulators of a reduction, at their identity."""
        for position, (variable, kind, start) in enumerate(accumulators(reduction)):
            wide = reduction.results[0] in self.wide
            kind = wider(reduction.dtype) if wide else kind
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

    def _body(self, number: int, stage: Stage, block_sums: bool = False) -> None:
        stores = sum(1 for i in stage.body if isinstance(i, (Store, Reduce)))
        if self.across:
            self._crossing_indices(number)
        for instruction in stage.body:
            match instruction:
                case Load():
                    self.simple.add(instruction.result)
                    self._value(number, instruction, self._load(instruction), inline=stores <= 1)
                case Constant(result=result, value=value, dtype=dtype):
                    constant = literal(value, dtype)
                    simple = constant[0].isalnum() or constant[0] == "_"
                    self.texts[result] = Text(constant, ATOM if simple else ATOM - 1)
                    self.dtypes[result] = dtype
                case IndexValue(expr=expr, dtype=dtype):
                    self._value(number, instruction, convert(Text(f"({self._index(expr)})"), "int64", dtype))
                case Compute(op=op, args=args, dtype=dtype):
                    if op == "where" and (self.calls or args[0] not in self.simple):
                        text = call(f"blend<{ctype(dtype)}>", *(self.texts[a] for a in args))
                    else:
                        text = spell(op, [self.texts[a] for a in args], dtype, [self.dtypes[a] for a in args])
                    if op in _COMPARISONS:
                        self.simple.add(instruction.result)
                    self._value(number, instruction, text)
                case Indirect():
                    self._indirect(instruction)
                    if self.across and self._crosses(number, instruction):
                        self.out.line(f"{instruction.symbol}_lanes[lane] = {instruction.symbol};")
                case Reduce():
                    self._update(instruction, block_sums)
                case Accumulate(result=result, kind=kind, value=value, dtype=dtype):
                    variable = f"v{result}_lanes[lane]" if self.across else f"v{result}"
                    self.out.line(fold_text(kind, variable, self.texts[value], dtype))
                    self.texts[result] = (
                        Text(variable) if running_type(kind, dtype) == ctype(dtype) else Text(f"({ctype(dtype)}){variable}", ATOM - 1)
                    )
                    self.dtypes[result] = dtype
                case Store():
                    self._store(instruction)

    def _store(self, store: Store) -> None:
        element, value = self._element(store), self.texts[store.value]
        if store.mode is None:
            self.out.line(f"{element} = {value};")
            return
        dtype, here = self.buffers[store.buffer].dtype, f"{store.buffer}_here"
        self.out.line(f"{memory_type(dtype)}& {here} = {element};")
        self.out.line(f"{here} = {spell(_COMBINED[store.mode], [Text(here), value], dtype, [dtype, dtype])};")

    def _value(self, number: int, instruction: Load | IndexValue | Compute, text: Text, inline: bool = True) -> None:
        result, dtype = instruction.result, instruction.dtype
        uses = self.uses.get(result, [])
        self.dtypes[result] = dtype
        if self.across and any(use != number for use in uses):
            self.out.line(f"v{result}_lanes[lane] = {text};")
            self.texts[result] = Text(f"v{result}_lanes[lane]")
            return
        if inline and not _is_vector_call(instruction) and len(uses) == 1 and uses[0] == number and len(text.text) < _MAX_LINE // 2:
            self.texts[result] = text
            return
        self.out.line(f"const {ctype(dtype)} v{result} = {text};")
        self.texts[result] = Text(f"v{result}")

    def _load(self, load: Load) -> Text:
        element = self._element(load)
        value = Text(f"{element} != 0", EQUALITY) if load.dtype == "bool" else Text(element)
        if load.mask is None:
            return value
        zero = "0" if load.dtype != "bool" else "false"
        return Text(f"{self.texts[load.mask].at(LOGICAL_OR)} ? {value} : ({ctype(load.dtype)}){zero}", TERNARY)

    def _element(self, access: Load | Store) -> str:
        """What a load reads, or a store writes."""
        address = self._index(access.index)
        if self.across and self.buffers[access.buffer].role == "scratch":
            address = f"({address}) * {LANES} + lane"
        return f"{access.buffer}[{address}]"

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
        names = [v for v, _, _ in accumulators(reduction)]
        if block_sums and is_float_sum(reduction):
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
            out.line(fold_text(reduction.kind, names[0], value, reduction.dtype))


def _symbols_of(stage: Stage) -> set[str]:
    """Names in the indices of a stage's instructions."""
    indices = [i.expr if isinstance(i, IndexValue) else i.index for i in stage.body if isinstance(i, (IndexValue, Load, Store))]
    return {str(s) for index in indices if not isinstance(index, int) for s in index.free_symbols}


def _flat(axes: Sequence[Axis]) -> Expr:
    position: Expr = 0
    for axis in axes:
        position = position * axis.size + symbol(axis.name)
    return position
