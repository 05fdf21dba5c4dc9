"""One kernel on many sets of arguments: a Triton function that finds each program's set in a table in the GPU's memory.

In: an elementwise kernel or a fold whose extents are sizes. Out: the source of a function `name(table, sets)`. A row of the table
has what one set is called with: addresses, sizes and `end`, the number of the program behind the set's last one. A program searches
for the first row whose `end` is greater than its own number and goes on with that row's addresses as pointers. (Arguments of the
launch instead of a table end in the local memory of every thread: the compiler reads all of them before it looks which it needs.)

Two forms of a function are compiled: for sets whose addresses and numbers of elements (along rows, of a fold) are multiples of
ALIGNMENT, and for all others; the address of a number that all points read doesn't count. How the table is written and how sets are
shared out over launches stands in `grouped_launch`.
"""

from __future__ import annotations

from fxloom_codegen_common.writer import SourceWriter
from fxloom_codegen_triton.emit import KernelEmitter
from fxloom_codegen_triton.literals import type_text
from fxloom_codegen_triton.tiles import Tiles, choose_tiles
from fxloom_interfaces.codegen import KernelSource
from fxloom_interfaces.expr import free_symbols, print_expr, product, symbol
from fxloom_interfaces.program import Axis, Kernel, Load, Store

#: Elements in a program.
_TILE = 1024


def emit_grouped_kernel(kernel: Kernel, name: str) -> KernelSource:
    """The source of `kernel` for several sets of arguments. details: those of `emit_kernel`, and which accesses have to be aligned."""
    if kernel.inner:
        tiles = choose_tiles(kernel)
    else:
        tiles = Tiles(_TILE if kernel.outer else 1, 0, 4 if kernel.outer else 1, False)
    text, helpers, _ = _GroupedEmitter(kernel, name, tiles).emit()
    details = {
        "outer_count": print_expr(product([axis.size for axis in kernel.outer])),
        "sizes": kernel.sizes,
        "buffers": tuple(buffer.dtype for buffer in kernel.arguments),
        "outer_tile": tiles.outer_tile,
        "inner_tile": tiles.inner_tile,
        "num_warps": tiles.num_warps,
        "helpers": helpers,
        "checks": False,
        "grouped": True,
        "vector_count": print_expr(product([axis.size for axis in kernel.inner or kernel.outer])),
        "aligned": tuple(position for position, buffer in enumerate(kernel.arguments) if buffer.name in _tiled(kernel)),
    }
    return KernelSource(name, "triton", text, details)


def _tiled(kernel: Kernel) -> frozenset[str]:
    """Buffers that are read or written at more than one place, whose alignment counts."""
    axes = {symbol(axis.name) for axis in (*kernel.outer, *kernel.inner)}
    accesses = [i for i in kernel.instructions() if isinstance(i, (Load, Store))]
    return frozenset(access.buffer for access in accesses if free_symbols(access.index) & axes)


class _GroupedEmitter(KernelEmitter):
    def __init__(self, kernel: Kernel, name: str, tiles: Tiles) -> None:
        super().__init__(kernel, name, tiles)
        self.index_dtype = "tl.int64"

    def emit(self) -> tuple[str, tuple[str, ...], bool]:
        writer = self.writer
        with writer.indent():
            self.find_set()
            self.make_pointers()
            self.prologue()
            for stage in self.kernel.stages:
                self.stage(stage)
        head = SourceWriter()
        head.comment(f"{' '.join(self.kernel.title) or 'kernel'}, on several sets of arguments")
        for buffer in self.kernel.arguments:
            head.comment(f"{buffer}")
        head.line('@triton.jit(do_not_specialize=["sets"])')
        tiles = ["OUTER_TILE", *(["INNER_TILE"] if self.kernel.inner else []), "ALIGNMENT"]
        head.line(f"def {self.name}(table, sets, {', '.join(f'{tile}: tl.constexpr' for tile in tiles)}):")
        return head.text() + writer.text(), tuple(self.helpers), False

    def find_set(self) -> None:
        """Assign the arguments of this program's set, and the number of the set's first program."""
        line, indent = self.writer.line, self.writer.indent
        arguments = [*(f"{buffer.name}_address" for buffer in self.kernel.arguments), *self.kernel.sizes]
        width = len(arguments) + 1
        line("program = tl.program_id(0)")
        line("first = sets * 0")
        line("last = sets")
        line("while first < last:")
        with indent():
            line("middle = (first + last) // 2")
            line(f"behind = tl.load(table + middle * {width} + {width - 1}) <= program")
            line("first = tl.where(behind, middle + 1, first)")
            line("last = tl.where(behind, last, middle)")
        line(f"row = table + first * {width}")
        for place, name in enumerate(arguments):
            line(f"{name} = tl.load(row + {place})")
        line("begin = tl.load(row - 1, first > 0, other=0)  # the end of the set before")

    def make_pointers(self) -> None:
        """Pointers from the addresses of the program's set."""
        line, tiled = self.writer.line, _tiled(self.kernel)
        for buffer in self.kernel.arguments:
            pointer = self.pointers[buffer.name]
            line(f"{pointer} = {buffer.name}_address.to(tl.pointer_type({type_text(buffer.dtype)}))")
            if buffer.name in tiled:
                line(f"{pointer} = tl.multiple_of({pointer}, ALIGNMENT)")

    def count_text(self, axes: tuple[Axis, ...]) -> str:
        """Along the axes that vectors run along the number is a multiple of ALIGNMENT, which the compiler sees here."""
        text = super().count_text(axes)
        return f"({text}) // ALIGNMENT * ALIGNMENT" if axes == (self.kernel.inner or self.kernel.outer) else text

    def program_text(self) -> str:
        return "(program - begin).to(tl.int64)"

    def meet(self) -> None:
        """Nothing in an elementwise kernel: what is read and written is so at one index, and so by one and the same thread."""
        if self.kernel.inner:
            super().meet()

    def load(self, instruction: Load) -> None:
        """A number that is the same at all points is loaded once, and what is computed of it is computed once."""
        if self.kernel.inner or instruction.mask is not None or self.roles[instruction.buffer] != "in" or self.is_tile(instruction.index):
            super().load(instruction)
            return
        text = f"tl.load({self.address(instruction.buffer, instruction.index)})"
        self.assign(instruction.result, text, instruction.dtype, instruction.buffer, False)
