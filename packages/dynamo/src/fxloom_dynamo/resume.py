"""Continuation functions: the rest of a function from one of its instructions on.

In: a code object, the index of the instruction to go on with, which stack slots are NULL, and the locals handed over.
Out: a code object whose parameters are the stack (without NULLs) and the locals, whose free variables are all cells of
the original, and which jumps to the instruction. The whole body and its exception regions stay, so loops and handlers
work. A continuation of a continuation is made from the original function: there are at most as many as instructions.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass

from fxloom_dynamo.bytecode import Body, Instruction, assemble, disassemble, emit

#: parameters of continuations that are values of the stack
STACK_PREFIX = "__stack_"


@dataclass(frozen=True, slots=True)
class Continuation:
    """code: of the function to make. closure: names of the cells to hand over, in order.

    origin: the function's own code. shift: index in `code` minus index in `origin` of the same instruction.
    start: index in `code` of the first instruction of the body; what is before it only sets the stack up.
    """

    code: types.CodeType
    closure: tuple[str, ...]
    origin: types.CodeType
    shift: int
    start: int


_made: dict[tuple[int, int, tuple[bool, ...], tuple[str, ...]], Continuation] = {}
_by_code: dict[int, Continuation] = {}
_counts: dict[int, int] = {}
_keep: list[types.CodeType] = []


def continuation_of(code: types.CodeType) -> Continuation | None:
    """The continuation whose code this is."""
    return _by_code.get(id(code))


def origin_of(code: types.CodeType) -> types.CodeType:
    known = _by_code.get(id(code))
    return code if known is None else known.origin


def continuation_count(code: types.CodeType) -> int:
    """Continuations made so far of the function that `code` belongs to."""
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
) -> Continuation:
    """The continuation at instruction `index` of `code`. nulls: per stack slot, deepest first, whether it is NULL."""
    known = _by_code.get(id(code))
    origin, at = (code, index) if known is None else (known.origin, index - known.shift)
    key = (id(origin), at, nulls, names)
    found = _made.get(key)
    if found is not None:
        return found
    instructions = disassemble(origin)
    old = instructions.instructions
    start = body_start(old)
    cells = tuple(dict.fromkeys((*origin.co_cellvars, *origin.co_freevars)))
    stack_names = [f"{STACK_PREFIX}{number}" for number, null in enumerate(nulls) if not null]
    head = emit.prologue(freevars=len(cells))
    numbers = iter(stack_names)
    for null in nulls:
        if null:
            head.append(Instruction("PUSH_NULL"))
        else:
            name = next(numbers)
            head += [*emit.load_fast(name), *emit.delete_fast(name)]  # the stack alone holds it
    head += emit.jump(old[at])
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
    found = Continuation(made, cells, origin, len(head) - start, len(head))
    _check(found, old, start)
    _made[key] = found
    _by_code[id(made)] = found
    _counts[id(origin)] = _counts.get(id(origin), 0) + 1
    _keep.extend((made, origin))
    return found


def first_parameter(origin: types.CodeType) -> str | None:
    """The parameter that zero-argument `super()` looks for in the frame's first slot."""
    if "__class__" in origin.co_freevars and origin.co_argcount and origin.co_varnames[0] not in origin.co_cellvars:
        return origin.co_varnames[0]
    return None


def _check(made: Continuation, old: list[Instruction], start: int) -> None:
    from fxloom_interfaces.errors import InternalError

    new = disassemble(made.code).instructions
    for index in range(start, len(old)):
        at = index + made.shift
        if at >= len(new) or (new[at].opname != old[index].opname and "JUMP" not in old[index].opname):
            raise InternalError("dynamo.resume", f"instruction {index} of {made.origin.co_qualname} moved")
