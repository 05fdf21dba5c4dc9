"""How folds are spelled in C++: accumulators, their first values, one step, and the clause of an `omp simd` loop.

In: a `Reduce` or the kind of a fold, and texts of values. Out: C++ text. Invariant: a fold of nothing gives the identity of the loop
IR's table.
"""

from __future__ import annotations

from collections.abc import Mapping

from fxloom_codegen_common.text import ATOM, Text
from fxloom_codegen_cpp.dtypes import HIGHEST, LOWEST, ctype
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import PluginError
from fxloom_interfaces.program import Instruction, Reduce


def is_float_sum(instruction: Instruction) -> bool:
    return isinstance(instruction, Reduce) and instruction.kind == "sum" and dtype_info(instruction.dtype).kind == "float"


def accumulators(reduction: Reduce) -> list[tuple[str, str, str]]:
    """(variable, type, identity) of everything that a reduction carries; its results come first."""
    names = [f"v{r}" for r in reduction.results]
    kind = ctype(reduction.dtype)
    if reduction.kind in ("argmax", "argmin"):
        table: Mapping[str, str] = LOWEST if reduction.kind == "argmax" else HIGHEST
        return [(names[0], "i64", "0"), (f"{names[0]}_best", kind, table[reduction.dtype])]
    if reduction.kind == "welford":
        return [(n, "double", "0") for n in names]
    if reduction.kind in ("any", "all"):
        return [(names[0], "int", "0" if reduction.kind == "any" else "1")]
    return [(names[0], kind, identity(reduction.kind, reduction.dtype))]


def identity(kind: str, dtype: str) -> str:
    match kind:
        case "sum" | "xor_sum":
            return "0"
        case "prod":
            return "1"
        case "max" | "logsumexp":
            return LOWEST[dtype]
        case "min":
            return HIGHEST[dtype]
    raise PluginError("cpp", f"no reduction {kind}")


def fold_text(kind: str, into: str, value: Text, dtype: str) -> str:
    match kind:
        case "sum":
            return f"{into} += {value};"
        case "prod":
            return f"{into} *= {value};"
        case "max" | "min":
            return f"{into} = {kind}imum<{ctype(dtype)}>({value}, {into});"
        case "logsumexp":
            return f"{into} = log_add_exp({value}, {into});"
        case "any":
            return f"{into} |= {value.at(ATOM - 1)};"
        case "all":
            return f"{into} &= {value.at(ATOM - 1)};"
        case "xor_sum":
            return f"{into} ^= {value};"
    raise PluginError("cpp", f"no reduction {kind}")


def clause(reduction: Reduce, suffix: str = "") -> str:
    name = f"v{reduction.results[0]}{suffix}"
    is_float = dtype_info(reduction.dtype).kind == "float"
    operators = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
    if reduction.kind in operators:
        return f"reduction({operators[reduction.kind]}:{name})"
    return f"reduction({'nan_' if is_float else ''}{reduction.kind}:{name})"


def wider(dtype: str) -> str:
    """The type in which the blocks of a sum of floats are added."""
    return "long double" if dtype == "float64" else "double"


def running_type(kind: str, dtype: str) -> str:
    """Running float32 sums and products are kept in double, as eager keeps them."""
    return "double" if dtype == "float32" and kind not in ("max", "min") else ctype(dtype)
