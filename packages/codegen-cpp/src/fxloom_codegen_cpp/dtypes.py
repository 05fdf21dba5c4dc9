"""How element types and constants of the loop IR are written in C++.

In: names of dtypes, Python numbers. Out: C++ text.
"""

from __future__ import annotations

import math
import struct

from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import PluginError

#: Type of values.
CTYPES: dict[str, str] = {
    "bool": "bool",
    "uint8": "unsigned char",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
    "float16": "u16",
    "bfloat16": "u16",
    "float32": "float",
    "float64": "double",
}


#: dtype -> functions of the prelude from its 16 bits to a float, and back. GCC makes no vectors of conversions of `_Float16`.
HALVES: dict[str, tuple[str, str]] = {"float16": ("f16_to_f32", "f32_to_f16"), "bfloat16": ("bf16_to_f32", "f32_to_bf16")}


def memory_type(dtype: str) -> str:
    """The type in memory. A bool lies there as a byte of 0 or 1; GCC 12 makes no vectors of loads of type bool."""
    return "unsigned char" if dtype == "bool" else ctype(dtype)


LOWEST: dict[str, str] = {
    "float32": "-__builtin_inff()",
    "float64": "-__builtin_inf()",
    "uint8": "0",
    "int8": "-128",
    "int16": "-32768",
    "int32": "(-2147483647 - 1)",
    "int64": "(-9223372036854775807LL - 1)",
    "bool": "false",
}

HIGHEST: dict[str, str] = {
    "float32": "__builtin_inff()",
    "float64": "__builtin_inf()",
    "uint8": "255",
    "int8": "127",
    "int16": "32767",
    "int32": "2147483647",
    "int64": "9223372036854775807LL",
    "bool": "true",
}


def ctype(dtype: str) -> str:
    """The C++ type of a dtype; PluginError for one that this target lacks."""
    try:
        return CTYPES[dtype]
    except KeyError:
        raise PluginError("cpp", f"no C++ type for dtype {dtype}; it has {', '.join(CTYPES)}") from None


def literal(value: bool | float, dtype: str) -> str:
    """A constant of `dtype`, exactly as torch would round it."""
    kind = dtype_info(dtype).kind
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("int", "uint"):
        return _integer(int(value), dtype)
    if dtype == "float64":
        return _special(value, "", "") or _decimal(float(value), "")
    if dtype == "float32":
        return _special(value, "f", "") or _decimal(_as_float32(float(value)), "f")
    return f"{HALVES[dtype][1]}({literal(value, 'float32')})"


def _integer(value: int, dtype: str) -> str:
    if value == -(1 << 63):
        return LOWEST["int64"]
    suffix = "LL" if dtype == "int64" and abs(value) >= 1 << 31 else ""
    return f"{value}{suffix}"


def _special(value: float, suffix: str, sign: str) -> str:
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return sign


def _decimal(value: float, suffix: str) -> str:
    text = repr(value) if not suffix else _shortest_float32(value)
    return f"{text if any(c in text for c in '.en') else text + '.0'}{suffix}"


def _as_float32(value: float) -> float:
    if abs(value) > 3.4028235677973366e38:
        return math.copysign(math.inf, value)
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _shortest_float32(value: float) -> str:
    if math.isinf(value):
        return "-__builtin_inff()" if value < 0 else "__builtin_inff()"
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if _as_float32(float(text)) == value:
            break
    return text
