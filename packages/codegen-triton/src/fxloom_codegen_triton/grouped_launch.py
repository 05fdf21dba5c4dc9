"""A grouped kernel as a callable: `launcher([*buffers, *sizes, *buffers, *sizes, ...])` on the current stream of the buffers' device.

In: the function of the generated module, its `KernelSource`, and the function that writes tables; buffers are tensors, sizes ints. Out:
at most two launches: sets whose addresses and numbers of elements are multiples of ALIGNMENT are launched apart from the others, by
another form of the function, compiled when the first such set comes.

A launch reads its sets in a table in the GPU's memory. The table is written by kernels too, whose arguments are its words: so nothing
is copied from the host, and a CUDA graph can record it. It is kept until addresses or the stream change; one that a graph
records belongs to the graph, which writes it at each replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxloom_codegen_triton._torch_private import current_stream
from fxloom_codegen_triton.compiler_options import options_here
from fxloom_codegen_triton.driver_launch import DriverLaunch, driver_launch
from fxloom_codegen_triton.launch import ALIGNMENT, LOADING, refusal, run_on
from fxloom_codegen_triton.modules import interpreting
from fxloom_codegen_triton.table_writer import WORDS
from fxloom_interfaces.codegen import KernelSource

#: an address, for the types of arguments; and a small number with none of the properties that Triton specialises on
_ADDRESS, _NUMBER = 1 << 40, 17


@dataclass(frozen=True, slots=True)
class _Part:
    """One launch. words: of its table, set by set."""

    grid: tuple[int, int, int]
    sets: int
    words: tuple[int, ...]
    alignment: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The launches of a call with their tables, written on a stream of a device."""

    values: tuple[int, ...]
    device: int
    stream: int
    launches: tuple[tuple[_Part, torch.Tensor], ...]


class GroupedLauncher:
    """See the module's docstring."""

    def __init__(self, function: Any, source: KernelSource, write: Any) -> None:
        details = source.details
        self.function = function
        self.write = write
        self.name = source.name
        self.buffers = len(details["buffers"])
        self.sizes: tuple[str, ...] = details["sizes"]
        self.aligned: tuple[int, ...] = details["aligned"]  # positions of the buffers whose alignment counts
        self.outer_tile: int = details["outer_tile"]
        self.tiles = tuple(tile for tile in (details["outer_tile"], details["inner_tile"]) if tile)
        self.keywords: dict[str, Any] = {"num_warps": details["num_warps"]}
        # products of sizes: of points that programs share, and of those along which vectors run
        self._outer_count = compile(details["outer_count"], f"<{self.name}>", "eval")
        self._vector_count = compile(details["vector_count"], f"<{self.name}>", "eval")
        # by device, which a form is loaded on, and alignment; 0 is the function that writes tables
        self._compiled: dict[tuple[int, int], Any] = {}
        self._launches: dict[tuple[int, int], DriverLaunch | None] = {}
        self._last: _Prepared | None = None

    def compile(self) -> None:
        """Compile for aligned sets. ToolchainError when Triton refuses."""
        self.keywords.update(options_here())
        self._form(ALIGNMENT)
        self._form(0)

    def _form(self, alignment: int) -> Any:
        """The form for the current device."""
        key = (torch.cuda.current_device(), alignment)
        form = self._compiled.get(key)
        if form is None:
            try:
                if alignment:
                    form = self.function.warmup(torch.int64, _NUMBER, *self.tiles, alignment, grid=(1,), **self.keywords)
                else:
                    form = self.write.warmup(torch.int64, _NUMBER, *[_ADDRESS] * WORDS, grid=(1,), **{**self.keywords, "num_warps": 1})
            except Exception as error:
                raise refusal(self.name, error) from error
            self._compiled[key] = form
        return form

    def __call__(self, arguments: Sequence[Any]) -> None:
        first = arguments[0]
        values = tuple([value if type(value) is int else value.data_ptr() for value in arguments])
        run_on(first.get_device(), self._launch, first.device, values)

    def _launch(self, device: torch.device, values: tuple[int, ...]) -> None:
        if interpreting():
            for part, table in self._prepare(device, 0, values).launches:
                self.function[part.grid](table, part.sets, *self.tiles, part.alignment, **self.keywords)
            return
        stream = current_stream(device.index)
        recording = torch.cuda.is_current_stream_capturing()
        prepared = self._last  # another thread may replace it
        if recording or prepared is None or (prepared.values, prepared.device, prepared.stream) != (values, device.index, stream):
            prepared = self._prepare(device, stream, values)
            if not recording:
                self._last = prepared
        for part, table in prepared.launches:
            self._run(part.alignment, part.grid, stream, table, part.sets)

    def _run(self, alignment: int, grid: tuple[int, int, int], stream: int, table: torch.Tensor, *words: int) -> None:
        """Launch a form on a table; by Triton where the driver's launch won't do."""
        key = (table.get_device(), alignment)
        with LOADING:
            form = self._form(alignment)
            if key not in self._launches:
                self._launches[key] = driver_launch(self.name, form, 1 + len(words))
            launch = self._launches[key]
        if launch is not None:
            launch(grid[0], stream, (table.data_ptr(), *words))
            return
        with LOADING:
            run = form[grid]
        run(table, *words, *(*self.tiles, alignment) if alignment else ())

    def _prepare(self, device: torch.device, stream: int, values: tuple[int, ...]) -> _Prepared:
        launches = tuple((part, self._table(device, stream, part.words)) for part in self._parts(values))
        return _Prepared(values, device.index, stream, launches)

    def _table(self, device: torch.device, stream: int, words: tuple[int, ...]) -> torch.Tensor:
        """The words in the GPU's memory."""
        rounds = -(-len(words) // WORDS)
        table = torch.empty(rounds * WORDS, dtype=torch.int64, device=device)
        words += (0,) * (rounds * WORDS - len(words))
        for start in range(0, len(words), WORDS):
            here = words[start : start + WORDS]
            if interpreting():
                self.write[(1,)](table, start, *here)
            else:
                self._run(0, (1, 1, 1), stream, table, start, *here)
        return table

    def _parts(self, values: tuple[int, ...]) -> list[_Part]:
        """The launches that cover all sets that have elements."""
        in_set = self.buffers + len(self.sizes)
        kinds: dict[int, list[tuple[tuple[int, ...], int]]] = {ALIGNMENT: [], 1: []}
        for start in range(0, len(values), in_set):
            # a tensor without elements is at 0, which Triton's interpreter would type as a small number; nothing is read there
            addresses = [address or _ADDRESS for address in values[start : start + self.buffers]]
            one = (*addresses, *values[start + self.buffers : start + in_set])
            sizes = dict(zip(self.sizes, one[self.buffers :], strict=True))
            count, along = (int(eval(text, {"__builtins__": {}}, sizes)) for text in (self._outer_count, self._vector_count))
            aligned = along % ALIGNMENT == 0 and all(one[position] % ALIGNMENT == 0 for position in self.aligned)
            if count:
                kinds[ALIGNMENT if aligned else 1].append((one, -(-count // self.outer_tile)))
        return [self._part(sets, alignment) for alignment, sets in kinds.items() if sets]

    def _part(self, sets: list[tuple[tuple[int, ...], int]], alignment: int) -> _Part:
        words: list[int] = []
        end = 0
        for one, programs in sets:
            end += programs
            words += [*one, end]
        return _Part((end, 1, 1), len(sets), tuple(words), alignment)
