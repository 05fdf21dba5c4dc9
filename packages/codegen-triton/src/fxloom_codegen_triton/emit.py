"""From a `Kernel` to the text of a Triton function.

In: a kernel of the loop IR, whose points are pairs of an outer and an inner point. Out: the source of a function, and in its
details the launch parameters. The generated code is named after the IR:

- `outer`: numbers of the program's outer points, row-major over the outer axes; there are `outer_count` in all, `OUTER_TILE` in
  a program, and `outer_mask` is true for those that exist;
- `inner`, `inner_count`, `INNER_TILE`, `inner_mask`: the same of the inner points. A loop over the inner range has tiles that
  begin at `inner_start` and adds `inner_lanes`, the numbers within a tile;
- `x0`, `x1`, ... and `r0`, `r1`, ...: coordinates along the outer and the inner axes, as the kernel names them.

Three shapes of kernel:

- pointwise (no inner axes): values are tiles [OUTER_TILE];
- persistent (a static, short inner range): tiles [OUTER_TILE, INNER_TILE] with all of the inner range in one tile. Every stage
  sees the same points, so equal loads and computations of different stages are done once, and what a kernel keeps in scratch memory
  stays the tile that it is. Scans and kernels with scratch memory run in these only;
- looped: each inner stage is a loop over tiles of the inner range, folds keep a tile of partial results.

Invariant: values of outer stages and results of folds have shape [OUTER_TILE, 1] in kernels with inner axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fxloom_codegen_common.namer import Namer
from fxloom_codegen_common.writer import SourceWriter
from fxloom_codegen_triton.capabilities import CAPABILITIES, PERSISTENT_NUMEL
from fxloom_codegen_triton.literals import accumulated, atom, atom_of, converted_text, identity_text, index_text, literal_text, type_text
from fxloom_codegen_triton.spelling import BOOL, COMPARE, FLOAT, FLOAT32, HELPERS, INTEGER, RANDOM
from fxloom_codegen_triton.tiles import Tiles, choose_tiles, needs_64_bits
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.dtypes import is_float
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import Expr, FloorDiv, Mod, is_static, print_expr, product
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
)

_RESERVED = (
    frozenset({"tl", "triton", "libdevice", "float", "min", "max", "outer", "outer_count", "outer_mask", "OUTER_TILE"})
    | {"inner", "inner_count", "inner_mask", "inner_start", "inner_lanes", "INNER_TILE"}
    | HELPERS.keys()
)


def emit_kernel(kernel: Kernel, name: str) -> KernelSource:
    """The source of `kernel`, a module's worth less its imports. details: grid and launch parameters."""
    tiles = choose_tiles(kernel)
    text, helpers, checks = KernelEmitter(kernel, name, tiles).emit()
    details = {
        "outer_count": print_expr(product([axis.size for axis in kernel.outer])),
        "sizes": kernel.sizes,
        "buffers": tuple(buffer.dtype for buffer in kernel.arguments),
        "outer_tile": tiles.outer_tile,
        "inner_tile": tiles.inner_tile,
        "num_warps": tiles.num_warps,
        "helpers": helpers,
        "checks": checks,
    }
    return KernelSource(name, "triton", text, details)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as text. literal: a number, which takes the dtype of what it meets. inner: varies along the inner axes."""

    text: str
    dtype: str
    literal: bool = False
    inner: bool = False


class KernelEmitter:
    """The function of one kernel. `grouped` has another frame around the same body."""

    def __init__(self, kernel: Kernel, name: str, tiles: Tiles) -> None:
        self.kernel, self.name, self.tiles = kernel, name, tiles
        self.writer = SourceWriter()
        self.namer = Namer(_RESERVED | {axis.name for axis in (*kernel.outer, *kernel.inner)} | set(kernel.sizes))
        self.pointers = {buffer.name: self.namer.name(f"{buffer.name}_ptr") for buffer in kernel.arguments}
        self.dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.roles = {buffer.name: buffer.role for buffer in kernel.buffers}
        if "scratch" in self.roles.values() and not tiles.persistent:
            raise PluginError("triton", f"kernel {name} asks for scratch memory for more than the plugin says it has room for")
        self.scratch: dict[tuple[str, Expr], _Value] = {}
        self.values: dict[int, _Value] = {}
        self.known: dict[tuple[Any, ...], _Value] = {}  # value numbering, within what sees the same points
        self.symbols: dict[str, _Value] = {}  # indirect indices
        self.helpers: dict[str, None] = {}
        self.checks = False
        # buffers that were read, and written, since the threads of a program last met
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.inner_symbols = {axis.name for axis in kernel.inner}
        self.inner_count = product([axis.size for axis in kernel.inner])
        # a static inner range that fills its tile needs no mask
        self.masks_inner = bool(kernel.inner) and not (tiles.persistent and int(self.inner_count) == tiles.inner_tile)
        self.index_dtype = "tl.int64" if needs_64_bits(kernel) else "tl.int32"

    # ---- frame

    def emit(self) -> tuple[str, tuple[str, ...], bool]:
        kernel, writer = self.kernel, self.writer
        title = " ".join(kernel.title) or "kernel"
        writer.comment(title)
        for buffer in kernel.arguments:
            writer.comment(f"{buffer}")
        arguments = [*self.pointers.values(), *kernel.sizes, "OUTER_TILE: tl.constexpr"]
        if kernel.inner:
            arguments.append("INNER_TILE: tl.constexpr")
        start = SourceWriter()
        with writer.indent():
            self.prologue()
            for stage in kernel.stages:
                self.stage(stage)
        decorator = "@triton.jit(debug=True)" if self.checks else "@triton.jit"
        for line in (decorator, f"def {self.name}({', '.join(arguments)}):"):
            start.line(line)
        body = writer.text().splitlines()
        head = [line for line in body if line.startswith("#")]
        rest = [line for line in body if not line.startswith("#")]
        return "\n".join([*head, *start.text().splitlines(), *rest]) + "\n", tuple(self.helpers), self.checks

    def prologue(self) -> None:
        """Indices of the block's points, their masks, and the outer axes."""
        line = self.writer.line
        line(f"outer_count = {self.count_text(self.kernel.outer)}")
        lanes = "tl.arange(0, OUTER_TILE)[:, None]" if self.kernel.inner else "tl.arange(0, OUTER_TILE)"
        line(f"outer = {self.program_text()} * OUTER_TILE + {lanes}")
        line("outer_mask = outer < outer_count")
        self.axes("outer", self.kernel.outer)
        if self.kernel.inner:
            line(f"inner_count = {self.count_text(self.kernel.inner)}")
            if self.tiles.persistent:
                first = " + tl.multiple_of(tl.program_id(1), INNER_TILE)" if self.divides_inner() else ""  # that number is 0
                line(f"inner = tl.arange(0, INNER_TILE)[None, :]{first}{self.cast_index()}")
                if self.masks_inner:
                    line("inner_mask = inner < inner_count")
                self.axes("inner", self.kernel.inner)
            else:
                line(f"inner_lanes = tl.arange(0, INNER_TILE)[None, :]{self.cast_index()}")

    def divides_inner(self) -> bool:
        """Whether a number that is known to be below the tile's size is divided.

        LLVM does that, and what follows, in 16 bits, two numbers at a time, and ptxas of CUDA 12.8 takes the constant of an `add.s16x2`
        for 0 where one half of the result isn't used.
        """
        placed = [i for i in self.kernel.instructions() if isinstance(i, (Load, Store, IndexValue))]
        found = [i.expr if isinstance(i, IndexValue) else i.index for i in placed]
        return len(self.kernel.inner) > 1 or any(not isinstance(index, int) and index.has(FloorDiv, Mod) for index in found)

    def count_text(self, axes: tuple[Axis, ...]) -> str:
        """The number of points of the outer, or of the inner axes."""
        return index_text(product([axis.size for axis in axes]))

    def program_text(self) -> str:
        """The number of this program among those of the kernel's points."""
        return f"tl.program_id(0).to({self.index_dtype})"

    def cast_index(self) -> str:
        return ".to(tl.int64)" if self.index_dtype == "tl.int64" else ""

    def axes(self, linear: str, axes: tuple[Axis, ...]) -> None:
        """The coordinates of the points numbered `linear`, row-major."""
        stride: Expr = 1
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = linear if stride == 1 else f"{linear} // {atom_of(stride)}"
            if position > 0:
                text = f"{text} % {atom_of(axis.size)}" if stride == 1 else f"({text}) % {atom_of(axis.size)}"
            self.writer.line(f"{axis.name} = {text}")
            stride = product([stride, axis.size])

    def stage(self, stage: Stage) -> None:
        if any(isinstance(i, Load) and i.buffer in self.written or isinstance(i, Store) and i.buffer in self.read for i in stage.body):
            self.meet()  # here, so that no loop does it again and again
        if not stage.inner or self.tiles.persistent:
            for instruction in stage.body:
                self.instruction(instruction, stage.inner)
            return
        folds = [instruction for instruction in stage.body if isinstance(instruction, Reduce)]
        state = {id(fold): self.open_fold(fold) for fold in folds}
        outside = dict(self.known)
        self.writer.line("for inner_start in range(0, inner_count, INNER_TILE):")
        with self.writer.indent():
            self.writer.line("inner = inner_start + inner_lanes")
            self.writer.line("inner_mask = inner < inner_count")
            self.axes("inner", self.kernel.inner)
            for instruction in stage.body:
                if isinstance(instruction, Reduce):
                    self.step_fold(instruction, state[id(instruction)])
                else:
                    self.instruction(instruction, True)
        self.known = outside  # values of the loop are gone
        for fold in folds:
            self.close_fold(fold, state[id(fold)])

    def meet(self) -> None:
        """Have the program's threads wait for each other: which thread has an element differs from one access to the next."""
        self.writer.line("tl.debug_barrier()")
        self.read.clear()
        self.written.clear()

    # ---- instructions

    def instruction(self, instruction: Instruction, inner: bool) -> None:
        match instruction:
            case Load():
                self.load(instruction)
            case Constant(result, value, dtype):
                self.values[result] = _Value(literal_text(value, dtype), dtype, literal=True)
            case IndexValue(result, expr, dtype):
                text = index_text(expr)
                if is_static(expr):
                    self.values[result] = _Value(literal_text(int(expr), dtype), dtype, literal=True)
                elif not self.is_tile(expr):  # a size: one number for all points
                    shape = "[OUTER_TILE, 1]" if self.kernel.inner else "[OUTER_TILE]"
                    self.assign(result, f"tl.full({shape}, {text}, {type_text(dtype)})", dtype, "index", False)
                else:
                    self.assign(result, f"{atom(text)}.to({type_text(dtype)})", dtype, "index", self.varies(expr))
            case Indirect():
                self.indirect(instruction)
            case Compute():
                self.compute(instruction)
            case Reduce():
                self.fold_tile(instruction)
            case Store(buffer, index, value, mode):
                self.store(buffer, index, self.values[value], mode, inner)
            case Accumulate():
                self.scan(instruction)

    def assign(self, result: int, text: str, dtype: str, wish: str, inner: bool, *, reuse: bool = True) -> None:
        """Bind the value to `text`: to a variable that holds it already, or a new one."""
        key = (text, dtype)
        found = self.known.get(key) if reuse else None
        if found is None:
            name = self.namer.name(wish)
            self.writer.line(f"{name} = {text}")
            found = _Value(name, dtype, inner=inner)
            if reuse:
                self.known[key] = found
        self.values[result] = found

    def varies(self, expr: Expr) -> bool:
        """Whether an index expression varies along the inner axes."""
        if isinstance(expr, int):
            return False
        names = {s.name for s in expr.free_symbols}
        return bool(names & self.inner_symbols) or any(self.symbols[n].inner for n in names if n in self.symbols)

    def is_tile(self, expr: Expr) -> bool:
        """Whether an index expression is a tile, and not one number. What stands for an indirect index always is."""
        if isinstance(expr, int):
            return False
        axes = {axis.name for axis in (*self.kernel.outer, *self.kernel.inner)}
        return any(s.name in axes or s.name in self.symbols for s in expr.free_symbols)

    def address(self, buffer: str, index: Expr) -> str:
        return f"{self.pointers[buffer]} + {index_text(index)}" if index != 0 else self.pointers[buffer]

    def mask(self, inner: bool, extra: _Value | None = None) -> str:
        parts = ["outer_mask"]
        if inner and self.masks_inner:
            parts.append("inner_mask")
        if extra is not None:
            parts.append(extra.text)
        return " & ".join(parts)

    def load(self, instruction: Load) -> None:
        if self.roles[instruction.buffer] == "scratch":
            self.values[instruction.result] = self.scratch[(instruction.buffer, instruction.index)]
            return
        extra = self.values[instruction.mask] if instruction.mask is not None else None
        inner = self.varies(instruction.index) or (extra is not None and extra.inner)
        address = self.address(instruction.buffer, instruction.index)
        if not self.is_tile(instruction.index):
            # one address for the whole tile: Triton wants a tile of pointers where there is a tile of masks
            address += " + outer * 0"
        if extra is not None and inner and not self.varies(instruction.index):
            address += " + inner * 0"
        if instruction.buffer in self.written:
            self.meet()
        if self.roles[instruction.buffer] != "in":
            self.read.add(instruction.buffer)
        text = f"tl.load({address}, {self.mask(inner, extra)}, other=0)"
        wish = instruction.buffer
        unchanging = self.roles[instruction.buffer] == "in"
        self.assign(instruction.result, text, instruction.dtype, wish, inner, reuse=unchanging)

    def store(self, buffer: str, index: Expr, value: _Value, mode: str | None, inner: bool) -> None:
        if self.roles[buffer] == "scratch":
            self.scratch[(buffer, index)] = value
            return
        wide = inner and (self.varies(index) or value.inner)
        text = self.tile(value, wide)
        address = self.address(buffer, index)
        # Triton takes the value's shape from the tile of addresses, so that has to be as wide as the masks.
        if not _has_axis(index, self.kernel.outer):
            address += " + outer * 0"
        if wide and not self.varies(index):
            address += " + inner * 0"
        if buffer in self.read:
            self.meet()
        self.written.add(buffer)
        if mode is None:
            self.writer.line(f"tl.store({address}, {text}, {self.mask(wide)})")
            return
        if f"{mode} {self.dtypes[buffer]}" not in CAPABILITIES.scatters:
            raise PluginError("triton", f"no atomic {mode} of {self.dtypes[buffer]}")
        if mode == "mul":
            self.helpers["atomic_mul"] = None
            self.writer.line(f"atomic_mul({self.pointers[buffer]}, {address}, {text}, {self.mask(wide)})")
        elif mode in ("min", "max") and is_float(self.dtypes[buffer]):
            self.helpers[f"atomic_{mode}_nan"] = None
            self.writer.line(f"atomic_{mode}_nan({address}, {text}, {self.mask(wide)})")
        else:
            self.writer.line(f'tl.atomic_{mode}({address}, {text}, {self.mask(wide)}, sem="relaxed")')

    def tile(self, value: _Value, inner: bool) -> str:
        """The value as a tile of its own dtype, also where it is a literal."""
        if not value.literal:
            return value.text
        shape = "[OUTER_TILE]" if not self.kernel.inner else "[OUTER_TILE, INNER_TILE]" if inner else "[OUTER_TILE, 1]"
        if value.dtype == "bfloat16":  # of which Triton's interpreter has no constants
            return f"tl.full({shape}, {value.text}, tl.float32).to(tl.bfloat16)"
        return f"tl.full({shape}, {value.text}, {type_text(value.dtype)})"

    def indirect(self, instruction: Indirect) -> None:
        value = self.values[instruction.value]
        text = self.tile(value, False)
        size = index_text(instruction.size)
        if instruction.wrap:
            if value.literal:
                named = self.namer.name("at")
                self.writer.line(f"{named} = {text}")
                text = named
            text = f"tl.where({text} < 0, {text} + {atom(size)}, {text})"
        self.writer.line(f"{instruction.symbol} = {text}")
        self.symbols[instruction.symbol] = _Value(instruction.symbol, value.dtype, inner=value.inner)
        if instruction.check:
            self.checks = True
            where = self.mask(value.inner, self.values[instruction.mask] if instruction.mask is not None else None)
            inside = f"(0 <= {instruction.symbol}) & ({instruction.symbol} < {size})"
            self.writer.line(f'tl.device_assert({inside} | ~({where}), "index out of range")')

    def compute(self, instruction: Compute) -> None:
        args = [self.values[argument] for argument in instruction.args]
        inner = any(argument.inner for argument in args)
        if instruction.op == "to_dtype":
            text = converted_text(self.tile(args[0], inner), args[0].dtype, instruction.dtype)
            if text is None:
                self.values[instruction.result] = args[0]
                return
        elif instruction.op == "bitcast":
            text = f"{self.tile(args[0], inner)}.to({type_text(instruction.dtype)}, bitcast=True)"
        elif instruction.op == "where":
            branches = ", ".join(self.tile(argument, inner) for argument in args[1:])
            text = f"tl.where({self.tile(args[0], inner)}, {branches})"
        else:
            text = self.spell(instruction.op, args, inner)
        self.assign(instruction.result, text, instruction.dtype, instruction.op, inner)

    def spell(self, op: str, args: list[_Value], inner: bool) -> str:
        operand = next((argument.dtype for argument in args if not argument.literal), args[0].dtype)
        if op in RANDOM:
            table = RANDOM
        elif op in COMPARE:
            table = COMPARE
        elif operand == "bool":
            table = BOOL
        elif is_float(operand):
            table = {**FLOAT, **FLOAT32} if operand == "float32" else FLOAT
        else:
            table = INTEGER
        if op not in table:
            raise PluginError("triton", f"no spelling for {op} of {operand}")
        all_literal = all(argument.literal for argument in args)
        is_function = op not in ("add", "sub", "mul") and op not in COMPARE
        texts = [
            self.tile(argument, inner) if argument.literal and (all_literal or is_function) else _operand(argument) for argument in args
        ]
        text = table[op](*texts)
        for helper in HELPERS:
            if text.startswith(f"{helper}("):
                self.helpers.setdefault(helper)
        return text

    # ---- folds

    def fold_tile(self, fold: Reduce) -> None:
        """A fold over the one tile that holds the whole inner range."""
        value = self.full(fold)
        if fold.kind == "welford":
            mean, m2, count = fold.results
            n = f"{float(int(self.inner_count))}"
            total = f"tl.sum({self.guarded(value, '0')}, 1)[:, None]"
            self.assign(mean, f"{total} / {n}", fold.dtype, "mean", False)
            centred = self.namer.name("centred")
            self.writer.line(f"{centred} = {self.guarded(f'{value} - {self.values[mean].text}', '0')}")
            self.assign(m2, f"tl.sum({centred} * {centred}, 1)[:, None]", fold.dtype, "m2", False)
            self.values[count] = _Value(n, fold.dtype, literal=True)
            return
        if fold.kind in ("argmax", "argmin"):
            identity, helper = _ARG[fold.kind]
            self.helpers.setdefault(helper)
            guarded = self.guarded(value, identity_text(identity, accumulated(self.values[fold.value].dtype)))
            position = f"tl.broadcast_to({self.guarded('inner', _LAST_POSITION)}, [OUTER_TILE, INNER_TILE])"
            unused, at = self.namer.name("best"), self.namer.name(fold.kind)
            self.writer.line(f"{unused}, {at} = tl.reduce(({guarded}, {position}), 1, {helper})")
            self.assign(fold.results[0], f"{at}[:, None].to(tl.int64)", "int64", fold.kind, False)
            return
        guarded = self.guarded(value, identity_text(fold.kind, self.fold_dtype(fold)))
        self.assign(fold.results[0], self.finish(fold, guarded), fold.dtype, fold.kind, False)

    def fold_dtype(self, fold: Reduce) -> str:
        """In what a fold runs: booleans in int8, half-precision floats in float32, which Triton's maximum gives for them."""
        if fold.dtype == "bool" or fold.kind in ("any", "all"):
            return "int8"
        return accumulated(fold.dtype)

    def full(self, fold: Reduce) -> str:
        """The folded value as a tile [OUTER_TILE, INNER_TILE] of the accumulator's dtype."""
        value = self.values[fold.value]
        text = self.tile(value, True)
        wanted = self.fold_dtype(fold) if fold.kind not in ("argmax", "argmin") else accumulated(value.dtype)
        if fold.kind in ("any", "all") and value.dtype != "bool":
            text = f"({text} != 0)"
        converted = converted_text(text, "bool" if fold.kind in ("any", "all") else value.dtype, wanted) or text
        if not value.inner and not value.literal:
            converted = f"tl.broadcast_to({converted}, [OUTER_TILE, INNER_TILE])"
        return converted

    def guarded(self, text: str, identity: str) -> str:
        return f"tl.where(inner_mask, {text}, {identity})" if self.masks_inner else text

    def finish(self, fold: Reduce, tile: str) -> str:
        """The fold of a tile along the inner range, as [OUTER_TILE, 1] in the fold's dtype."""
        kind = fold.kind
        integral = not is_float(self.fold_dtype(fold))
        if kind == "sum":
            text = f"tl.sum({tile}, 1)"
        elif kind == "xor_sum":
            text = f"tl.xor_sum({tile}, 1)"
        elif kind == "prod":
            self.helpers.setdefault("multiply")
            text = f"tl.reduce({tile}, 1, multiply)"
        elif kind in ("max", "any"):
            text = f"tl.max({tile}, 1)" if integral else self.nan_fold(tile, "maximum_nan")
        elif kind in ("min", "all"):
            text = f"tl.min({tile}, 1)" if integral else self.nan_fold(tile, "minimum_nan")
        else:
            raise PluginError("triton", f"no spelling for reduction {kind}")
        text += "[:, None]"
        if fold.dtype == "bool" or kind in ("any", "all"):
            return f"{text} != 0"
        return f"{text}.to({type_text(fold.dtype)})" if integral or fold.dtype != self.fold_dtype(fold) else text

    def nan_fold(self, tile: str, helper: str) -> str:
        self.helpers.setdefault(helper)
        return f"tl.reduce({tile}, 1, {helper})"

    def scan(self, scan: Accumulate) -> None:
        """Running folds along the one tile that holds the whole inner range; what lies behind its end comes last."""
        if not self.tiles.persistent:
            raise PluginError("triton", f"kernel {self.name} scans {self.inner_count} elements, the longest scan is {PERSISTENT_NUMEL}")
        value, helper = self.values[scan.value], _SCANS[scan.kind]
        self.helpers.setdefault(helper)
        tile = self.tile(value, True)
        tile = converted_text(tile, value.dtype, scan.dtype) or tile
        if not value.inner and not value.literal:
            tile = f"tl.broadcast_to({tile}, [OUTER_TILE, INNER_TILE])"
        self.assign(scan.result, f"tl.associative_scan({tile}, 1, {helper})", scan.dtype, "running", True)

    def open_fold(self, fold: Reduce) -> tuple[str, ...]:
        """Tiles of partial results, set to what a fold of nothing gives."""
        shape = "[OUTER_TILE, INNER_TILE]"
        if fold.kind == "welford":
            names = tuple(self.namer.name(wish) for wish in ("means", "m2s", "counts"))
            for name in names:
                self.writer.line(f"{name} = tl.full({shape}, 0, {type_text(fold.dtype)})")
            return names
        if fold.kind in ("argmax", "argmin"):
            dtype = accumulated(self.value_dtype(fold))
            names = (self.namer.name("bests"), self.namer.name("positions"))
            self.writer.line(f"{names[0]} = tl.full({shape}, {identity_text(_ARG[fold.kind][0], dtype)}, {type_text(dtype)})")
            self.writer.line(f"{names[1]} = tl.full({shape}, {_LAST_POSITION}, {self.index_dtype})")
            return names
        dtype = self.fold_dtype(fold)
        name = self.namer.name(f"{fold.kind}s")
        self.writer.line(f"{name} = tl.full({shape}, {identity_text(fold.kind, dtype)}, {type_text(dtype)})")
        return (name,)

    def value_dtype(self, fold: Reduce) -> str:
        """dtype of the folded value, before the loop that computes it is written."""
        for instruction in self.kernel.instructions():
            if not isinstance(instruction, (Store, Indirect, Reduce)) and instruction.result == fold.value:
                return instruction.dtype
        return fold.dtype

    def step_fold(self, fold: Reduce, names: tuple[str, ...]) -> None:
        """Take a tile of values into the partial results."""
        line, value = self.writer.line, self.full(fold)
        if fold.kind == "welford":
            means, m2s, counts = names
            delta = self.namer.name("delta")
            line(f"{counts} = tl.where(inner_mask, {counts} + 1, {counts})")
            line(f"{delta} = {value} - {means}")
            line(f"{means} = tl.where(inner_mask, {means} + {delta} / {counts}, {means})")
            line(f"{m2s} = tl.where(inner_mask, {m2s} + {delta} * ({value} - {means}), {m2s})")
            return
        if fold.kind in ("argmax", "argmin"):
            helper = _ARG[fold.kind][1]
            self.helpers.setdefault(helper)
            best, at = self.namer.name("best"), self.namer.name("position")
            line(f"{best}, {at} = {helper}({names[0]}, {names[1]}, {value}, inner)")
            line(f"{names[0]} = tl.where(inner_mask, {best}, {names[0]})")
            line(f"{names[1]} = tl.where(inner_mask, {at}, {names[1]})")
            return
        (name,) = names
        combined = {
            "sum": f"{name} + {value}",
            "prod": f"{name} * {value}",
            "xor_sum": f"{name} ^ {value}",
            "max": f"tl.maximum({name}, {value}, propagate_nan=tl.PropagateNan.ALL)",
            "min": f"tl.minimum({name}, {value}, propagate_nan=tl.PropagateNan.ALL)",
            "any": f"tl.maximum({name}, {value})",
            "all": f"tl.minimum({name}, {value})",
        }[fold.kind]
        line(f"{name} = tl.where(inner_mask, {combined}, {name})")

    def close_fold(self, fold: Reduce, names: tuple[str, ...]) -> None:
        """Fold the partial results."""
        if fold.kind == "welford":
            self.helpers.setdefault("welford_merge")
            out = [self.namer.name(wish) for wish in ("mean", "m2", "count")]
            self.writer.line(f"{', '.join(out)} = tl.reduce(({', '.join(names)}), 1, welford_merge)")
            for result, name in zip(fold.results, out, strict=True):
                self.assign(result, f"{name}[:, None]", fold.dtype, name, False)
            return
        if fold.kind in ("argmax", "argmin"):
            unused, at = self.namer.name("best"), self.namer.name(fold.kind)
            self.writer.line(f"{unused}, {at} = tl.reduce(({', '.join(names)}), 1, {_ARG[fold.kind][1]})")
            self.assign(fold.results[0], f"{at}[:, None].to(tl.int64)", "int64", fold.kind, False)
            return
        self.assign(fold.results[0], self.finish(fold, names[0]), fold.dtype, fold.kind, False)


#: Position that loses to every other.
_LAST_POSITION = str((1 << 31) - 1)
_SCANS = {"sum": "plus", "prod": "multiply", "max": "maximum_nan", "min": "minimum_nan", "logsumexp": "log_add_exp"}
_ARG = {"argmax": ("max", "larger_first"), "argmin": ("min", "smaller_first")}


def _has_axis(expr: Expr, axes: tuple[Axis, ...]) -> bool:
    return not isinstance(expr, int) and bool({s.name for s in expr.free_symbols} & {axis.name for axis in axes})


def _operand(value: _Value) -> str:
    return f"({value.text})" if value.literal and value.text.startswith("-") else value.text
