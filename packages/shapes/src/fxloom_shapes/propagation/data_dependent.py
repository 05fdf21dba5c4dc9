"""Operators whose answer depends on values, when the environment may make symbols for it.

In: an operator and fakes. Out: a symbolic number (`.item()`), or fakes with sizes known only at run time. Each
call makes new symbols, so nothing here is cached. None: not an operator that is modelled so; it stays data-dependent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes.errors import DataDependent
from fxloom_shapes.fake.descriptor import Descriptor, contiguous_stride, describe, describe_contiguous, equal
from fxloom_shapes.fake.layout import elementwise_stride
from fxloom_shapes.fake.sizes import broadcast, same_size
from fxloom_shapes.fake.tensor import FakeTensor, make_fake

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv

aten = torch.ops.aten


def unbacked_number(env: SymbolEnv, tensor: FakeTensor) -> Any:
    """What `.item()` gives: an int of the type's range, a float, a truth value; None for other types."""
    if tensor.desc.dtype.is_complex:
        return None
    return _runtime_scalar(env, "number", tensor, lambda: _new_number(env, tensor.desc.dtype))


def _new_number(env: SymbolEnv, dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return env.create_float_unbacked()
    if dtype is torch.bool:
        return env.create_unbacked(0, 1) != 0
    limits = torch.iinfo(dtype)
    return env.create_unbacked(limits.min, limits.max)


def _runtime_scalar(env: SymbolEnv, what: str, tensor: FakeTensor, make: Callable[[], Any]) -> Any:
    """A number that the elements of `tensor` determine: the same symbol as long as nothing has been written to them."""
    token = tensor.storage_token
    key = (what, token.ident, token.writes, tensor.desc)
    found = env.runtime_scalars.get(key)
    if found is None:
        found = env.runtime_scalars[key] = make()
    return found


def _count(env: SymbolEnv, tensor: FakeTensor) -> Any:
    """How many elements are not zero."""
    return _runtime_scalar(env, "count", tensor, lambda: env.create_unbacked(0, None))


class CustomContext:
    """What `torch.library.get_ctx()` is in the fake kernel of a custom operator. made: it asked for sizes."""

    def __init__(self, op: Any, env: SymbolEnv | None) -> None:
        self.op, self.env, self.made = op, env, False

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        """A size of the result that depends on values. Bounds that are symbolic themselves are not used."""
        if self.env is None or not self.env.options.capture_shapes:
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
        count = _count(env, args[0])
        return make_fake(describe((count, len(x.size)), (1, count), torch.int64, x.device))
    if op is aten.masked_select.default:
        x, mask = args[0].desc, args[1]
        number: Any = _count(env, mask) if same_size(x.size, mask.desc.size) else env.create_unbacked(0, None)
        return make_fake(describe_contiguous((number,), x.dtype, x.device))
    if op is aten.index.Tensor:
        return _masked_index(env, args[0].desc, args[1])
    if op is aten._unique.default:
        return _unique(env, args[0].desc, _given(op, args, kwargs)["return_inverse"], False)[:2]
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
    if op in (aten._ctc_loss.default, aten._ctc_loss.Tensor) and len(args[0].desc.size) == 3:
        return _ctc_loss(env, args[0].desc)
    return None


def _ctc_loss(env: SymbolEnv, desc: Descriptor) -> tuple[FakeTensor, ...]:
    """The losses; and the sums of the paths so far, by sequence, step and place in the longest target with its blanks."""
    steps, batch, _ = desc.size
    places: Any = env.create_unbacked(1, None)
    losses = make_fake(describe_contiguous((batch,), desc.dtype, desc.device))
    return losses, make_fake(describe_contiguous((batch, steps, places), desc.dtype, desc.device))


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
    """Unique slices along an axis, of which one each is, and how many are each. The CPU's kernel has that axis outermost in memory."""
    if not -len(desc.size) <= dim < len(desc.size):
        return None
    axis = dim % len(desc.size)
    count: Any = env.create_unbacked(0, None)
    size = (*desc.size[:axis], count, *desc.size[axis + 1 :])
    order = [axis, *[other for other in range(len(size)) if other != axis]] if desc.device.type == "cpu" else list(range(len(size)))
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
    masks: list[FakeTensor] = []
    places: list[int] = []  # axes of x, where these begin
    kept: list[tuple[int, int, int]] = []  # (axis, extent, stride) of what is taken whole
    axis = 0
    for item in indices:
        if item is None:
            kept.append((axis, desc.size[axis], desc.stride[axis]))
            axis += 1
            continue
        places.append(axis)
        if item.desc.dtype not in (torch.bool, torch.uint8):
            parts.append(item.desc.size)
            axis += 1
            continue
        if not item.desc.size:
            return None
        masks.append(item)
        axis += len(item.desc.size)
    if axis > len(desc.size):
        return None
    kept += [(left, desc.size[left], desc.stride[left]) for left in range(axis, len(desc.size))]
    picked = broadcast(*parts)
    if picked is None:
        return None
    if not picked or equal(picked[-1], 1):  # as many as the masks are true at; numbers beside masks settle it otherwise
        count: Any = _count(env, masks[0]) if len(masks) == 1 and not parts else env.create_unbacked(0, None)
        picked = (*picked[:-1], count)
    # picks that are side by side stay there, others come first
    before = sum(1 for place, _, _ in kept if place < places[0])
    together = all(place < places[0] or place > places[-1] for place, _, _ in kept)
    before = before if together else 0

    def arranged(whole: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
        return (*whole[:before], *others, *whole[before:])

    size = arranged([extent for _, extent, _ in kept], picked)
    # the kernel steps through x along what is taken whole, and through the numbers along what is picked
    along = describe(size, arranged([step for _, _, step in kept], [0] * len(picked)), desc.dtype, desc.device)
    through = describe(size, arranged([0] * len(kept), contiguous_stride(picked)), torch.int64, desc.device)
    return make_fake(describe(size, elementwise_stride(size, [along, through], 1), desc.dtype, desc.device))
