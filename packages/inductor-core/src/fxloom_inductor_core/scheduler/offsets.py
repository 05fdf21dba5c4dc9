"""Kernels that differ in nothing but where in a buffer they read or write become one, which takes these offsets as sizes.

In: the kernels of a program, on one device. Out: for those that have many siblings, the kernel that is launched instead and the
values of its further sizes. The steps of an unrolled loop read `x[0]`, `x[1]`, ...: they are compiled once, not once each.
Invariant: only constants that are added to a whole index move; so what is read and written, and in which order, stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fxloom_inductor_core.scheduler.grouping import General
from fxloom_interfaces.expr import Expr, normalize, symbol
from fxloom_interfaces.program import Instruction, Kernel, Load, Stage, Store

#: kernels from which on passing offsets is worth it: a number more to pass with each launch, and for fewer kernels to compile
_MANY = 4

#: plugins take sizes as 32-bit numbers too
_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class _Split:
    """A kernel, and the offsets of its loads and stores in order; None where the offset is none that a size could say."""

    kernel: Kernel
    offsets: tuple[int | None, ...]


def share_offsets(kernels: Mapping[str, Kernel], max_arguments: int) -> dict[str, General]:
    """What to launch in place of some kernels. kernels: by digest. A kernel that has it already takes fewer offsets than it could:
    those that are the same in all siblings stay where they are."""
    families: dict[str, dict[str, _Split]] = {}
    if len(kernels) < _MANY:
        return {}
    for digest, kernel in kernels.items():
        offsets = tuple(_offset(index) for index in _indices(kernel))
        bare = _with_indices(kernel, {n: _without(index) for n, index in enumerate(_indices(kernel)) if offsets[n] is not None})
        families.setdefault(bare.digest(), {})[digest] = _Split(kernel, offsets)
    result: dict[str, General] = {}
    for family in families.values():
        if len(family) >= _MANY:
            result.update(_shared(family, max_arguments))
    return result


def _shared(family: Mapping[str, _Split], max_arguments: int) -> dict[str, General]:
    first = next(iter(family.values())).kernel
    columns = list(zip(*(split.offsets for split in family.values()), strict=True))
    names: dict[tuple[int | None, ...], str] = {}
    for column in columns:
        if len(set(column)) > 1:
            names.setdefault(column, f"o{len(names)}")
    if len(first.arguments) + len(first.sizes) + len(names) > max_arguments:
        return {}
    indices = {
        n: normalize(_without(index) + symbol(names[columns[n]])) for n, index in enumerate(_indices(first)) if columns[n] in names
    }
    made = replace(_with_indices(first, indices), sizes=(*first.sizes, *names.values()))
    passed: list[tuple[Expr, ...]] = [tuple(symbol(size) for size in first.sizes)] * len(family)
    values = [tuple(column[row] or 0 for column in names) for row in range(len(family))]
    return {digest: General(made, (*own, *value)) for digest, own, value in zip(family, passed, values, strict=True)}


def _indices(kernel: Kernel) -> list[Expr]:
    return [i.index for i in kernel.instructions() if isinstance(i, (Load, Store))]


def _offset(index: Expr) -> int | None:
    constant = index if isinstance(index, int) else index.as_coeff_Add()[0]
    return int(constant) if 0 <= constant < _LIMIT else None


def _without(index: Expr) -> Expr:
    return 0 if isinstance(index, int) else normalize(index.as_coeff_Add()[1])


def _with_indices(kernel: Kernel, indices: Mapping[int, Expr]) -> Kernel:
    """The kernel with indices of its loads and stores replaced, by their number."""
    stages: list[Stage] = []
    number = 0
    for stage in kernel.stages:
        body: list[Instruction] = []
        for instruction in stage.body:
            if isinstance(instruction, (Load, Store)):
                if number in indices:
                    instruction = replace(instruction, index=indices[number])
                number += 1
            body.append(instruction)
        stages.append(Stage(stage.inner, tuple(body)))
    return replace(kernel, stages=tuple(stages))
