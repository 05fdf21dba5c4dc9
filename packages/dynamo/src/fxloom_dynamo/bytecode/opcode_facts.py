"""Facts about the running interpreter's opcodes, and how their names are normalised.

Normalised when `disassemble` reads, chosen again when `assemble` writes:
- 3.11's `POP_JUMP_FORWARD_IF_X` and `POP_JUMP_BACKWARD_IF_X` read as `POP_JUMP_IF_X`;
- 3.13's pairs (`LOAD_FAST_LOAD_FAST`, ...) read as two instructions;
- `JUMP_FORWARD` and `JUMP_BACKWARD` are written by the direction of their target; `JUMP` may be used for either.

Source: `Lib/opcode.py`, `Lib/dis.py` and `Python/bytecodes.c` (`ceval.c` in 3.11) of CPython 3.11.7, 3.12.1, 3.13.0.
"""

from __future__ import annotations

import dis
import opcode
import sys

VERSION = sys.version_info[:2]
if not (3, 11) <= VERSION <= (3, 13):
    raise ImportError(f"fxloom-dynamo supports CPython 3.11 to 3.13; this is {sys.version.split()[0]}")

OPMAP: dict[str, int] = {name: code for name, code in dis.opmap.items() if code < 256}

#: Names that 3.12's `dis.opmap` lists although the compiler resolves them before a code object is made.
PSEUDO = frozenset(
    {"JUMP", "JUMP_NO_INTERRUPT", "LOAD_METHOD", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR"}
    | {"SETUP_FINALLY", "SETUP_CLEANUP", "SETUP_WITH", "POP_BLOCK", "STORE_FAST_MAYBE_NULL"}
) - set(OPMAP)


def _cache_entries() -> dict[str, int]:
    table = opcode._inline_cache_entries  # type: ignore[attr-defined]  # not in typeshed; dict in 3.13, list before
    if isinstance(table, dict):
        return dict(table)
    return {dis.opname[code]: count for code, count in enumerate(table) if count}


CACHE_ENTRIES = _cache_entries()

HAS_CONST = frozenset(dis.opname[code] for code in opcode.hasconst if code < 256)
HAS_NAME = frozenset(dis.opname[code] for code in opcode.hasname if code < 256)
HAS_VARIABLE = frozenset(dis.opname[code] for code in (*opcode.haslocal, *opcode.hasfree) if code < 256)
IS_JUMP = frozenset(dis.opname[code] for code in opcode.hasjrel if code < 256)

#: 3.13 super-instructions: the two they stand for.
PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}

COMPARE_OPERATORS = ("<", "<=", "==", "!=", ">", ">=")
#: Outcomes that a comparison accepts, as the specialised instructions of 3.12 read them: 1 unordered, 2 <, 4 >, 8 ==.
_COMPARE_MASK = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
_COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4, (3, 13): 5}[VERSION]

BINARY_OPERATORS: tuple[str, ...] = tuple(text for _, text in opcode._nb_ops)  # type: ignore[attr-defined]  # not in typeshed

#: LOAD_ATTR's low bit says that a method is loaded.
LOAD_ATTR_HAS_METHOD_BIT = VERSION >= (3, 12)

#: From 3.13 on these take nothing but True and False, unchecked; TO_BOOL or a comparison's low bit stands before them.
NEEDS_BOOL = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"} if VERSION >= (3, 13) else ())

#: 3.13's END_FOR pops one value and a POP_TOP follows; 3.12's pops both.
POPS_AFTER_END_FOR = VERSION >= (3, 13)

#: a classmethod around a descriptor binds that to the class (gone in 3.13)
WRAPPED_DESCRIPTORS_BIND = VERSION < (3, 13)

_INVERSE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}
CONDITIONAL_JUMPS = frozenset(_INVERSE)

#: Control never falls through to the next instruction.
NO_FALL_THROUGH = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP", "JUMP_FORWARD", "JUMP_BACKWARD"}
    | {"JUMP_BACKWARD_NO_INTERRUPT", "JUMP_NO_INTERRUPT", "INTERPRETER_EXIT"}
)

#: Control leaves the frame, or goes to a handler of its.
RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})

#: A local variable has to be bound, or is looked at: code before them must keep it.
READS_LOCAL = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})


def normalize_name(opname: str) -> str:
    """The name under which an instruction of the running version is read."""
    if opname.startswith("POP_JUMP_"):
        return opname.replace("FORWARD_", "").replace("BACKWARD_", "")
    return opname


def directed_name(opname: str, forward: bool) -> str:
    """The name of the real opcode for a jump in the given direction. KeyError from OPMAP follows if there is none."""
    if opname in ("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD"):
        return "JUMP_FORWARD" if forward else "JUMP_BACKWARD"
    if opname == "JUMP_BACKWARD_NO_INTERRUPT" and forward:
        return "JUMP_FORWARD"
    if opname in CONDITIONAL_JUMPS and VERSION == (3, 11):
        return opname.replace("POP_JUMP_", "POP_JUMP_FORWARD_" if forward else "POP_JUMP_BACKWARD_")
    return opname


def inverse_jump(opname: str) -> str:
    """The conditional jump taken exactly when `opname` is not."""
    return _INVERSE[opname]


def compare_operator(arg: int) -> str:
    """The operator's text of a COMPARE_OP argument."""
    return COMPARE_OPERATORS[arg >> _COMPARE_SHIFT]


def compare_arg(operator: str) -> int:
    """The COMPARE_OP argument of an operator, result not coerced to bool."""
    arg = COMPARE_OPERATORS.index(operator) << _COMPARE_SHIFT
    return arg if VERSION == (3, 11) else arg | _COMPARE_MASK[operator]


NORMALIZED_OPNAMES: frozenset[str] = frozenset(
    normalize_name(name)
    for name in OPMAP
    if name not in PSEUDO
    and name not in PAIRS
    and name not in ("CACHE", "EXTENDED_ARG", "RESERVED")
    and not name.startswith("INSTRUMENTED_")
)
