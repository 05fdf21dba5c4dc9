"""Operators whose answer depends on values, when the environment may make symbols for it.

In: an operator and fakes. Out: a symbolic number (`.item()`), or fakes with sizes that only running the program tells. Each
call makes new symbols, so nothing here is cached. None: not an operator that is modelled so; it stays data-dependent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes.descriptor import Descriptor, contiguous_stride, describe, describe_contiguous, equal
from fxloom_shapes.errors import DataDependent
from fxloom_shapes.fake import FakeTensor, make_fake
from fxloom_shapes.layout import broadcast, is_contiguous

if TYPE_CHECKING:
    from fxloom_shapes.env import SymbolEnv

aten = torch.ops.aten


def unbacked_number(env: SymbolEnv, tensor: FakeTensor) -> Any:
    """What `.item()` gives: an int of the type's range, a float; None for other types."""
    dtype = tensor.desc.dtype
    if dtype.is_floating_point:
        return env.create_float_unbacked()
    if dtype.is_complex or dtype is torch.bool:
        return None
    limits = torch.iinfo(dtype)
    return env.create_unbacked(limits.min, limits.max)


class CustomContext:
    """What `torch.library.get_ctx()` is in the fake kernel of a custom operator. made: it asked for sizes."""

    def __init__(self, op: Any, env: SymbolEnv | None) -> None:
        self.op, self.env, self.made = op, env, False

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        """A size of the result that depends on values. Bounds that are symbolic themselves are not used."""
        if self.env is None or not self.env.capture_shapes:
            raise DataDependent(str(self.op), f"the shape of {self.op}'s result depends on the values of a tensor")
        if isinstance(min, int) and min < 0:
            raise ValueError(f"{self.op}: a dynamic size from {min} on; a size is not below 0")
        self.made = True
        return self.env.create_unbacked(min if isinstance(min, int) else 0, max if isinstance(max, int) else None)

    create_unbacked_symint = new_dynamic_size


def dynamic_shape(env: SymbolEnv, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator whose shape depends on values, with new symbols for it."""
    if op is aten.nonzero.default:
        x = args[0].desc
        count: Any = env.create_unbacked(0, None)
        return make_fake(describe((count, len(x.size)), (1, count), torch.int64, x.device))
    if op is aten.masked_select.default:
        return _line(args[0].desc, env)
    if op is aten.index.Tensor:
        return _masked_index(env, args[0].desc, args[1])
    if op is aten._unique2.default:
        given = _given(op, args, kwargs)
        return _unique(env, args[0].desc, given["return_inverse"], given["return_counts"])
    if op is aten.unique_consecutive.default:
        given = _given(op, args, kwargs)
        if given["dim"] is not None:
            return _unique_along(env, args[0].desc, given["dim"])
        return _unique(env, args[0].desc, given["return_inverse"], given["return_counts"])
    if op in (aten.unique_dim.default, aten.unique_dim_consecutive.default):
        return _unique_along(env, args[0].desc, args[1])
    if op is aten.repeat_interleave.Tensor:
        total: Any = env.create_unbacked(0, None)
        return make_fake(describe_contiguous((total,), torch.int64, args[0].desc.device))
    if op is aten.bincount.default:
        given = _given(op, args, kwargs)
        weights = given["weights"]
        bins: Any = env.create_unbacked(given["minlength"], None)
        dtype = torch.int64 if weights is None else weights.desc.dtype if weights.desc.dtype is torch.float32 else torch.float64
        return make_fake(describe_contiguous((bins,), dtype, args[0].desc.device))
    return None


def _given(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with the schema's defaults."""
    arguments = op._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return defaults | dict(zip([a.name for a in arguments], args, strict=False)) | kwargs


def _unique(env: SymbolEnv, desc: Descriptor, return_inverse: bool, return_counts: bool) -> tuple[FakeTensor, ...]:
    """Unique elements; of which one each element is, and how many are each, or empty ones."""
    unique = _line(desc, env)
    empty = describe_contiguous((0,), torch.int64, desc.device)
    inverse = make_fake(describe_contiguous(desc.size, torch.int64, desc.device) if return_inverse else empty)
    counts = make_fake(describe_contiguous(unique.desc.size, torch.int64, desc.device) if return_counts else empty)
    return unique, inverse, counts


def _unique_along(env: SymbolEnv, desc: Descriptor, dim: int) -> tuple[FakeTensor, ...] | None:
    """Unique slices along an axis, of which one each is, and how many are each. The kernel has that axis outermost in memory."""
    if not -len(desc.size) <= dim < len(desc.size):
        return None
    axis = dim % len(desc.size)
    count: Any = env.create_unbacked(0, None)
    size = (*desc.size[:axis], count, *desc.size[axis + 1 :])
    order = [axis, *[other for other in range(len(size)) if other != axis]]
    stride: list[Any] = [0] * len(size)
    for other, step in zip(order, contiguous_stride([size[n] for n in order]), strict=True):
        stride[other] = step
    unique = make_fake(describe(size, stride, desc.dtype, desc.device))
    inverse = make_fake(describe_contiguous((desc.size[axis],), torch.int64, desc.device))
    return unique, inverse, make_fake(describe_contiguous((count,), torch.int64, desc.device))


def _line(desc: Descriptor, env: SymbolEnv) -> FakeTensor:
    count: Any = env.create_unbacked(0, None)
    return make_fake(describe_contiguous((count,), desc.dtype, desc.device))


def _masked_index(env: SymbolEnv, desc: Descriptor, indices: Any) -> FakeTensor | None:
    """`x[mask]` and its kind: a mask stands for as many axes as it has, and picks as many places as it is true at."""
    parts: list[tuple[int, ...]] = []  # sizes of the numbers that pick
    places: list[int] = []  # axes of x, where these begin
    kept: list[tuple[int, int]] = []  # (axis, extent) of what is taken whole
    axis = 0
    for item in indices:
        if item is None:
            kept.append((axis, desc.size[axis]))
            axis += 1
            continue
        places.append(axis)
        if item.desc.dtype not in (torch.bool, torch.uint8):
            parts.append(item.desc.size)
            axis += 1
            continue
        if not item.desc.size:
            return None
        axis += len(item.desc.size)
    if axis > len(desc.size) or (axis < len(desc.size) or kept) and not is_contiguous(desc):
        return None  # the result's layout follows that of x
    picked = broadcast(*parts)
    if picked is None:
        return None
    if not picked or equal(picked[-1], 1):  # as many as the masks are true at; numbers beside masks settle it otherwise
        count: Any = env.create_unbacked(0, None)
        picked = (*picked[:-1], count)
    whole = [extent for _, extent in kept] + list(desc.size[axis:])
    # picks that are side by side stay there, others come first
    before = sum(1 for place, _ in kept if place < places[0])
    together = all(place < places[0] or place > places[-1] for place, _ in kept)
    size = (*whole[:before], *picked, *whole[before:]) if together else (*picked, *whole)
    return make_fake(describe_contiguous(size, desc.dtype, desc.device))
