"""The table of opcode handlers: one entry per opcode with its declared stack effect and version range.

An effect is written as CPython's own documentation does, `container index -- item`. A word `name*` stands for as many
values as the instruction's argument; a function of the instruction gives effects that no text can say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxloom_dynamo.bytecode import Instruction

Version = tuple[int, int]
EffectFunction = Callable[[Instruction], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Opcode:
    """name, handler, values taken and left (when it does not jump), first and last Python version that has it."""

    name: str
    run: Callable[..., Any]
    effect: EffectFunction
    first: Version
    last: Version


HANDLERS: dict[str, Opcode] = {}

FIRST: Version = (3, 11)
LAST: Version = (3, 13)


def opcode(
    name: str, effect: str | EffectFunction, *, first: Version = FIRST, last: Version = LAST
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the handler of an opcode. A second one for the same name is an error."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        if name in HANDLERS:
            raise ValueError(f"two handlers for {name}: {HANDLERS[name].run.__module__} and {run.__module__}")
        HANDLERS[name] = Opcode(name, run, parse_effect(effect) if isinstance(effect, str) else effect, first, last)
        return run

    return register


def parse_effect(text: str) -> EffectFunction:
    """`a b* -- c` as a function of the instruction to (taken, left)."""
    before, _, after = text.partition("--")
    taken, left = before.split(), after.split()
    fixed = (sum(not word.endswith("*") for word in taken), sum(not word.endswith("*") for word in left))
    variable = (sum(word.endswith("*") for word in taken), sum(word.endswith("*") for word in left))
    if not any(variable):
        return lambda inst: fixed
    return lambda inst: (fixed[0] + variable[0] * (inst.arg or 0), fixed[1] + variable[1] * (inst.arg or 0))


def stack_effect(inst: Instruction) -> tuple[int, int]:
    """Values that `inst` takes and leaves when it does not jump."""
    return HANDLERS[inst.opname].effect(inst)
