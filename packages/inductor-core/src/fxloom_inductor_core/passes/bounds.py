"""What is known of the elements of a tensor from how it was made: that none is below some number.

In: a node of the torch dialect. Out: a lower bound. Invariant: no element that is a number is below it; NaN may be there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from fxloom_inductor_core.passes.torch_calls import may_be_written, read_torch
from fxloom_interfaces import meta

_ANY = (-math.inf, math.inf)


def lowest(node: Any) -> float:
    """A number that no element of `node` is below; -inf where nothing is known."""
    low, _ = _bounds(node, 16)
    return low


def _bounds(value: Any, depth: int) -> tuple[float, float]:
    if type(value) in (int, float, bool):
        return (float(value), float(value)) if value == value else _ANY
    if not isinstance(value, torch.fx.Node) or not meta.has_fake(value):
        return _ANY
    fake = meta.get_fake(value)
    if not isinstance(fake, torch.Tensor):
        return _ANY
    if fake.dtype is torch.bool:
        return 0.0, 1.0
    if not fake.dtype.is_floating_point:
        info = torch.iinfo(fake.dtype) if not fake.dtype.is_complex else None
        whole = (float(info.min), float(info.max)) if info is not None else _ANY
    else:
        whole = _ANY
    call = read_torch(value) if depth and not may_be_written(value) else None
    if call is None:
        return whole
    args = call.args
    match call.target:
        case "full":
            found = _bounds(args[0], depth - 1)
        case "view" | "cast":
            found = _bounds(args[0], depth - 1)
        case "triangle":
            found = _hull(_bounds(args[0], depth - 1), (0.0, 0.0))
        case "where":
            found = _hull(_bounds(args[1], depth - 1), _bounds(args[2], depth - 1))
        case "masked_fill":
            found = _hull(_bounds(args[0], depth - 1), _bounds(args[2], depth - 1))
        case "add" | "sub":
            (a, b), (c, d) = _bounds(args[0], depth - 1), _bounds(args[1], depth - 1)
            found = (a + c, b + d) if call.target == "add" else (a - d, b - c)
        case "mul":
            products = [x * y for x in _bounds(args[0], depth - 1) for y in _bounds(args[1], depth - 1)]
            found = (min(products), max(products))
        case _:
            found = _ANY
    if any(bound != bound for bound in found):  # 0 * inf
        return whole
    if not fake.dtype.is_floating_point:
        return whole  # whole numbers wrap
    finfo = torch.finfo(fake.dtype)
    low, high = found
    return (low if low >= finfo.min else -math.inf, high if high <= finfo.max else math.inf)


def _hull(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), max(a[1], b[1])
