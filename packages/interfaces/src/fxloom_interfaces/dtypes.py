"""Element types by name, and the table of what each is. Lowerings, scheduler and code generators read it.

The loop IR speaks of dtypes as torch's attribute names (`"float32"`), so that kernels can be hashed, pickled, printed and read by
a plugin that never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fxloom_interfaces.errors import IRError

if TYPE_CHECKING:
    import torch

Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """What a dtype is: nbytes per element; `short` as printed in comments (`f32`)."""

    name: str
    kind: Kind
    nbytes: int
    short: str


DTYPES: dict[str, DTypeInfo] = {
    info.name: info
    for info in (
        DTypeInfo("bool", "bool", 1, "b8"),
        DTypeInfo("uint8", "uint", 1, "u8"),
        DTypeInfo("uint16", "uint", 2, "u16"),
        DTypeInfo("uint32", "uint", 4, "u32"),
        DTypeInfo("uint64", "uint", 8, "u64"),
        DTypeInfo("int8", "int", 1, "i8"),
        DTypeInfo("int16", "int", 2, "i16"),
        DTypeInfo("int32", "int", 4, "i32"),
        DTypeInfo("int64", "int", 8, "i64"),
        DTypeInfo("float8_e4m3fn", "float", 1, "f8e4m3fn"),
        DTypeInfo("float8_e5m2", "float", 1, "f8e5m2"),
        DTypeInfo("float8_e4m3fnuz", "float", 1, "f8e4m3fnuz"),
        DTypeInfo("float8_e5m2fnuz", "float", 1, "f8e5m2fnuz"),
        DTypeInfo("float8_e8m0fnu", "float", 1, "f8e8m0fnu"),
        DTypeInfo("float16", "float", 2, "f16"),
        DTypeInfo("bfloat16", "float", 2, "bf16"),
        DTypeInfo("float32", "float", 4, "f32"),
        DTypeInfo("float64", "float", 8, "f64"),
        DTypeInfo("complex32", "complex", 4, "c32"),
        DTypeInfo("complex64", "complex", 8, "c64"),
        DTypeInfo("complex128", "complex", 16, "c128"),
    )
}


def dtype_info(name: str) -> DTypeInfo:
    """The entry of `name`; IRError for an unknown dtype."""
    try:
        return DTYPES[name]
    except KeyError:
        raise IRError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> `"float32"`."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """`"float32"` -> `torch.float32`."""
    import torch

    return getattr(torch, dtype_info(name).name)  # type: ignore[no-any-return]  # the table holds attribute names


def is_float(name: str) -> bool:
    return dtype_info(name).kind == "float"


def is_integer(name: str) -> bool:
    """True for signed and unsigned integers, not for bool."""
    return dtype_info(name).kind in ("int", "uint")


def is_low_precision(name: str) -> bool:
    """True for floats narrower than float32, which are computed in float32."""
    info = dtype_info(name)
    return info.kind == "float" and info.nbytes < 4


def opmath(name: str) -> str:
    """The dtype in which elementwise maths on `name` is done."""
    return "float32" if is_low_precision(name) else name
