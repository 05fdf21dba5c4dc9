"""Grouped launches: independent kernels with the same body, over other sizes and buffers, run at once: elementwise ones and plain folds,
as the norms of all gradients. Likewise copies of numbers (tensors without axes) from the CPU to one device.

In: groups in a runnable order, with their kernels. Out: the same groups as batches in a runnable order; those of a batch don't depend
on one another. An optimizer's step is a batch or two, however many parameters it has.
Invariant: a group may come earlier than it stood, never later, and only where what it writes is small or lives to the program's end:
so no more memory is in use, but for a little.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import sympy

from fxloom_inductor_core.ir.graph import NUMBER_COPY, Operand
from fxloom_inductor_core.scheduler.groups import Group
from fxloom_inductor_core.scheduler.kernels import FusedKernel
from fxloom_inductor_core.scheduler.spaces import linear_parts
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.expr import Expr, normalize, substitute, symbol
from fxloom_interfaces.ops import OPS
from fxloom_interfaces.program import Axis, Compute, Constant, Instruction, Kernel, Load, Reduce, Stage, Store

#: kinds of `Reduce` whose result doesn't depend on places or on how many elements there are
_FOLDS = frozenset({"sum", "prod", "max", "min", "any", "all"})
#: of `Compute`, beside those of OPS: all but random ones
_FURTHER_OPS = frozenset({"where", "to_dtype", "bitcast"})


@dataclass(frozen=True, slots=True)
class General:
    """A kernel whose extents, strides and offsets are sizes, and their values for the kernel that it was made from."""

    kernel: Kernel
    sizes: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups that run at once.

    general: for each its kernel with numbers as sizes; these kernels are equal. None for a batch of one, and for calls.
    """

    groups: tuple[Group, ...]
    fused: tuple[FusedKernel | None, ...]
    general: tuple[General, ...] | None = None


def generalize(kernel: Kernel) -> General | None:
    """`kernel` with its numbers as sizes; None where it is neither elementwise nor a plain fold, or an index is not linear in its axes."""
    if any(buffer.role == "scratch" for buffer in kernel.buffers):
        return None
    axes = frozenset(symbol(axis.name) for axis in (*kernel.outer, *kernel.inner))
    sizes: dict[tuple[str, Expr], sympy.Symbol] = {}

    def size(value: Expr, kind: str) -> sympy.Symbol:
        return sizes.setdefault((kind, value), symbol(f"n{len(sizes)}"))

    outer = tuple(Axis(axis.name, size(axis.size, "step")) for axis in kernel.outer)
    inner = tuple(Axis(axis.name, size(axis.size, "step")) for axis in kernel.inner)
    stages: list[Stage] = []
    for stage in kernel.stages:
        body: list[Instruction] = []
        for instruction in stage.body:
            match instruction:
                case Load(index=index) | Store(index=index, mode=None):
                    parts = _parts(index, axes)
                    if parts is None:
                        return None
                    steps, offset = parts
                    made: Expr = 0 if offset == 0 else size(offset, "offset")
                    for axis, step in steps:
                        made = made + axis * (step if step == 1 else size(step, "step"))
                    body.append(replace(instruction, index=normalize(made)))
                case Constant():
                    body.append(instruction)
                case Compute(op=op) if op in OPS or op in _FURTHER_OPS:
                    body.append(instruction)
                case Reduce(kind=kind) if kind in _FOLDS:
                    body.append(instruction)
                case _:
                    return None
        stages.append(Stage(stage.inner, tuple(body)))
    names = tuple(s.name for s in sizes.values())
    made_kernel = replace(kernel, outer=outer, inner=inner, stages=tuple(stages), sizes=names)
    return General(made_kernel, tuple(value for _, value in sizes))


def written_over(kernel: Kernel, pairs: Mapping[int, int]) -> Kernel:
    """`kernel` with one argument, read and written, for each two that are the same memory. pairs: places of what is read -> written."""
    arguments = kernel.arguments
    names = {arguments[written].name: arguments[read].name for read, written in pairs.items()}
    both = {arguments[read].name for read in pairs}
    buffers = tuple(replace(b, role="inout") if b.name in both else b for b in kernel.buffers if b.name not in names)

    def renamed(instruction: Instruction) -> Instruction:
        if isinstance(instruction, (Load, Store)) and instruction.buffer in names:
            return replace(instruction, buffer=names[instruction.buffer])
        return instruction

    stages = tuple(replace(stage, body=tuple(map(renamed, stage.body))) for stage in kernel.stages)
    return replace(kernel, buffers=buffers, stages=stages)


@lru_cache(maxsize=1 << 12)
def _parts(index: Expr, axes: frozenset[sympy.Symbol]) -> tuple[tuple[tuple[sympy.Symbol, Expr], ...], Expr] | None:
    """(axes with their strides, offset) of an index that is linear in the axes."""
    strides, tangled = linear_parts(index, axes)
    if tangled:
        return None
    offset = normalize(substitute(index, dict.fromkeys(axes, 0)))
    if not isinstance(offset, int) and offset.free_symbols & axes:
        return None
    return tuple(sorted(strides.items(), key=lambda item: item[0].name)), offset


#: device; digest of the general kernel, or name of the call
_Key: TypeAlias = "tuple[str, str]"


def batches(
    groups: Sequence[Group],
    fused: Sequence[FusedKernel | None],
    codegens: Mapping[str, Codegen],
    may_come_early: Callable[[FusedKernel], bool],
    outputs: Container[str] = (),
) -> list[Batch]:
    """The groups as batches. may_come_early: whether a kernel adds little to the memory in use where it runs early."""
    general = [None if kernel is None else _general(group, kernel, codegens) for group, kernel in zip(groups, fused, strict=True)]
    keys: list[_Key | None] = [
        _moves_number(group, outputs) if made is None else (group.device, made.kernel.digest())
        for group, made in zip(groups, general, strict=True)
    ]
    counts: dict[_Key, int] = {}
    for key in keys:
        if key is not None:
            counts[key] = counts.get(key, 0) + 1
    places = {group.number: place for place, group in enumerate(groups)}
    waiting = [sum(1 for number in group.before if number in places) for group in groups]
    ready = [place for place, count in enumerate(waiting) if count == 0]
    peers: dict[_Key, dict[int, None]] = {}
    result: list[Batch] = []
    done: set[int] = set()

    def enter(place: int) -> None:
        key = keys[place]
        if key is not None and counts[key] > 1:
            peers.setdefault(key, {})[place] = None

    heapq.heapify(ready)
    for place in ready:
        enter(place)
    while ready:
        first = heapq.heappop(ready)
        if first in done:
            continue
        members = [first]
        key = keys[first]
        if key is not None and counts[key] > 1:
            del peers[key][first]
            early = sorted(place for place in peers[key] if _fits(fused[place], may_come_early))
            members += early
            for place in early:
                del peers[key][place]
        done.update(members)
        made = tuple(one for place in members if (one := general[place]) is not None)
        together = [members]
        if 1 < len(made) < _least(groups[first], codegens):
            made, together = (), [[place] for place in members]
        for batch in together:
            result.append(
                Batch(tuple(groups[place] for place in batch), tuple(fused[place] for place in batch), made if len(made) > 1 else None)
            )
        for member in members:
            for number in groups[member].after:
                later = places.get(number)
                if later is None:
                    continue
                waiting[later] -= 1
                if waiting[later] == 0:
                    heapq.heappush(ready, later)
                    enter(later)
    return result


def _least(group: Group, codegens: Mapping[str, Codegen]) -> int:
    return codegens[group.device.split(":")[0]].capabilities.least_sets


def _fits(kernel: FusedKernel | None, may_come_early: Callable[[FusedKernel], bool]) -> bool:
    return kernel is None or may_come_early(kernel)


def _moves_number(group: Group, outputs: Container[str]) -> _Key | None:
    """A key for copies of numbers to one device; None for anything else, and for what leaves the program, which has its own memory."""
    call = group.call
    if call is None or call.target != NUMBER_COPY or len(call.args) != 2 or call.kwargs or call.binds:
        return None
    operand, device = call.args
    if not isinstance(operand, Operand) or operand.layout.size != () or operand.layout.device != "cpu" or call.results[0] in outputs:
        return None
    return str(device), NUMBER_COPY


def _general(group: Group, kernel: FusedKernel, codegens: Mapping[str, Codegen]) -> General | None:
    capabilities = codegens[group.device.split(":")[0]].capabilities
    if "grouped" not in capabilities.fusions:
        return None
    made = generalize(kernel.kernel)
    if made is None or len(made.kernel.arguments) + len(made.sizes) > capabilities.max_arguments:
        return None
    return made
