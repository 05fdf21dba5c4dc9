"""Operators whose answer depends on values, when the environment may make symbols for it.

In: an operator and fakes. Out: a symbolic number (`.item()`), or fakes with sizes that only running the program tells. Each
call makes new symbols, so nothing here is cached. None: not an operator that is modelled so; it stays data-dependent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes.descriptor import Descriptor, describe, describe_contiguous
from fxloom_shapes.fake import FakeTensor, make_fake

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
        x = args[0].desc
        given = dict(zip(("sorted", "return_inverse", "return_counts"), args[1:], strict=False)) | kwargs
        return_inverse, return_counts = given.get("return_inverse", False), given.get("return_counts", False)
        unique = _line(x, env)
        empty = describe_contiguous((0,), torch.int64, x.device)
        inverse = make_fake(describe_contiguous(x.size, torch.int64, x.device) if return_inverse else empty)
        counts = make_fake(describe_contiguous(unique.desc.size, torch.int64, x.device) if return_counts else empty)
        return unique, inverse, counts
    if op is aten.repeat_interleave.Tensor:
        total: Any = env.create_unbacked(0, None)
        return make_fake(describe_contiguous((total,), torch.int64, args[0].desc.device))
    return None


def _line(desc: Descriptor, env: SymbolEnv) -> FakeTensor:
    count: Any = env.create_unbacked(0, None)
    return make_fake(describe_contiguous((count,), desc.dtype, desc.device))


def _masked_index(env: SymbolEnv, desc: Descriptor, indices: Any) -> FakeTensor | None:
    """`x[mask]`: one mask over the first axes."""
    masks = [item for item in indices if item is not None]
    if len(masks) != 1 or indices[0] is None or masks[0].desc.dtype is not torch.bool:
        return None
    rest = desc.size[len(masks[0].desc.size) :]
    count: Any = env.create_unbacked(0, None)
    return make_fake(describe_contiguous((count, *rest), desc.dtype, desc.device))
