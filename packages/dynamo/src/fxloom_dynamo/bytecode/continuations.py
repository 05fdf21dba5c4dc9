"""Continuation functions: the rest of a function from one of its instructions on.

In: a code object, the index of the instruction to go on with, which stack slots are NULL, and the locals handed over.
Out: a code object whose parameters are the stack (without NULLs) and the locals, whose free variables are all cells of
the original, and which jumps to the instruction. The whole body and its exception regions stay, so loops and handlers
work. A continuation of a continuation is made from the original function: there are at most as many as instructions.

Invariant: what is known of a continuation lives as long as its code, which the compiled code before it holds.
"""

from __future__ import annotations

import inspect
import types
import weakref
from dataclasses import dataclass
from typing import Any

from fxloom_dynamo.bytecode import Body, Instruction, assemble, disassemble, snippets

#: parameters of continuations that are values of the stack
STACK_PREFIX = "__stack_"


@dataclass(frozen=True, slots=True)
class Continuation:
    """closure: names of the cells to hand over, in order.

    origin: the function's own code. shift: index in the continuation minus index in `origin` of the same instruction.
    start: index in the continuation of the first instruction of the body; what is before it only sets the stack up.
    """

    closure: tuple[str, ...]
    origin: types.CodeType
    shift: int
    start: int


_Key = tuple[int, int, tuple[bool, ...], tuple[str, ...]]
_made: dict[_Key, weakref.ref[types.CodeType]] = {}
_by_code: dict[int, Continuation] = {}
_counts: dict[int, int] = {}


def origin_of(code: types.CodeType) -> types.CodeType:
    known = _by_code.get(id(code))
    return code if known is None else known.origin


def continuation_count(code: types.CodeType) -> int:
    """Continuations that there are of the function that `code` belongs to."""
    return _counts.get(id(origin_of(code)), 0)


def body_start(instructions: list[Instruction]) -> int:
    """Index after RESUME, where a function's own instructions begin."""
    for index, inst in enumerate(instructions):
        if inst.opname == "RESUME":
            return index + 1
    return 0


def first_own(code: types.CodeType, instructions: list[Instruction]) -> int:
    """Index of the first instruction of `code` (its `instructions`) that is the program's."""
    known = _by_code.get(id(code))
    return body_start(instructions) if known is None else known.start


def make_continuation(
    code: types.CodeType, index: int, nulls: tuple[bool, ...], names: tuple[str, ...]
) -> tuple[types.CodeType, Continuation]:
    """The continuation at instruction `index` of `code`. nulls: per stack slot, deepest first, whether it is NULL."""
    known = _by_code.get(id(code))
    origin, at = (code, index) if known is None else (known.origin, index - known.shift)
    key = (id(origin), at, nulls, names)
    reference = _made.get(key)
    made = None if reference is None else reference()
    if made is not None:
        return made, _by_code[id(made)]
    instructions = disassemble(origin)
    old = instructions.instructions
    start = body_start(old)
    cells = tuple(dict.fromkeys((*origin.co_cellvars, *origin.co_freevars)))
    stack_names = [f"{STACK_PREFIX}{number}" for number, null in enumerate(nulls) if not null]
    head = snippets.prologue(freevars=len(cells))
    numbers = iter(stack_names)
    for null in nulls:
        if null:
            head.append(Instruction("PUSH_NULL"))
        else:
            name = next(numbers)
            head += [*snippets.load_fast(name), *snippets.delete_fast(name)]  # the stack alone holds it
    head += snippets.jump(old[at])
    body = Body([*head, *old[start:]], instructions.regions)
    first = first_parameter(origin)
    parameters = [*stack_names, *names]
    if first is not None and first in parameters:
        parameters.remove(first)
        parameters.insert(0, first)
    others = [name for name in origin.co_varnames if name not in parameters and name not in cells]
    flags = origin.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    made = assemble(
        body, origin, name=origin.co_name, qualname=f"resume_in_{origin.co_name}",
        argcount=len(parameters), posonlyargcount=0, kwonlyargcount=0,
        flags=flags | (inspect.CO_NESTED if cells else 0), varnames=[*parameters, *others], cellvars=(), freevars=cells,
    )  # fmt: skip
    found = Continuation(cells, origin, len(head) - start, len(head))
    _check(made, found, old, start)
    _remember(key, made, found)
    return made, found


def _remember(key: _Key, made: types.CodeType, found: Continuation) -> None:
    ident, origin = id(made), id(found.origin)

    def forget(_: Any) -> None:
        del _by_code[ident]
        if _made.get(key) is reference:
            del _made[key]
        _counts[origin] -= 1
        if not _counts[origin]:
            del _counts[origin]

    reference = weakref.ref(made, forget)
    _made[key] = reference
    _by_code[ident] = found
    _counts[origin] = _counts.get(origin, 0) + 1


def first_parameter(origin: types.CodeType) -> str | None:
    """The parameter that zero-argument `super()` looks for in the frame's first slot."""
    if "__class__" in origin.co_freevars and origin.co_argcount and origin.co_varnames[0] not in origin.co_cellvars:
        return origin.co_varnames[0]
    return None


def _check(code: types.CodeType, made: Continuation, old: list[Instruction], start: int) -> None:
    from fxloom_interfaces.errors import InternalError

    new = disassemble(code).instructions
    for index in range(start, len(old)):
        at = index + made.shift
        if at >= len(new) or (new[at].opname != old[index].opname and "JUMP" not in old[index].opname):
            raise InternalError("dynamo.resume", f"instruction {index} of {made.origin.co_qualname} moved")
