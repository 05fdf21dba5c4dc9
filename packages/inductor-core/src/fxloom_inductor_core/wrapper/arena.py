"""Small buffers that only kernels see, at places in one allocation: to make a tensor takes as long as many a small kernel.

In: a program and its code generators. Out: for each such buffer its place. Invariant: buffers that took over one another's memory have
one place, all others places of their own, so that the order of steps doesn't matter; a place is as aligned as torch's allocations are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fxloom_inductor_core.ir.tensors import span
from fxloom_interfaces.codegen import Codegen
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.program import (
    Allocate,
    AllocateNumbers,
    BindSize,
    Call,
    GroupedLaunch,
    Item,
    Launch,
    Program,
    Ref,
    Return,
    Step,
    TorchRef,
    View,
    YieldOutputs,
)

_ALIGNMENT = 64

#: Bytes of a buffer at most, and of all: they are in use for as long as the program runs. On a CPU, and on other devices.
_ON_CPU = 1 << 16, 1 << 20
_ELSEWHERE = 1 << 20, 1 << 24


@dataclass(frozen=True, slots=True)
class Arena:
    """places: buffer -> (device, offset in bytes). sizes: bytes by device."""

    places: Mapping[str, tuple[str, int]]
    sizes: Mapping[str, int]


def plan_arena(program: Program, codegens: Mapping[str, Codegen]) -> Arena:
    """The places of all buffers that kernels take by address and nothing else looks at."""
    first: dict[str, str] = {}  # buffer -> the one whose memory it took over, in the end
    nbytes: dict[str, int | None] = {}
    device: dict[str, str] = {}
    for step in program.steps:
        if isinstance(step, Allocate):
            root = first[step.name] = first.get(step.reuse, step.reuse) if step.reuse is not None else step.name
            if root == step.name:
                elements = span(step.size, step.stride)
                nbytes[root] = elements * dtype_info(step.dtype).nbytes if isinstance(elements, int) else None
                device[root] = step.device
    seen = {first[name] for step in program.steps for name in _seen(step, first) if name in first}
    for root, size in nbytes.items():
        if size is None or size > _limits(device[root])[0] or _arguments(codegens, device[root]) == "tensor":
            seen.add(root)
    for step in program.steps:  # a launch tells by a tensor which device it is for
        for buffers in _launched(step):
            roots = {first.get(buffer): None for buffer in buffers}
            start = next(iter(roots))
            if start is not None and None not in roots and seen.isdisjoint(roots) and _arguments(codegens, device[start]) == "either":
                seen.add(start)
    places: dict[str, tuple[str, int]] = {}
    sizes: dict[str, int] = {}
    for root, size in nbytes.items():
        where = device[root]
        end = sizes.get(where, 0)
        if root in seen or size is None or end + size > _limits(where)[1]:
            continue
        places[root] = where, end
        sizes[where] = end + max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
    return Arena({name: places[root] for name, root in first.items() if root in places}, sizes)


def _limits(device: str) -> tuple[int, int]:
    return _ON_CPU if device == "cpu" else _ELSEWHERE


def _arguments(codegens: Mapping[str, Codegen], device: str) -> str:
    plugin = codegens.get(device.split(":")[0])
    return "tensor" if plugin is None else plugin.capabilities.arguments


def _launched(step: Step) -> list[tuple[str, ...]]:
    match step:
        case Launch(buffers=buffers):
            return [buffers]
        case GroupedLaunch(sets=sets):
            return [tuple(buffer for buffers, _ in sets for buffer in buffers)]
    return []


def _seen(step: Step, known: Mapping[str, Any]) -> Iterator[str]:
    """Buffers of which a step needs a tensor."""
    match step:
        case View(base=base) | Item(base=base):
            yield base
        case BindSize(source=source):
            yield source
        case Call(args=args, kwargs=kwargs):
            yield from _named((*args, *(value for _, value in kwargs)), known)
        case Return(values=values) | YieldOutputs(values=values):
            yield from _named(values, known)
        case Allocate() | AllocateNumbers() | Launch() | GroupedLaunch():
            return


def _named(values: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """Buffers in arguments of a call."""
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, TorchRef):
            yield from (name for name in re.findall(r"\w+", value.text) if name in known)
        elif isinstance(value, (list, tuple)):
            yield from _named(value, known)
        elif isinstance(value, slice):
            yield from _named((value.start, value.stop, value.step), known)
