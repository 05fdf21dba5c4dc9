"""From a `Kernel` to the text of a Triton function.

The outer axes are one range of `xnumel` points, a block of XBLOCK of them per program; the inner axes are one range of
`rnumel` points. Three shapes of kernel:

- pointwise (no inner axes): values are tiles [XBLOCK];
- persistent (a static, short inner range): tiles [XBLOCK, RBLOCK] with all of the inner range in one tile. Every stage
  sees the same points, so equal loads and computations of different stages are done once. Scans run in these only;
- looped: each inner stage is a loop over tiles of the inner range, folds keep a tile of partial results.

Values of outer stages and results of folds have shape [XBLOCK, 1].
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from fxloom_codegen_common.namer import Namer
from fxloom_codegen_common.writer import SourceWriter
from fxloom_codegen_triton.plugin import PERSISTENT_NUMEL
from fxloom_codegen_triton.spelling import BOOL, COMPARE, FLOAT, FLOAT32, HELPERS, INTEGER, RANDOM
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.dtypes import dtype_info, is_float
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.expr import Expr, bounds, is_static, print_expr, product, stride_of, symbol
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
    frozenset({"tl", "triton", "libdevice", "float", "min", "max", "x", "r", "xmask", "rmask", "xnumel", "rnumel", "rbase"})
    | HELPERS.keys()
)
_FUNCTIONS = {"FloorDiv": "({0}) // ({1})", "Mod": "({0}) % ({1})", "Min": "tl.minimum({0}, {1})", "Max": "tl.maximum({0}, {1})"}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Launch parameters. rblock: 0 for pointwise kernels. persistent: rblock covers the inner range."""

    xblock: int
    rblock: int
    num_warps: int
    persistent: bool


def emit_kernel(kernel: Kernel, name: str) -> KernelSource:
    """The source of `kernel`, a module's worth less its imports. details: grid and launch parameters."""
    blocks = choose_blocks(kernel)
    text, helpers, checks = _Emitter(kernel, name, blocks).emit()
    details = {
        "xnumel": print_expr(product([axis.size for axis in kernel.outer])),
        "sizes": kernel.sizes,
        "buffers": tuple(buffer.dtype for buffer in kernel.arguments),
        "xblock": blocks.xblock,
        "rblock": blocks.rblock,
        "num_warps": blocks.num_warps,
        "helpers": helpers,
        "checks": checks,
    }
    return KernelSource(name, "triton", text, details)


def choose_blocks(kernel: Kernel) -> Blocks:
    """Block sizes by a rule of thumb: enough points per program to fill its warps, rows contiguous along lanes."""
    if not kernel.inner:
        numel = product([axis.size for axis in kernel.outer])
        small = is_static(numel) and int(numel) < 1 << 17
        return Blocks(256 if small else 1024, 0, 4, False)
    rnumel = product([axis.size for axis in kernel.inner])
    if is_static(rnumel) and int(rnumel) <= PERSISTENT_NUMEL:
        rblock = max(_power_of_two(int(rnumel)), 1)
        xblock = max(1, min(64, 2048 // rblock))
        tile = xblock * rblock
        return Blocks(xblock, rblock, 4 if tile <= 2048 else 8 if tile <= 8192 else 16, True)
    if _rows_are_strided(kernel):
        return Blocks(64, 32, 8, False)
    return Blocks(1, 2048, 8, False)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _rows_are_strided(kernel: Kernel) -> bool:
    """Whether most loads are contiguous along the outer axes and not along the inner ones."""
    votes = 0
    for instruction in kernel.instructions():
        if isinstance(instruction, Load) and kernel.outer:
            inner = stride_of(instruction.index, symbol(kernel.inner[-1].name))
            outer = stride_of(instruction.index, symbol(kernel.outer[-1].name))
            votes += (outer == 1) - (inner == 1)
    return votes > 0


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as text. literal: a number, which takes the dtype of what it meets. inner: varies along the inner axes."""

    text: str
    dtype: str
    literal: bool = False
    inner: bool = False


class _Emitter:
    def __init__(self, kernel: Kernel, name: str, blocks: Blocks) -> None:
        self.kernel, self.name, self.blocks = kernel, name, blocks
        self.writer = SourceWriter()
        self.namer = Namer(_RESERVED | {axis.name for axis in (*kernel.outer, *kernel.inner)} | set(kernel.sizes))
        self.pointers = {buffer.name: self.namer.name(f"{buffer.name}_ptr") for buffer in kernel.arguments}
        self.dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.roles = {buffer.name: buffer.role for buffer in kernel.buffers}
        if "scratch" in self.roles.values():
            raise PluginError("triton", f"kernel {name} asks for scratch memory, which this plugin says it doesn't have")
        self.values: dict[int, _Value] = {}
        self.known: dict[tuple[Any, ...], _Value] = {}  # value numbering, within what sees the same points
        self.symbols: dict[str, _Value] = {}  # indirect indices
        self.helpers: dict[str, None] = {}
        self.checks = False
        # buffers that were read, and written, since the threads of a program last met
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.inner_symbols = {axis.name for axis in kernel.inner}
        self.rnumel = product([axis.size for axis in kernel.inner])
        # a static inner range that fills its tile needs no mask
        self.rmask = bool(kernel.inner) and not (blocks.persistent and int(self.rnumel) == blocks.rblock)
        self.index_dtype = "tl.int64" if _needs_64_bits(kernel) else "tl.int32"

    # ---- frame

    def emit(self) -> tuple[str, tuple[str, ...], bool]:
        kernel, writer = self.kernel, self.writer
        title = " ".join(kernel.title) or "kernel"
        writer.comment(title)
        for buffer in kernel.arguments:
            writer.comment(f"{buffer}")
        arguments = [*self.pointers.values(), *kernel.sizes, "XBLOCK: tl.constexpr"]
        if kernel.inner:
            arguments.append("RBLOCK: tl.constexpr")
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
        xnumel = print_expr(product([axis.size for axis in self.kernel.outer]), _FUNCTIONS)
        line(f"xnumel = {xnumel}")
        lanes = "tl.arange(0, XBLOCK)[:, None]" if self.kernel.inner else "tl.arange(0, XBLOCK)"
        line(f"x = tl.program_id(0).to({self.index_dtype}) * XBLOCK + {lanes}")
        line("xmask = x < xnumel")
        self.axes("x", self.kernel.outer)
        if self.kernel.inner:
            line(f"rnumel = {print_expr(self.rnumel, _FUNCTIONS)}")
            if self.blocks.persistent:
                line(f"r = tl.arange(0, RBLOCK)[None, :]{self.cast_index()}")
                if self.rmask:
                    line("rmask = r < rnumel")
                self.axes("r", self.kernel.inner)
            else:
                line(f"rbase = tl.arange(0, RBLOCK)[None, :]{self.cast_index()}")

    def cast_index(self) -> str:
        return ".to(tl.int64)" if self.index_dtype == "tl.int64" else ""

    def axes(self, linear: str, axes: tuple[Axis, ...]) -> None:
        """The coordinates of the points numbered `linear`, row-major."""
        stride: Expr = 1
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = linear if stride == 1 else f"{linear} // {_atom(stride)}"
            if position > 0:
                text = f"{text} % {_atom(axis.size)}" if stride == 1 else f"({text}) % {_atom(axis.size)}"
            self.writer.line(f"{axis.name} = {text}")
            stride = product([stride, axis.size])

    def stage(self, stage: Stage) -> None:
        if any(isinstance(i, Load) and i.buffer in self.written or isinstance(i, Store) and i.buffer in self.read for i in stage.body):
            self.meet()  # here, so that no loop does it again and again
        if not stage.inner or self.blocks.persistent:
            for instruction in stage.body:
                self.instruction(instruction, stage.inner)
            return
        folds = [instruction for instruction in stage.body if isinstance(instruction, Reduce)]
        state = {id(fold): self.open_fold(fold) for fold in folds}
        outside = dict(self.known)
        self.writer.line("for roffset in range(0, rnumel, RBLOCK):")
        with self.writer.indent():
            self.writer.line("r = roffset + rbase")
            self.writer.line("rmask = r < rnumel")
            self.axes("r", self.kernel.inner)
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
                self.values[result] = _Value(_literal(value, dtype), dtype, literal=True)
            case IndexValue(result, expr, dtype):
                text = self.index(expr)
                if is_static(expr):
                    self.values[result] = _Value(_literal(int(expr), dtype), dtype, literal=True)
                elif not self.is_tile(expr):  # a size: one number for all points
                    shape = "[XBLOCK, 1]" if self.kernel.inner else "[XBLOCK]"
                    self.assign(result, f"tl.full({shape}, {text}, {_type(dtype)})", dtype, "index", False)
                else:
                    self.assign(result, f"{_atom_text(text)}.to({_type(dtype)})", dtype, "index", self.varies(expr))
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

    def index(self, expr: Expr) -> str:
        return print_expr(expr, _FUNCTIONS)

    def address(self, buffer: str, index: Expr) -> str:
        return f"{self.pointers[buffer]} + {self.index(index)}" if index != 0 else self.pointers[buffer]

    def mask(self, inner: bool, extra: _Value | None = None) -> str:
        parts = ["xmask"]
        if inner and self.rmask:
            parts.append("rmask")
        if extra is not None:
            parts.append(extra.text)
        return " & ".join(parts)

    def load(self, instruction: Load) -> None:
        extra = self.values[instruction.mask] if instruction.mask is not None else None
        inner = self.varies(instruction.index) or (extra is not None and extra.inner)
        address = self.address(instruction.buffer, instruction.index)
        if not self.is_tile(instruction.index):
            # one address for the whole tile: Triton wants a tile of pointers where there is a tile of masks
            address += " + x * 0"
        if extra is not None and inner and not self.varies(instruction.index):
            address += " + r * 0"
        if instruction.buffer in self.written:
            self.meet()
        if self.roles[instruction.buffer] != "in":
            self.read.add(instruction.buffer)
        text = f"tl.load({address}, {self.mask(inner, extra)}, other=0)"
        wish = instruction.buffer
        unchanging = self.roles[instruction.buffer] == "in"
        self.assign(instruction.result, text, instruction.dtype, wish, inner, reuse=unchanging)

    def store(self, buffer: str, index: Expr, value: _Value, mode: str | None, inner: bool) -> None:
        wide = inner and (self.varies(index) or value.inner)
        text = self.tile(value, wide)
        address = self.address(buffer, index)
        # Triton takes the value's shape from the tile of addresses, so that has to be as wide as the masks.
        if not _has_axis(index, self.kernel.outer):
            address += " + x * 0"
        if wide and not self.varies(index):
            address += " + r * 0"
        if buffer in self.read:
            self.meet()
        self.written.add(buffer)
        function = "tl.atomic_add" if mode == "add" else "tl.store"
        self.writer.line(f"{function}({address}, {text}, {self.mask(wide)})")

    def tile(self, value: _Value, inner: bool) -> str:
        """The value as a tile of its own dtype, also where it is a literal."""
        if not value.literal:
            return value.text
        shape = "[XBLOCK]" if not self.kernel.inner else "[XBLOCK, RBLOCK]" if inner else "[XBLOCK, 1]"
        if value.dtype == "bfloat16":  # of which Triton's interpreter has no constants
            return f"tl.full({shape}, {value.text}, tl.float32).to(tl.bfloat16)"
        return f"tl.full({shape}, {value.text}, {_type(value.dtype)})"

    def indirect(self, instruction: Indirect) -> None:
        value = self.values[instruction.value]
        text = self.tile(value, False)
        size = self.index(instruction.size)
        if instruction.wrap:
            if value.literal:
                named = self.namer.name("at")
                self.writer.line(f"{named} = {text}")
                text = named
            text = f"tl.where({text} < 0, {text} + {_atom_text(size)}, {text})"
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
            text = _convert(self.tile(args[0], inner), args[0].dtype, instruction.dtype)
            if text is None:
                self.values[instruction.result] = args[0]
                return
        elif instruction.op == "bitcast":
            text = f"{self.tile(args[0], inner)}.to({_type(instruction.dtype)}, bitcast=True)"
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
            self.tile(argument, inner) if argument.literal and (all_literal or is_function) else _operand(argument)
            for argument in args
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
            n = f"{float(int(self.rnumel))}"
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
            guarded = self.guarded(value, _identity(identity, _wide(self.values[fold.value].dtype)))
            position = f"tl.broadcast_to({self.guarded('r', _LAST_POSITION)}, [XBLOCK, RBLOCK])"
            unused, at = self.namer.name("best"), self.namer.name(fold.kind)
            self.writer.line(f"{unused}, {at} = tl.reduce(({guarded}, {position}), 1, {helper})")
            self.assign(fold.results[0], f"{at}[:, None].to(tl.int64)", "int64", fold.kind, False)
            return
        guarded = self.guarded(value, _identity(fold.kind, self.fold_dtype(fold)))
        self.assign(fold.results[0], self.finish(fold, guarded), fold.dtype, fold.kind, False)

    def fold_dtype(self, fold: Reduce) -> str:
        """In what a fold runs: booleans in int8, half-precision floats in float32, which Triton's maximum gives for them."""
        if fold.dtype == "bool" or fold.kind in ("any", "all"):
            return "int8"
        return _wide(fold.dtype)

    def full(self, fold: Reduce) -> str:
        """The folded value as a tile [XBLOCK, RBLOCK] of the accumulator's dtype."""
        value = self.values[fold.value]
        text = self.tile(value, True)
        wanted = self.fold_dtype(fold) if fold.kind not in ("argmax", "argmin") else _wide(value.dtype)
        if fold.kind in ("any", "all") and value.dtype != "bool":
            text = f"({text} != 0)"
        converted = _convert(text, "bool" if fold.kind in ("any", "all") else value.dtype, wanted) or text
        if not value.inner and not value.literal:
            converted = f"tl.broadcast_to({converted}, [XBLOCK, RBLOCK])"
        return converted

    def guarded(self, text: str, identity: str) -> str:
        return f"tl.where(rmask, {text}, {identity})" if self.rmask else text

    def finish(self, fold: Reduce, tile: str) -> str:
        """The fold of a tile along the inner range, as [XBLOCK, 1] in the fold's dtype."""
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
        return f"{text}.to({_type(fold.dtype)})" if integral or fold.dtype != self.fold_dtype(fold) else text

    def nan_fold(self, tile: str, helper: str) -> str:
        self.helpers.setdefault(helper)
        return f"tl.reduce({tile}, 1, {helper})"

    def scan(self, scan: Accumulate) -> None:
        """Running folds along the one tile that holds the whole inner range; what lies behind its end comes last."""
        if not self.blocks.persistent:
            raise PluginError("triton", f"kernel {self.name} scans {self.rnumel} elements, the longest scan is {PERSISTENT_NUMEL}")
        value, helper = self.values[scan.value], _SCANS[scan.kind]
        self.helpers.setdefault(helper)
        tile = self.tile(value, True)
        tile = _convert(tile, value.dtype, scan.dtype) or tile
        if not value.inner and not value.literal:
            tile = f"tl.broadcast_to({tile}, [XBLOCK, RBLOCK])"
        self.assign(scan.result, f"tl.associative_scan({tile}, 1, {helper})", scan.dtype, "running", True)

    def open_fold(self, fold: Reduce) -> tuple[str, ...]:
        """Tiles of partial results, set to what a fold of nothing gives."""
        shape = "[XBLOCK, RBLOCK]"
        if fold.kind == "welford":
            names = tuple(self.namer.name(wish) for wish in ("means", "m2s", "counts"))
            for name in names:
                self.writer.line(f"{name} = tl.full({shape}, 0, {_type(fold.dtype)})")
            return names
        if fold.kind in ("argmax", "argmin"):
            dtype = _wide(self.value_dtype(fold))
            names = (self.namer.name("bests"), self.namer.name("positions"))
            self.writer.line(f"{names[0]} = tl.full({shape}, {_identity(_ARG[fold.kind][0], dtype)}, {_type(dtype)})")
            self.writer.line(f"{names[1]} = tl.full({shape}, {_LAST_POSITION}, {self.index_dtype})")
            return names
        dtype = self.fold_dtype(fold)
        name = self.namer.name(f"{fold.kind}s")
        self.writer.line(f"{name} = tl.full({shape}, {_identity(fold.kind, dtype)}, {_type(dtype)})")
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
            line(f"{counts} = tl.where(rmask, {counts} + 1, {counts})")
            line(f"{delta} = {value} - {means}")
            line(f"{means} = tl.where(rmask, {means} + {delta} / {counts}, {means})")
            line(f"{m2s} = tl.where(rmask, {m2s} + {delta} * ({value} - {means}), {m2s})")
            return
        if fold.kind in ("argmax", "argmin"):
            helper = _ARG[fold.kind][1]
            self.helpers.setdefault(helper)
            best, at = self.namer.name("best"), self.namer.name("position")
            line(f"{best}, {at} = {helper}({names[0]}, {names[1]}, {value}, r)")
            line(f"{names[0]} = tl.where(rmask, {best}, {names[0]})")
            line(f"{names[1]} = tl.where(rmask, {at}, {names[1]})")
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
        line(f"{name} = tl.where(rmask, {combined}, {name})")

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
_SCANS = {"sum": "plus", "prod": "multiply", "max": "maximum_nan", "min": "minimum_nan"}
_ARG = {"argmax": ("max", "larger_first"), "argmin": ("min", "smaller_first")}


def _has_axis(expr: Expr, axes: tuple[Axis, ...]) -> bool:
    return not isinstance(expr, int) and bool({s.name for s in expr.free_symbols} & {axis.name for axis in axes})


def _needs_64_bits(kernel: Kernel) -> bool:
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


def _wide(dtype: str) -> str:
    """The dtype in which values of `dtype` are compared and folded."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _type(dtype: str) -> str:
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


def _literal(value: bool | float, dtype: str) -> str:
    if dtype == "bool":
        return "True" if value else "False"
    if not is_float(dtype):
        return repr(_wrapped(int(value), dtype))
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    return repr(float(value))


def _wrapped(value: int, dtype: str) -> int:
    """What an integer of the dtype holds of `value`: its low bits."""
    bits = 8 * dtype_info(dtype).nbytes
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype_info(dtype).kind == "int" and value >> bits - 1 else value


def _operand(value: _Value) -> str:
    return f"({value.text})" if value.literal and value.text.startswith("-") else value.text


def _convert(text: str, source: str, target: str) -> str | None:
    """`text` converted; None when there is nothing to do."""
    if source == target:
        return None
    if target == "bool":
        return f"{text} != 0"
    if target in ("float16", "bfloat16") and source not in ("float32", "float16", "bfloat16"):
        text = f"({text}).to(tl.float32)"  # in two steps, as torch does it
    return f"{text}.to({_type(target)})" if re.fullmatch(r"[\w.]+|[\w.]+\(.*\)", text) else f"({text}).to({_type(target)})"


def _identity(kind: str, dtype: str) -> str:
    """What a fold of nothing gives."""
    if kind in ("sum", "xor_sum", "any"):
        return "0"
    if kind in ("prod", "all"):
        return "1"
    low = kind == "max"
    if is_float(dtype):
        return 'float("-inf")' if low else 'float("inf")'
    info = dtype_info(dtype)
    if info.kind == "bool":
        return "False" if low else "True"
    bits = 8 * info.nbytes
    if info.kind == "uint":
        return "0" if low else str((1 << bits) - 1)
    return str(-(1 << bits - 1)) if low else str((1 << bits - 1) - 1)


def _atom(expr: Expr) -> str:
    return _atom_text(print_expr(expr, _FUNCTIONS))


def _atom_text(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"
