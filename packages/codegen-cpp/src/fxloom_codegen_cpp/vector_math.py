"""Functions that are called in vectors: which of the loop IR's ops they are, and the C++ that defines those that a text calls.

In: the text of kernels, in which `fx_log1p_f32(x)` stands for an op. Out: the definitions of the functions that it calls, by SLEEF
where torch brings it, by the C library elsewhere. Invariant: a function's result does not depend on how a loop was vectorized.
"""

from __future__ import annotations

import ctypes
import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

#: op -> (number of operands, the bound of the error in the name of SLEEF's function). Those that eager calls; `asinh` and `acosh`
#: overflow early in SLEEF, and eager calls the C library's.
FUNCTIONS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("sin", "cos", "tan", "atanh", "lgamma"), (1, "_u10")),
    **dict.fromkeys(("atan2", "pow"), (2, "_u10")),
    **dict.fromkeys(("fmod", "nextafter"), (2, "")),
}
#: float32 has functions of its own for the others (prelude.h).
FUNCTIONS_F64: dict[str, tuple[int, str]] = {
    **FUNCTIONS,
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "asin", "acos", "atan"), (1, "_u10")),
    **dict.fromkeys(("sinh", "cosh", "tanh", "erf"), (1, "_u10")),
    "erfc": (1, "_u15"),
}
_TABLES = {"float32": ("f32", FUNCTIONS), "float64": ("f64", FUNCTIONS_F64)}

_CTYPES = {"f32": "float", "f64": "double"}
_CALLED = re.compile(r"\bfx_(\w+)_(f32|f64)\(")


def function_name(op: str, dtype: str) -> str | None:
    """The function for an op on float32 or float64; None where there is none."""
    short, table = _TABLES.get(dtype, ("", {}))
    return f"fx_{op}_{short}" if op in table else None


@dataclass(frozen=True, slots=True)
class VectorLibrary:
    """Where the functions are. link_flags: what the linker is told; the library is in the process already, torch brought it."""

    path: Path

    @property
    def link_flags(self) -> tuple[str, ...]:
        return (f"-L{self.path.parent}", f"-l:{self.path.name}")


@lru_cache(maxsize=1)
def vector_library() -> VectorLibrary | None:
    """torch's library, where it exports SLEEF's functions and this processor's vector ABI is known here."""
    spec = find_spec("torch")
    if platform.machine().lower() not in ("x86_64", "amd64") or spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "lib" / "libtorch_cpu.so"
    try:
        exports = hasattr(ctypes.CDLL(str(path)), "Sleef_log1pf8_u10")
    except OSError:
        return None
    return VectorLibrary(path) if exports else None


@lru_cache(maxsize=1)
def _header() -> str:
    return (files("fxloom_codegen_cpp") / "vector_math.h").read_text()


def definitions(text: str, library: VectorLibrary | None) -> str:
    """C++ that defines the functions that `text` calls; empty where it calls none."""
    called = set(_CALLED.findall(text))
    remainders = sorted(short for op, short in called if op == "remainder")
    functions = sorted(called - {("remainder", short) for short in remainders} | {("fmod", short) for short in remainders})
    if not functions:
        return ""
    lines = [] if library is None else [_header()]
    for op, short in functions:
        operands, bound = FUNCTIONS_F64[op]
        own = f"FX_FUNCTION{operands}({op}, {short}, {op}, {bound})"
        lines.append(own if library is not None else _by_the_c_library(op, short))
    lines += [
        f"FXLOOM_INLINE {_CTYPES[short]} fx_remainder_{short}({_CTYPES[short]} a, {_CTYPES[short]} b) "
        f"{{ return remainder_of(fx_fmod_{short}(a, b), b); }}"
        for short in remainders
    ]
    return "\n".join(lines)


def _by_the_c_library(op: str, short: str) -> str:
    ctype, suffix = _CTYPES[short], "f" if short == "f32" else ""
    names = ("x", "y")[: FUNCTIONS_F64[op][0]]
    parameters = ", ".join(f"{ctype} {name}" for name in names)
    return f"FXLOOM_INLINE {ctype} fx_{op}_{short}({parameters}) {{ return __builtin_{op}{suffix}({', '.join(names)}); }}"
