"""How a rule's arguments are promoted: declared beside a decomposition or a prim, applied around it.

In: a `Promotion` and the operands' common type. Out: the type in which the rule computes (`compute_dtype`) and the type of its
result (`result_dtype`), definitions that all layers share. `as_element` says what a Python number is as an element of a type.
"""

from __future__ import annotations

import math
from enum import Enum

import torch

from fxloom_interfaces.dtypes import dtype_info

_HALVES = (torch.float16, torch.bfloat16)


class Promotion(Enum):
    """NONE: as given. OPMATH: operands are brought to their common type; half types compute in float32 and come back.

    INT_TO_FLOAT: like OPMATH, with integers and booleans taken to the default float type. ALWAYS_BOOL: operands are brought
    to their common type, the result is boolean.
    """

    NONE = "none"
    OPMATH = "opmath"
    INT_TO_FLOAT = "int to float"
    ALWAYS_BOOL = "always bool"


def compute_dtype(promotion: Promotion, common: torch.dtype) -> torch.dtype:
    """The type in which a rule computes when its operands' common type is `common`."""
    if promotion is Promotion.NONE:
        return common
    if promotion is Promotion.INT_TO_FLOAT and not (common.is_floating_point or common.is_complex):
        return torch.get_default_dtype()
    if promotion in (Promotion.OPMATH, Promotion.INT_TO_FLOAT) and common in _HALVES:
        return torch.float32
    return common


def result_dtype(promotion: Promotion, common: torch.dtype) -> torch.dtype:
    """The type of a rule's result when its operands' common type is `common`."""
    if promotion is Promotion.ALWAYS_BOOL:
        return torch.bool
    if promotion is Promotion.INT_TO_FLOAT and not (common.is_floating_point or common.is_complex):
        return torch.get_default_dtype()
    return common


def as_element(value: bool | float, dtype: str) -> bool | float:
    """What a number becomes as an element of `dtype`, a bool, an integer or a float64 or wider type.

    Integers wrap. Floats lose their fraction; one that doesn't fit becomes the lowest int32 (of int64: int64), whose low bits
    narrower types take, as the conversion instructions of x86 have it. Floats stay as they are: who prints them rounds.
    """
    info = dtype_info(dtype)
    if info.kind == "bool":
        return bool(value)
    if info.kind not in ("int", "uint"):
        return float(value)
    bits = 8 * info.nbytes
    if isinstance(value, float):
        width = max(bits, 32)
        fits = math.isfinite(value) and -(1 << (width - 1)) <= value < 1 << (width - 1)
        value = int(value) if fits else -(1 << (width - 1))
    value &= (1 << bits) - 1
    return value - (1 << bits) if info.kind == "int" and value >> (bits - 1) else value
