"""Text of what surrounds operations in a Triton kernel: types, literals, conversions, atoms of index expressions.

In: names of dtypes, Python numbers, expressions of sizes. Out: text of Triton's language.
Invariant: the text means in Triton what torch means by it, also where the two differ: division of negative integers, floats that do not
fit into integers of few bits.
"""

from __future__ import annotations

import math
import re

from fxloom_interfaces.dtypes import dtype_info, is_float
from fxloom_interfaces.expr import Expr, FloorDiv, Mod, bounds, print_expr

_EXTREMES = {"Min": "tl.minimum({0}, {1})", "Max": "tl.maximum({0}, {1})"}
_PLAIN = {**_EXTREMES, "FloorDiv": "({0}) // ({1})", "Mod": "({0}) % ({1})"}
#: Triton's integers divide as C's do, toward zero; numbers that a program reads out of tensors may be negative
_REST = "((({0}) % ({1}) + ({1})) % ({1}))"
_SIGNED = {**_EXTREMES, "FloorDiv": "((({0}) - " + _REST + ") // ({1}))", "Mod": _REST}


#: Through which type floats become integers of few bits, as torch does it: it keeps the low bits of what does not fit, and to LLVM
#: the direct conversion of such a float means nothing
_WRAPPING = {"int8": "tl.int32", "int16": "tl.int32", "uint8": "tl.int64"}


def accumulated(dtype: str) -> str:
    """The dtype in which values of `dtype` are compared and folded."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def type_text(dtype: str) -> str:
    """Triton's name of a dtype."""
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


def literal_text(value: bool | float, dtype: str) -> str:
    """A number of the dtype; integers wrap to its width."""
    if dtype == "bool":
        return "True" if value else "False"
    if not is_float(dtype):
        return repr(_wrapped(int(value), dtype))
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    return repr(float(value))


def _wrapped(value: int, dtype: str) -> int:
    """What an integer of the dtype holds of `value`: its low bits."""
    bits = 8 * dtype_info(dtype).nbytes
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype_info(dtype).kind == "int" and value >> bits - 1 else value


def converted_text(text: str, source: str, target: str) -> str | None:
    """`text` converted; None when there is nothing to do."""
    if source == target:
        return None
    if target == "bool":
        return f"{text} != 0"
    if target in ("float16", "bfloat16") and source not in ("float32", "float16", "bfloat16"):
        text = f"({text}).to(tl.float32)"  # in two steps, as torch does it
    if is_float(source) and target in _WRAPPING:
        text = f"({text}).to({_WRAPPING[target]})"
    return f"{text}.to({type_text(target)})" if re.fullmatch(r"[\w.]+|[\w.]+\(.*\)", text) else f"({text}).to({type_text(target)})"


def identity_text(kind: str, dtype: str) -> str:
    """What a fold of nothing gives."""
    if kind in ("sum", "xor_sum", "any"):
        return "0"
    if kind in ("prod", "all"):
        return "1"
    low = kind == "max"
    if is_float(dtype):
        return 'float("-inf")' if low else 'float("inf")'
    info = dtype_info(dtype)
    if info.kind == "bool":
        return "False" if low else "True"
    bits = 8 * info.nbytes
    if info.kind == "uint":
        return "0" if low else str((1 << bits) - 1)
    return str(-(1 << bits - 1)) if low else str((1 << bits - 1) - 1)


def index_text(expr: Expr) -> str:
    """An index expression or a size."""
    divided = () if isinstance(expr, int) else expr.atoms(FloorDiv, Mod)
    lows = [bounds(part.args[0], {})[0] for part in divided]
    return print_expr(expr, _PLAIN if all(low is not None and low >= 0 for low in lows) else _SIGNED)


def atom_of(expr: Expr) -> str:
    """An index expression as an operand of any operator."""
    return atom(index_text(expr))


def atom(text: str) -> str:
    """`text` in parentheses unless it is a word."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"
