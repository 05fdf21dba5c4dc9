"""The registry of opcode handlers: one entry per opcode with its declared stack effect and version range.

In: functions of `handlers`, each under `@opcode(...)`. Out: the function that evaluates an instruction, and what the instruction takes from
the stack and leaves on it. Invariant: a name has one handler. This module has no handlers itself; facts about opcodes that are true
without any handler are in `opcode_facts`.

An effect is written as CPython's own documentation does, `container index -- item`. A word `name*` stands for as many
values as the instruction's argument; a function of the instruction gives effects that no text can say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.bytecode import Instruction
from fxloom_dynamo.bytecode.opcode_facts import VERSION

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

#: Python versions that are supported
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
    """Values that `inst` takes and leaves when it does not jump; a break where its opcode has no handler."""
    if inst.opname not in HANDLERS:
        _refuse(inst)
    return HANDLERS[inst.opname].effect(inst)


def handler_of(inst: Instruction) -> Callable[..., Any]:
    """What evaluates `inst`: called with the evaluator, the frame and `inst`. It breaks the graph where the opcode has no handler."""
    known = HANDLERS.get(inst.opname)
    return known.run if known is not None else lambda ev, frame, inst: _refuse(inst)


def _refuse(inst: Instruction) -> NoReturn:
    graph_break("unsupported_opcode", f"{inst.opname} of Python {VERSION[0]}.{VERSION[1]} has no handler")
