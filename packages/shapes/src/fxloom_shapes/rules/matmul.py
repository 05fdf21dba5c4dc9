"""Shape rules of products of matrices, plain and scaled.

In: the device and the operator's arguments. Out: a plan of one new tensor, or None to decline, as where sizes don't fit together.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor
from fxloom_shapes.fake.layout import is_contiguous
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import assume_equal, broadcast, same_size
from fxloom_shapes.rules.registry import fresh, shape_rule

aten = torch.ops.aten


def _product(a: Descriptor, b: Descriptor, rank: int) -> tuple[int, ...] | None:
    if len(a.size) != rank or len(b.size) != rank or a.dtype != b.dtype or a.dtype.is_complex:
        return None
    if not assume_equal(a.size[-1], b.size[-2]) or not all(map(assume_equal, a.size[:-2], b.size[:-2])):
        return None
    return (*a.size[:-1], b.size[-1])


def _covers(part: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """`part` can be broadcast to `size`."""
    common = broadcast(part, size)
    return common is not None and same_size(common, size)


@shape_rule(aten.mm.default)
def mm(device: torch.device, a: Any, b: Any) -> Plan | None:
    size = _product(a.desc, b.desc, 2)
    return None if size is None else fresh(size, a.desc.dtype, device)


@shape_rule(aten.bmm.default)
def bmm(device: torch.device, a: Any, b: Any) -> Plan | None:
    size = _product(a.desc, b.desc, 3)
    return None if size is None else fresh(size, a.desc.dtype, device)


@shape_rule(aten.addmm.default)
def addmm(device: torch.device, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
    size = _product(a.desc, b.desc, 2)
    if size is None or x.desc.dtype != a.desc.dtype or not _covers(x.desc.size, size):
        return None
    return fresh(size, a.desc.dtype, device)


@shape_rule(aten.baddbmm.default)
def baddbmm(device: torch.device, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
    size = _product(a.desc, b.desc, 3)
    if size is None or x.desc.dtype != a.desc.dtype or not _covers(x.desc.size, size):
        return None
    return fresh(size, a.desc.dtype, device)


_FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_BY_TENSOR, _BY_ROW = 0, 1


@shape_rule(aten._scaled_mm.default)
def scaled_mm(
    device: torch.device, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Plan | None:  # fmt: skip
    """On the CPU, where the factors may lie in any way; other devices are particular, and torch's Meta kernel says about what."""
    recipes = [_BY_TENSOR if math.prod(scale.desc.size) == 1 else _BY_ROW for scale in (scale_a, scale_b)]
    return _scaled_product(device, a, b, (scale_a, scale_b), recipes, bias, out_dtype)


def scaled_mm_by_recipes(
    device: torch.device, a: Any, b: Any, scale_a: Any, recipe_a: Any, swizzle_a: Any, scale_b: Any, recipe_b: Any, swizzle_b: Any,
    bias: Any, out_dtype: torch.dtype | None, contraction_dim: Any = (), use_fast_accum: bool = False,
) -> Plan | None:  # fmt: skip
    if any(map(len, (scale_a[1:], scale_b[1:], contraction_dim))) or any((*swizzle_a, *swizzle_b)):
        return None
    return _scaled_product(device, a, b, (*scale_a, *scale_b), [*recipe_a, *recipe_b], bias, out_dtype)


if hasattr(aten, "_scaled_mm_v2"):  # torch 2.11 may be without
    shape_rule(aten._scaled_mm_v2.default)(scaled_mm_by_recipes)


def _scaled_product(
    device: torch.device, a: Any, b: Any, scales: tuple[Any, ...], recipes: list[int], bias: Any, out_dtype: torch.dtype | None
) -> Plan | None:
    if device.type != "cpu" or not {a.desc.dtype, b.desc.dtype} <= _FLOAT8 or len(a.desc.size) != 2 or len(b.desc.size) != 2:
        return None
    size = (a.desc.size[0], b.desc.size[1])
    if not assume_equal(a.desc.size[1], b.desc.size[0]) or any(scale.desc.dtype is not torch.float32 for scale in scales):
        return None
    for scale, recipe, by_row in zip(scales, recipes, ((size[0], 1), (1, size[1])), strict=True):
        fits = math.prod(scale.desc.size) == 1 if recipe == _BY_TENSOR else recipe == _BY_ROW and same_size(scale.desc.size, by_row)
        if not fits or recipe != recipes[0] or not is_contiguous(scale.desc):
            return None
    if bias is not None and not same_size(bias.desc.size, size[1:]):
        return None
    return fresh(size, out_dtype or a.desc.dtype, device)
