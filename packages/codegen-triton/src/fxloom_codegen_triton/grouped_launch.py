"""A grouped kernel as a callable: `launcher([*buffers, *sizes, *buffers, *sizes, ...])` on the current stream of the buffers' device.

In: the function of the generated module and its `KernelSource`; buffers are tensors, sizes ints. Out: launches, each of at most so many
sets as the function takes. Sets whose addresses and numbers of elements are multiples of ALIGNMENT are launched apart from the others,
by another form of the function, compiled when the first such set comes. How the sets are shared out is kept until addresses change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fxloom_codegen_triton.compiler_options import options_here
from fxloom_codegen_triton.launch import ALIGNMENT, LOADING, refusal, run_on
from fxloom_codegen_triton.modules import interpreting
from fxloom_interfaces.codegen import KernelSource

#: an address, for the types of arguments; and a small number with none of the properties that Triton specialises on
_ADDRESS, _NUMBER = 1 << 40, 17


@dataclass(frozen=True, slots=True)
class _Part:
    """One launch. arguments: of all sets that the function takes, the last one repeated where there are fewer."""

    grid: tuple[int, int, int]
    arguments: tuple[int, ...]
    alignment: int


class GroupedLauncher:
    """See the module's docstring."""

    def __init__(self, function: Any, source: KernelSource) -> None:
        details = source.details
        self.function = function
        self.name = source.name
        self.buffers = len(details["buffers"])
        self.sizes: tuple[str, ...] = details["sizes"]
        self.sets: int = details["sets"]
        self.aligned: tuple[int, ...] = details["aligned"]  # positions of the buffers whose alignment counts
        self.outer_tile: int = details["outer_tile"]
        self.tiles = tuple(tile for tile in (details["outer_tile"], details["inner_tile"]) if tile)
        self.keywords: dict[str, Any] = {"num_warps": details["num_warps"]}
        # products of sizes: of points that programs share, and of those along which vectors run
        self._outer_count = compile(details["outer_count"], f"<{self.name}>", "eval")
        self._vector_count = compile(details["vector_count"], f"<{self.name}>", "eval")
        self._compiled: dict[tuple[int, int], Any] = {}  # by device, which a form is loaded on, and alignment
        self._last: tuple[tuple[int, ...], list[_Part]] | None = None

    def compile(self) -> None:
        """Compile for aligned sets. ToolchainError when Triton refuses."""
        self.keywords.update(options_here())
        self._form(ALIGNMENT)

    def _form(self, alignment: int) -> Any:
        """The form for the current device."""
        import torch

        key = (torch.cuda.current_device(), alignment)
        form = self._compiled.get(key)
        if form is None:
            arguments = [*[_ADDRESS] * (self.buffers + len(self.sizes)), _NUMBER] * self.sets
            try:
                form = self.function.warmup(*arguments, *self.tiles, alignment, grid=(1,), **self.keywords)
            except Exception as error:
                raise refusal(self.name, error) from error
            self._compiled[key] = form
        return form

    def __call__(self, arguments: Sequence[Any]) -> None:
        index = arguments[0].get_device()
        values = tuple([value if type(value) is int else value.data_ptr() for value in arguments])
        last = self._last  # another thread may replace it
        if last is None or last[0] != values:
            last = self._last = (values, self._parts(values))
        run_on(index, self._launch, last[1])

    def _launch(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            if interpreting():
                self.function[part.grid](*part.arguments, *self.tiles, part.alignment, **self.keywords)
                continue
            with LOADING:
                run = self._form(part.alignment)[part.grid]
            run(*part.arguments, *self.tiles, part.alignment)

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
        return [
            self._part(sets[at : at + self.sets], alignment)
            for alignment, sets in kinds.items()
            for at in range(0, len(sets), self.sets)
        ]

    def _part(self, sets: list[tuple[tuple[int, ...], int]], alignment: int) -> _Part:
        arguments: list[int] = []
        end = 0
        for one, programs in sets:
            end += programs
            arguments += [*one, end]
        arguments += [*sets[-1][0], end] * (self.sets - len(sets))
        return _Part((end, 1, 1), tuple(arguments), alignment)
