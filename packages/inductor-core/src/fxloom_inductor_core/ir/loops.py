"""A traced loop: one node of loop IR as a flat list of instructions over its axes, before it is fused with others.

In: what `Recorder` recorded of a body. Out: `Loop`, and what is read off its instructions (buffers, indices, arguments).
Invariant: a store of a reduction runs once per outer point; instructions stand in an order in which they can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from fxloom_interfaces.expr import Expr, folds_columns, free_symbols, simplify, substitute
from fxloom_interfaces.program import (
    Accumulate,
    IndexValue,
    Indirect,
    Instruction,
    Load,
    Reduce,
    Store,
    operands_of,
)


@dataclass(frozen=True, slots=True)
class Loop:
    """One node of loop IR, traced: instructions over `outer` and `inner` axes (symbol, extent).

    name: of the buffer it defines (the first when several). is_reduction: the stores run once per outer point, after the
    inner loop; otherwise inner is empty. is_scan: it has to run over inner in order and stores inside. base: of a scatter, the buffer
    whose memory and content it goes on with; nothing else reads that one.
    """

    name: str
    outer: tuple[tuple[sympy.Symbol, Expr], ...]
    inner: tuple[tuple[sympy.Symbol, Expr], ...]
    instructions: tuple[Instruction, ...]
    device: str
    origins: tuple[str, ...] = ()
    ordered: bool = False
    base: str | None = None

    @property
    def is_reduction(self) -> bool:
        return any(isinstance(i, Reduce) for i in self.instructions)

    @property
    def is_scan(self) -> bool:
        return any(isinstance(i, Accumulate) for i in self.instructions)

    def writes(self) -> dict[str, Expr]:
        """Buffer -> index of its store."""
        return {i.buffer: i.index for i in self.instructions if isinstance(i, Store)}

    def reads(self) -> list[tuple[str, Expr]]:
        """(buffer, index) of every load, in order."""
        return [(i.buffer, i.index) for i in self.instructions if isinstance(i, Load)]

    def folds_columns(self) -> bool:
        """Whether most loads of one element for each point step through memory along the outer axes."""
        return folds_columns((index for _, index in self.reads()), [s for s, _ in self.outer], [s for s, _ in self.inner])

    def symbols(self) -> list[str]:
        """Names of all symbols in extents and indices, axes among them."""
        exprs = [e for _, e in (*self.outer, *self.inner)] + [e for i in self.instructions for e in exprs_of(i)]
        return sorted({s.name for e in exprs for s in free_symbols(e)})

    def size_names(self) -> frozenset[str]:
        """Names of the sizes and numbers that a launch of this loop passes beside its buffers."""
        own = {s.name for s, _ in (*self.outer, *self.inner)} | {i.symbol for i in self.instructions if isinstance(i, Indirect)}
        return frozenset(self.symbols()) - own

    def arguments(self) -> int:
        """How many buffers and sizes a launch of this loop passes."""
        buffers = {i.buffer for i in self.instructions if isinstance(i, (Load, Store))}
        return len(buffers) + len(self.size_names())

    def __str__(self) -> str:
        axes = ", ".join(f"{s} < {e}" for s, e in self.outer)
        inner = f" fold {', '.join(f'{s} < {e}' for s, e in self.inner)}" if self.inner else ""
        head = f"{self.name} ({self.device}): for {axes or 'one point'}{inner}  # {', '.join(self.origins)}"
        return "\n".join([head, *(f"  {instruction}" for instruction in self.instructions)])


def drop_dead(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Instructions that a store depends on, in order."""
    live: set[int] = set()
    symbols: set[str] = set()
    kept: list[Instruction] = []
    for instruction in reversed(instructions):
        match instruction:
            case Store():
                needed = True
            case Indirect(symbol=symbol):
                needed = symbol in symbols or instruction.check
            case Reduce(results=results):
                needed = any(r in live for r in results)
            case _:
                needed = instruction.result in live
        if needed:
            kept.append(instruction)
            live.update(operands_of(instruction))
            symbols.update(s.name for expr in exprs_of(instruction) if not isinstance(expr, int) for s in expr.free_symbols)
    return tuple(reversed(kept))


def exprs_of(instruction: Instruction) -> tuple[Expr, ...]:
    """The index expressions in an instruction."""
    match instruction:
        case Load(index=index) | Store(index=index):
            return (index,)
        case IndexValue(expr=expr):
            return (expr,)
        case Indirect(size=size):
            return (size,)
    return ()


def map_exprs(instruction: Instruction, mapping: Mapping[sympy.Symbol, Expr], extents: Mapping[sympy.Symbol, Expr]) -> Instruction:
    """The instruction with symbols of its index expressions replaced."""
    match instruction:
        case Load(result, buffer, index, dtype, mask):
            return Load(result, buffer, simplify(substitute(index, mapping), extents), dtype, mask)
        case Store(buffer, index, value, mode):
            return Store(buffer, simplify(substitute(index, mapping), extents), value, mode)
        case IndexValue(result, expr, dtype):
            return IndexValue(result, simplify(substitute(expr, mapping), extents), dtype)
    return instruction
