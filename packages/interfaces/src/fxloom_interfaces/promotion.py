"""How a rule's arguments are promoted: declared beside a decomposition or a prim, applied around it.

`Promotion` says in which type the mathematics runs and what the result type is; `compute_dtype` and `result_dtype` are the
definitions that all layers share.
"""

from __future__ import annotations

from enum import Enum

import torch

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
