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

#: Bytes of a buffer at most, and of all on a device: they are in use for as long as the program runs.
_SMALL = 1 << 16
_ALL = 1 << 20


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
    places: dict[str, tuple[str, int]] = {}
    sizes: dict[str, int] = {}
    for root, size in nbytes.items():
        where = device[root]
        end = sizes.get(where, 0)
        if root in seen or size is None or size > _SMALL or end + size > _ALL or not _takes_addresses(codegens, where):
            continue
        places[root] = where, end
        sizes[where] = end + max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
    return Arena({name: places[root] for name, root in first.items() if root in places}, sizes)


def _takes_addresses(codegens: Mapping[str, Codegen], device: str) -> bool:
    plugin = codegens.get(device.split(":")[0])
    return plugin is not None and plugin.capabilities.arguments == "address"


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
