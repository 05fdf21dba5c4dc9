"""Broadcasting and promotion made explicit: what the rules bring their operands together with.

In: tensors and numbers as an operator takes them. Out: tensors of one size and type, in prims. A result may be an operand itself,
where nothing has to be done.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import common_dtype, wide_dtype
from fxloom_interfaces.dtypes import dtype_name
from fxloom_interfaces.prims import p
from fxloom_interfaces.promotion import as_element

#: a number as operators take one: plain or symbolic
Number = Any


def to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in a type."""
    return x if x.dtype == dtype else p.convert(x, dtype)


def widened(x: Tensor) -> Tensor:
    return to(x, wide_dtype(x.dtype))


def is_real(dtype: torch.dtype) -> bool:
    """True for floats and types that have no fraction, False for complex numbers."""
    return not dtype.is_complex


def element_type(*values: Any) -> torch.dtype:
    """The type that tensors and numbers have in common, by torch's rules of promotion."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    numbers = [value for value in values if not isinstance(value, Tensor)]
    common = common_dtype(tuple(tensors)) if tensors else None
    for number in numbers:
        if isinstance(number, (float, torch.SymFloat)):
            if common is None or not common.is_floating_point:
                common = torch.get_default_dtype()
        elif isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool) and common in (None, torch.bool):
            common = torch.int64
    return common if common is not None else torch.bool


def float_type(*values: Any) -> torch.dtype:
    """`element_type`, the default float type in the place of integers and booleans."""
    common = element_type(*values)
    return common if common.is_floating_point else torch.get_default_dtype()


def element(value: Number, dtype: torch.dtype) -> Number:
    """A number as an element of a type: wrapped, cut or rounded as eager does. Symbolic numbers are left alone."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    if dtype.is_floating_point:
        return _within(float(value), dtype)
    return as_element(value, dtype_name(dtype))


def _within(value: float, dtype: torch.dtype) -> float:
    """A number as large as the type holds, to which torch.full rounds: beyond, it is infinite."""
    if dtype is torch.float64 or not math.isfinite(value):
        return value
    limits = torch.finfo(dtype)
    if abs(value) <= limits.max:
        return value
    return math.copysign(limits.max if abs(value) < limits.max * (1 + limits.eps / 4) else math.inf, value)


def full(size: Sequence[Any], value: Number, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number everywhere."""
    return p.full(tuple(size), element(value, dtype), dtype, device)


def full_like(x: Tensor, value: Number, dtype: torch.dtype | None = None) -> Tensor:
    return full(x.shape, value, dtype or x.dtype, x.device)


def common_size(sizes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The size that these broadcast to. RuntimeError where they don't."""
    rank = max(map(len, sizes), default=0)
    result: list[Any] = [1] * rank
    for size in sizes:
        for axis, extent in enumerate(size, rank - len(size)):
            if _is_one(result[axis]):
                result[axis] = extent
            elif not _is_one(extent) and extent != result[axis]:
                raise RuntimeError(f"sizes {[tuple(size) for size in sizes]} can't be broadcast")
    return tuple(result)


def _is_one(extent: Any) -> bool:
    return type(extent) is int and extent == 1


def broadcast(x: Tensor, size: Sequence[Any]) -> Tensor:
    """`x` repeated to a size, its axes being the last ones."""
    size = tuple(size)
    if tuple(x.shape) == size:
        return x
    lead = len(size) - x.dim()
    return p.broadcast_in_dim(x, size, tuple(range(lead, len(size))))


def device_of(values: Sequence[Any]) -> torch.device:
    """Where operands meet: tensors without axes come from the CPU to where the others are."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return next((value.device for value in tensors if value.device.type != "cpu"), tensors[0].device)


def placed(x: Tensor, device: torch.device) -> Tensor:
    return x if x.device == device else p.to_device(x, device)


def aligned(*values: Any, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Tensors and numbers as tensors of one size and of `dtype`, which is what they have in common unless it is given."""
    dtype = element_type(*values) if dtype is None else dtype
    size = common_size([value.shape for value in values if isinstance(value, Tensor)])
    device = device_of(values)
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(broadcast(to(placed(value, device), dtype), size))
        else:
            found.append(full(size, value, dtype, device))
    return found


def is_number(value: Any) -> bool:
    """True for a number, and for a tensor without axes on the CPU, which kernels take as one."""
    return not isinstance(value, Tensor) or (value.dim() == 0 and value.device.type == "cpu")


def axes_of(x: Tensor, dim: Any) -> tuple[int, ...]:
    """Axes as operators name them, counted from 0 and in order; all where none is named."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(x.dim()))
    chosen = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(sorted(axis_of(x, one) for one in chosen)) if x.dim() else ()


def axis_of(x: Tensor, dim: int) -> int:
    """An axis counted from 0; IndexError as in eager."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def kept(x: Tensor, like: Tensor, axes: Sequence[int]) -> Tensor:
    """`x`, from which the axes of `like` were folded away, with axes of extent 1 in their places."""
    return reshaped(x, [1 if axis in axes else extent for axis, extent in enumerate(like.shape)])


def reshaped(x: Tensor, size: Sequence[Any]) -> Tensor:
    size = tuple(size)
    return x if tuple(x.shape) == size else p.reshape(x, size)


def permuted(x: Tensor, dims: Sequence[int]) -> Tensor:
    dims = tuple(dims)
    return x if dims == tuple(range(x.dim())) else p.permute(x, dims)


def moved(x: Tensor, source: Sequence[int], to_front: bool = True) -> Tensor:
    """The axes `source` first, the others behind; to_front=False: back again."""
    order = [*source, *(axis for axis in range(x.dim()) if axis not in source)]
    return permuted(x, order if to_front else [order.index(axis) for axis in range(x.dim())])


def part(x: Tensor, axis: int, start: Any, end: Any, step: Any = 1) -> Tensor:
    """Positions from `start` to `end` along an axis."""
    if type(start) is int and start == 0 and type(step) is int and step == 1 and end is x.shape[axis]:
        return x
    starts, limits, steps = [0] * x.dim(), list(x.shape), [1] * x.dim()
    starts[axis], limits[axis], steps[axis] = start, end, step
    return p.slice(x, tuple(starts), tuple(limits), tuple(steps))


def line(length: Any, device: torch.device, start: Any = 0, step: Any = 1, dtype: torch.dtype = torch.int64) -> Tensor:
    """start + step · i."""
    return p.iota(length, start, step, dtype, device)


def along(values: Tensor, axis: int, size: Sequence[Any]) -> Tensor:
    """A line of numbers as a tensor of a size, the same along all other axes."""
    return p.broadcast_in_dim(values, tuple(size), (axis,))


def product(size: Sequence[Any]) -> Any:
    return math.prod(size)
