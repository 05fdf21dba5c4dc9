"""From a group of loops to one `Kernel`: stages, value forwarding, hoisting out of inner loops, scratch, canonical names.

In: a `Group`, and which of its buffers are read outside. Out: a `FusedKernel`, the kernel and the buffers that it is launched on.
Invariant: the kernel computes what its loops compute one after the other. Values stored and read at the same point are
forwarded. A store that nobody outside needs is dropped; where a later stage reads it again the value is computed anew if
that is cheap, and becomes scratch if not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from fxloom_inductor_core.ir.loops import exprs_of, map_exprs
from fxloom_inductor_core.ir.tensors import contiguous_strides, flat_index
from fxloom_inductor_core.scheduler.groups import Group, Member, Space
from fxloom_inductor_core.scheduler.spaces import Axes, collapse
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.expr import Expr, free_symbols, product, substitute, symbol, value_symbol
from fxloom_interfaces.ops import OPS
from fxloom_interfaces.program import (
    Accumulate,
    Axis,
    Compute,
    Constant,
    IndexValue,
    Indirect,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Reduce,
    Role,
    Stage,
    Store,
    operands_of,
    results_of,
)

#: light operations up to which a value is computed again rather than kept: writing and reading it cost as much as two loads
_CHEAP_OPERATIONS = 8


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A kernel and what it is launched on: buffers in argument order, size expressions.

    in_place: (read, written) buffers that may share memory. is_copy: it does nothing but copy the one to the other.
    """

    kernel: Kernel
    buffers: tuple[str, ...]
    dropped: tuple[str, ...]
    in_place: tuple[tuple[str, str], ...]

    @property
    def is_copy(self) -> bool:
        match self.kernel.stages:
            case (Stage(body=(Load(mask=None), Store())),):
                return bool(self.in_place)
        return False


def make_kernel(
    group: Group,
    is_live: Callable[[str], bool],
    dtype_of: Callable[[str], str],
    capabilities: Capabilities,
    op_names: Mapping[str, str],
) -> FusedKernel:
    """The kernel of a group. is_live: whether someone outside the group reads a buffer it writes. op_names: of origins."""
    if group.space is None:
        raise AssertionError("a call is no kernel")
    builder = _Builder(group, group.space, is_live)
    builder.build()
    title = _title(group, op_names)
    return _Finish(group, group.space, builder.stages, is_live, dtype_of, capabilities, title).run()


class _Builder:
    """Places every instruction of a group in a stage. Stages have numbers: even ones run at inner points, odd ones between."""

    def __init__(self, group: Group, space: Space, is_live: Callable[[str], bool]) -> None:
        self.group = group
        self.is_live = is_live
        self.space = space
        self.outer, self.inner = space.axes()
        self.inner_symbols = frozenset(s for s, _ in self.inner)
        self.extents = dict([*self.outer, *self.inner])
        self.stages: dict[int, list[Instruction]] = {}
        self.stage_of_value: dict[int, int] = {}
        self.stage_of_symbol: dict[str, int] = {}
        self.count = 0
        self.known: dict[Any, Any] = {}
        self.forward: dict[tuple[str, Expr], int] = {}
        self.made: dict[int, Load | Constant | IndexValue | Compute] = {}

    def build(self) -> None:
        starts = self._starts()
        for member in sorted(self.group.members, key=lambda m: (starts[m.position], m.position)):
            self._place(member, starts[member.position])

    def _starts(self) -> dict[int, int]:
        """The stage in which each member runs: as early as what it reads allows."""
        starts: dict[int, int] = {}
        writer: dict[str, Member] = {b: m for m in self.group.members for b in m.loop.writes()}
        folds = self.space.inner is not None
        for member in self.group.members:
            start = 0 if member.inside or not folds else -1
            for buffer, _ in member.loop.reads():
                source = writer.get(buffer)
                if source is None or source is member:
                    continue
                at = starts[source.position]
                if source.loop.is_reduction:
                    at += 1
                if member.inside and at % 2:
                    at += 1
                start = max(start, at)
            starts[member.position] = start
        return starts

    def _place(self, member: Member, start: int) -> None:
        mapping = member.mapping(self.space)
        values: dict[int, int] = {}
        symbols: dict[sympy.Symbol, Expr] = dict(mapping)
        for instruction in member.loop.instructions:
            self._instruction(instruction, start, values, symbols)

    def _instruction(
        self, instruction: Instruction, start: int, values: dict[int, int], symbols: dict[sympy.Symbol, Expr]
    ) -> None:
        made = map_exprs(instruction, symbols, self.extents)
        match made:
            case Load(result, buffer, index, dtype, mask):
                where = None if mask is None else values[mask]
                forwarded = self.forward.get((buffer, index))
                if forwarded is not None and where is None:
                    if self._visible(forwarded, start):
                        values[result] = forwarded
                        return
                    if not self.is_live(buffer) and self._is_cheap(forwarded):
                        values[result] = self._again(forwarded, start)
                        return
                stage = self._stage_for(start, made, [] if where is None else [where], load=True)
                values[result] = self._value(Load(result, buffer, index, dtype, where), stage)
            case Constant(result=result):
                values[result] = self._value(made, self._first())
            case IndexValue(result=result):
                values[result] = self._value(made, self._stage_for(start, made, []))
            case Compute(result, op, args, dtype):
                operands = tuple([values[a] for a in args])
                values[result] = self._value(Compute(result, op, operands, dtype), self._stage_for(start, made, operands))
            case Indirect():
                self._indirect(made, start, values, symbols)
            case Reduce(results=results, kind=kind, value=value, dtype=dtype):
                key = ("reduce", start, kind, values[value], dtype)
                if key not in self.known:
                    names = tuple(self._number(start + 1) for _ in results)
                    self._emit(start, replace(made, results=names, value=values[value]))
                    self.known[key] = names
                values.update(zip(results, self.known[key], strict=True))
            case Accumulate(result=result, value=value):
                values[result] = self._number(start)
                self._emit(start, replace(made, result=values[result], value=values[value]))
            case Store(buffer=buffer, index=index, value=value):
                source = values[value]
                at = start
                if not free_symbols(index) & self.inner_symbols and self.inner and self.stage_of_value[source] % 2:
                    at = max(self.stage_of_value[source], start if start % 2 else -1)
                self._emit(at, replace(made, value=source))
                if made.mode is None:
                    self.forward[(buffer, index)] = source

    def _indirect(self, made: Indirect, start: int, values: dict[int, int], symbols: dict[sympy.Symbol, Expr]) -> None:
        value = values[made.value]
        mask = None if made.mask is None else values[made.mask]
        operands = [value] if mask is None else [value, mask]
        stage = self._stage_for(start, made, operands)
        key = ("indirect", value, made.size, made.check, made.wrap, made.error, mask, stage if stage % 2 == 0 else -1)
        if key not in self.known:
            name = f"i{sum(1 for k in self.known if k[0] == 'indirect')}"
            self.known[key] = name
            self.stage_of_symbol[name] = stage
            self._emit(stage, replace(made, symbol=name, value=value, mask=mask))
        symbols[value_symbol(made.symbol)] = value_symbol(self.known[key])

    def _first(self) -> int:
        return -1 if self.inner else 0

    def _is_cheap(self, value: int) -> bool:
        """True when computing the value anew costs little more than reading it back: at most two loads and a few light operations."""
        loads: set[int] = set()
        operations: set[int] = set()
        pending = [value]
        while pending:
            at = pending.pop()
            if self.stage_of_value[at] % 2:
                continue
            match self.made.get(at):
                case Load(buffer=buffer, index=index, mask=None) if buffer not in self.group.writes:
                    if any(s.name in self.stage_of_symbol for s in free_symbols(index)):
                        return False
                    loads.add(at)
                case IndexValue():
                    pass
                case Compute(op=op, args=args) if op in ("to_dtype", "bitcast", "where") or (op in OPS and not OPS[op].heavy):
                    operations.add(at)
                    pending += args
                case _:
                    return False
            if len(loads) > 2 or len(operations) > _CHEAP_OPERATIONS:
                return False
        return True

    def _again(self, value: int, stage: int) -> int:
        """The same value, computed in a later stage from what a cheap value is computed from."""
        if self.stage_of_value[value] % 2:
            return value
        made = self.made[value]
        if isinstance(made, Compute):
            made = replace(made, args=tuple(self._again(a, stage) for a in made.args))
        return self._value(made, stage)

    def _visible(self, value: int, start: int) -> bool:
        at = self.stage_of_value[value]
        return at == start or at % 2 != 0

    def _stage_for(self, start: int, made: Instruction, operands: Sequence[int], load: bool = False) -> int:
        """The stage an instruction of a member that starts at `start` runs in: outside the inner loop if nothing varies there."""
        if not self.inner:
            return 0
        stages = [self.stage_of_value[o] for o in operands]
        used = {s for expr in exprs_of(made) for s in free_symbols(expr)}
        stages += [self.stage_of_symbol[s.name] for s in used if s.name in self.stage_of_symbol]
        if any(s % 2 == 0 for s in stages) or used & self.inner_symbols:
            return start if start % 2 == 0 else max([s for s in stages if s % 2 == 0], default=start)
        floor = max(stages, default=-1)
        if load:
            return max(floor, start - 1 if start % 2 == 0 else start)
        return floor

    def _number(self, stage: int) -> int:
        number = self.count
        self.count += 1
        self.stage_of_value[number] = stage
        return number

    def _value(self, made: Load | Constant | IndexValue | Compute, stage: int) -> int:
        """The number of the value that `made` gives, whatever number it has: an earlier one where it is made already."""
        key = _content(made)
        found = self.known.get((key, None))
        if found is None and stage % 2 == 0:
            found = self.known.get((key, stage))
        if found is not None:
            return int(found)
        number = self._number(stage)
        self.known[(key, stage if stage % 2 == 0 else None)] = number
        self.made[number] = _numbered(made, number)
        self._emit(stage, self.made[number])
        return number

    def _emit(self, stage: int, instruction: Instruction) -> None:
        self.stages.setdefault(stage, []).append(instruction)


class _Finish:
    """Drops dead stores and values, makes scratch, merges axes, gives canonical names."""

    def __init__(
        self,
        group: Group,
        space: Space,
        stages: Mapping[int, list[Instruction]],
        is_live: Callable[[str], bool],
        dtype_of: Callable[[str], str],
        capabilities: Capabilities,
        title: tuple[str, ...],
    ) -> None:
        self.title = title
        self.group = group
        self.outer, self.inner = space.axes()
        self.order = sorted(stages)
        self.stages = {n: list(stages[n]) for n in self.order}
        self.is_live = is_live
        self.dtype_of = dtype_of
        self.capabilities = capabilities
        self.scratch: dict[str, None] = {}
        self.dropped: list[str] = []

    def run(self) -> FusedKernel:
        self._settle_stores()
        self._drop_dead()
        self._collapse()
        return self._name()

    def _all(self) -> list[Instruction]:
        return [i for n in self.order for i in self.stages[n]]

    def _settle_stores(self) -> None:
        loaded = {i.buffer for i in self._all() if isinstance(i, Load)}
        for buffer in self.group.writes:
            if self.is_live(buffer):
                continue
            if buffer not in loaded:
                self._remove_stores(buffer)
            elif self._fits_scratch(buffer):
                self._make_scratch(buffer)

    def _remove_stores(self, buffer: str) -> None:
        for number in self.order:
            self.stages[number] = [i for i in self.stages[number] if not (isinstance(i, Store) and i.buffer == buffer)]
        self.dropped.append(buffer)

    def _fits_scratch(self, buffer: str) -> bool:
        extent = product(e for _, e in self.inner)
        nbytes = dtype_info(self.dtype_of(buffer)).nbytes
        inside = all(
            n % 2 == 0 for n in self.order for i in self.stages[n] if isinstance(i, Store) and i.buffer == buffer
        )
        return inside and isinstance(extent, int) and extent * nbytes <= self.capabilities.max_scratch_nbytes

    def _make_scratch(self, buffer: str) -> None:
        axes = tuple(s for s, _ in self.inner)
        index = flat_index(axes, contiguous_strides(tuple(e for _, e in self.inner)))
        for number in self.order:
            self.stages[number] = [
                replace(i, index=index) if isinstance(i, (Load, Store)) and i.buffer == buffer else i
                for i in self.stages[number]
            ]
        self.scratch[buffer] = None
        self.dropped.append(buffer)

    def _drop_dead(self) -> None:
        live: set[int] = set()
        symbols: set[str] = set()
        for number in reversed(self.order):
            kept: list[Instruction] = []
            for instruction in reversed(self.stages[number]):
                if isinstance(instruction, Store):
                    needed = True
                elif isinstance(instruction, Indirect):
                    needed = instruction.check or instruction.symbol in symbols
                else:
                    needed = any(r in live for r in results_of(instruction))
                if needed:
                    kept.append(instruction)
                    live.update(operands_of(instruction))
                    symbols.update(s.name for e in exprs_of(instruction) for s in free_symbols(e))
            self.stages[number] = kept[::-1]
        self.order = [n for n in self.order if self.stages[n]]

    def _collapse(self) -> None:
        exprs = list(dict.fromkeys(e for i in self._all() for e in exprs_of(i)))
        outer, outer_map = collapse(self.outer, exprs)
        inner = self.inner
        inner_map: dict[sympy.Symbol, Expr] = {}
        if not any(isinstance(i, (Reduce, Accumulate)) and i.kind in ("argmax", "argmin") for i in self._all()):
            inner, inner_map = collapse(self.inner, exprs)
        mapping: dict[sympy.Symbol, Expr] = {**outer_map, **inner_map}
        for axes, prefix in ((outer, "x"), (inner, "r")):
            for number, (old, _) in enumerate(axes):
                mapping[old] = symbol(f"{prefix}{number}")
        self.outer = _renamed(outer, "x")
        self.inner = _renamed(inner, "r")
        if any(old != new for old, new in mapping.items()):
            extents = dict([*self.outer, *self.inner])
            for number in self.order:
                self.stages[number] = [map_exprs(i, mapping, extents) for i in self.stages[number]]

    def _name(self) -> FusedKernel:
        buffers: dict[str, str] = {}
        written = {i.buffer for i in self._all() if isinstance(i, Store)}
        read = {i.buffer for i in self._all() if isinstance(i, Load)}
        roles: dict[str, Role] = {}
        counts: dict[str, int] = {}
        for instruction in self._all():
            if isinstance(instruction, (Load, Store)) and instruction.buffer not in buffers:
                buffer = instruction.buffer
                if buffer in self.scratch:
                    roles[buffer], prefix = "scratch", "tmp"
                elif buffer in written:
                    roles[buffer], prefix = ("inout" if buffer in read or buffer in self.group.bases() else "out"), "out"
                else:
                    roles[buffer], prefix = "in", "in"
                counts[prefix] = counts.get(prefix, -1) + 1
                buffers[buffer] = f"{prefix}{counts[prefix]}"
        numbers: dict[int, int] = {}
        symbols: dict[str, str] = {}
        stages: list[Stage] = []
        for number in self.order:
            body = [_renumbered(i, numbers, buffers, symbols) for i in self.stages[number]]
            stages.append(Stage(bool(self.inner) and number % 2 == 0, tuple(body)))
        ordered = sorted(buffers, key=lambda b: (roles[b] != "in", roles[b] == "scratch"))
        extent = product(e for _, e in self.inner)
        described = tuple(
            KernelBuffer(buffers[b], self.dtype_of(b), roles[b], extent if roles[b] == "scratch" else 0)
            for b in ordered
        )
        sizes = sorted(self._size_symbols(symbols))
        kernel = Kernel(
            tuple(Axis(s.name, e) for s, e in self.outer),
            tuple(Axis(s.name, e) for s, e in self.inner),
            tuple(stages),
            described,
            tuple(sizes),
            self.title,
        )
        arguments = tuple(b for b in ordered if roles[b] != "scratch")
        return FusedKernel(kernel, arguments, tuple(self.dropped), self._in_place(roles))

    def _size_symbols(self, symbols: Mapping[str, str]) -> set[str]:
        axes = {s.name for s, _ in (*self.outer, *self.inner)}
        names = {s.name for i in self._all() for e in exprs_of(i) for s in free_symbols(e)}
        names |= {s.name for _, e in (*self.outer, *self.inner) for s in free_symbols(e)}
        return {n for n in names if n not in axes and n not in symbols}

    def _in_place(self, roles: Mapping[str, Role]) -> tuple[tuple[str, str], ...]:
        """(read buffer, written buffer) pairs that may share memory: each point reads what it alone overwrites, and nothing
        reads it once it is written."""
        reads: dict[str, set[Expr]] = {}
        last_read: dict[str, int] = {}
        stores: dict[str, tuple[Expr, int]] = {}
        for number, instruction in enumerate(i for stage in self.order for i in self.stages[stage]):
            if isinstance(instruction, Load):
                reads.setdefault(instruction.buffer, set()).add(instruction.index)
                last_read[instruction.buffer] = number
            elif isinstance(instruction, Store):
                stores[instruction.buffer] = (instruction.index, number)
        axes = {s for s, _ in (*self.outer, *self.inner)}
        pairs = []
        for read, indices in reads.items():
            if roles[read] != "in" or len(indices) != 1:
                continue
            index = next(iter(indices))
            for written, (target, number) in stores.items():
                if roles[written] != "out" or target != index or number < last_read[read]:
                    continue
                if not axes <= free_symbols(index):
                    continue
                if dtype_info(self.dtype_of(read)).nbytes == dtype_info(self.dtype_of(written)).nbytes:
                    pairs.append((read, written))
        return tuple(pairs)


def _renamed(axes: Axes, prefix: str) -> Axes:
    return tuple((symbol(f"{prefix}{n}"), e) for n, (_, e) in enumerate(axes))


def _content(made: Load | Constant | IndexValue | Compute) -> Hashable:
    """What is equal where the same value is made."""
    match made:
        case Load(_, buffer, index, dtype, mask):
            return "load", buffer, index, dtype, mask
        case Compute(_, op, args, dtype):
            return "compute", op, args, dtype
        case IndexValue(_, expr, dtype):
            return "index", expr, dtype
    return "constant", repr(made.value), made.dtype  # by its text: 0.0 == -0.0, and NaN is not itself


def _numbered(made: Load | Constant | IndexValue | Compute, number: int) -> Load | Constant | IndexValue | Compute:
    match made:  # spelled out: `replace` takes longer than all else here
        case Load(_, buffer, index, dtype, mask):
            return Load(number, buffer, index, dtype, mask)
        case Compute(_, op, args, dtype):
            return Compute(number, op, args, dtype)
    return replace(made, result=number)


def _renumbered(
    instruction: Instruction, numbers: dict[int, int], buffers: Mapping[str, str], symbols: dict[str, str]
) -> Instruction:
    """The instruction with values numbered in order of appearance, buffers and indirect symbols by canonical names."""

    def new(old: int) -> int:
        return numbers.setdefault(old, len(numbers))

    rename = {value_symbol(a): value_symbol(b) for a, b in symbols.items()}
    match instruction:
        case Load(result, buffer, index, dtype, mask):
            where = None if mask is None else numbers[mask]
            return Load(new(result), buffers[buffer], substitute(index, rename), dtype, where)
        case Store(buffer, index, value, mode):
            return Store(buffers[buffer], substitute(index, rename), numbers[value], mode)
        case Compute(result, op, args, dtype):
            operands = tuple([numbers[a] for a in args])
            return Compute(new(result), op, operands, dtype)
        case Reduce(results=results):
            value = numbers[instruction.value]
            return replace(instruction, results=tuple(new(r) for r in results), value=value)
        case Accumulate():
            value = numbers[instruction.value]
            return replace(instruction, result=new(instruction.result), value=value)
        case Indirect(symbol=name, mask=mask):
            symbols[name] = f"i{len(symbols)}"
            where = None if mask is None else numbers[mask]
            return replace(instruction, symbol=symbols[name], value=numbers[instruction.value], mask=where)
        case IndexValue(expr=expr):
            return replace(instruction, result=new(instruction.result), expr=substitute(expr, rename))
    return replace(instruction, result=new(instruction.result))


def _title(group: Group, op_names: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the operators fused, each once."""
    names: dict[str, None] = {}
    for member in group.members:
        for origin in member.loop.origins:
            names[op_names.get(origin, origin)] = None
    return tuple(names)
