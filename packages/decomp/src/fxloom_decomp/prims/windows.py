"""Pools and columns in prims: windows of an image are read by their places, and written back by adding.

In: images (N, C, ...) or (C, ...), sizes of windows. Out: values. Places are counted along all axes of one image, as eager's indices are.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.prims.operands import (
    along,
    full,
    full_like,
    line,
    product,
    reshaped,
    to,
    widened,
)
from fxloom_decomp.prims.registry import prims_rule
from fxloom_interfaces.prims import p

aten = torch.ops.aten


def _per_axis(value: Any, rank: int) -> tuple[Any, ...]:
    value = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return value if len(value) == rank else value * rank


def _outputs(extent: Any, size: Any, step: Any, side: Any, gap: Any, ceil: bool) -> Any:
    """How many windows lie along an axis, as eager counts: the last one starts within the axis or its left side."""
    span = extent + 2 * side - gap * (size - 1) - 1
    count = (span + (step - 1 if ceil else 0)) // step + 1
    if ceil and type(count) is int and (count - 1) * step >= extent + side:
        count -= 1
    return count


@dataclass(frozen=True, slots=True)
class _Axis:
    """Windows along one axis: `size` positions each, from `starts`, `gap` apart. ends: where each ends; None: after its size.

    extent: of the image along the axis. starts, ends: lines of places, one for each window.
    """

    extent: Any
    count: Any
    size: Any
    starts: Tensor
    gap: Any = 1
    ends: Tensor | None = None


def _regular(extents: Any, windows: Any, counts: Any, steps: Any, sides: Any, gaps: Any, device: torch.device) -> list[_Axis]:
    """Windows that are `steps` apart."""
    return [
        _Axis(extent, count, window, line(count, device, -side, step), gap)
        for extent, window, count, step, side, gap in zip(extents, windows, counts, steps, sides, gaps, strict=True)
    ]


def _adaptive(extents: Sequence[Any], counts: Sequence[Any], device: torch.device) -> list[_Axis]:
    """Windows that cover the axis, as many as are asked for."""
    axes = []
    for extent, count in zip(extents, counts, strict=True):
        number = line(count, device)
        total = p.mul(number, full_like(number, extent))
        divisor = full_like(number, count)
        ends = p.floor_div(p.add(total, full_like(number, extent + count - 1)), divisor)
        size = max((-(-(i + 1) * extent // count) - i * extent // count for i in range(count)), default=0)
        axes.append(_Axis(extent, count, size, p.floor_div(total, divisor), 1, ends))
    return axes


def _lines(axes: Sequence[_Axis]) -> tuple[Tensor, Tensor]:
    """(places of each element of each window, whether it is inside of the image), of size (*counts, product of windows)."""
    counts, windows = [axis.count for axis in axes], [axis.size for axis in axes]
    size, rank, device = (*counts, *windows), len(axes), axes[0].starts.device
    flat = full(size, 0, torch.int64, device)
    inside = full(size, True, torch.bool, device)
    for number, axis in enumerate(axes):
        offset = along(line(axis.size, device, 0, axis.gap), rank + number, size)
        place = p.add(along(axis.starts, number, size), offset)
        end = full_like(place, axis.extent) if axis.ends is None else along(axis.ends, number, size)
        inside = p.bitwise_and(inside, p.bitwise_and(p.ge(place, full_like(place, 0)), p.lt(place, end)))
        flat = p.add(p.mul(flat, full_like(flat, axis.extent)), place)
    flat = p.where(inside, flat, full_like(flat, 0))
    merged = (*counts, product(windows))
    return reshaped(flat, merged), reshaped(inside, merged)


def _images(x: Tensor, rank: int) -> Tensor:
    """x as (planes, elements)."""
    lead = x.dim() - rank
    return reshaped(x, [product(x.shape[:lead]), product(x.shape[lead:])])


def _windows(x: Tensor, rank: int, flat: Tensor, inside: Tensor, outside: Any) -> Tensor:
    """(planes, *counts, window): the elements of each window, `outside` beyond the borders."""
    planes = _images(x, rank)
    places = reshaped(flat, [product(flat.shape)])
    values = reshaped(p.index_select(planes, places, 1), [planes.shape[0], *flat.shape])
    held = p.broadcast_in_dim(inside, tuple(values.shape), tuple(range(1, values.dim())))
    return p.where(held, values, full_like(values, outside))


def max_pool(x: Tensor, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> tuple[Tensor, Tensor]:
    extents = x.shape[x.dim() - rank :]
    windows, sides, gaps = (_per_axis(value, rank) for value in (kernel, padding, dilation))
    steps = _per_axis(stride, rank) if stride else windows
    counts = [_outputs(extents[a], windows[a], steps[a], sides[a], gaps[a], ceil) for a in range(rank)]
    return _largest(x, _regular(extents, windows, counts, steps, sides, gaps, x.device))


def _largest(x: Tensor, axes: Sequence[_Axis]) -> tuple[Tensor, Tensor]:
    """(the largest of each window, its place)."""
    rank = len(axes)
    flat, inside = _lines(axes)
    lowest = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    values = _windows(x, rank, flat, inside, lowest)
    last = values.dim() - 1
    size = (*x.shape[: x.dim() - rank], *[axis.count for axis in axes])
    # of several NaNs eager's kernel keeps the last; of windows without a number above -inf, the first place inside of the image
    position = full_like(values, 0, torch.int64)
    position = p.add(position, along(line(values.shape[last], x.device), last, values.shape))
    held = p.broadcast_in_dim(inside, tuple(values.shape), tuple(range(1, values.dim())))
    best = p.broadcast_in_dim(p.amax(values, (last,)), tuple(values.shape), tuple(range(last)))
    count = values.shape[last]
    first = p.amin(p.where(p.bitwise_and(held, p.eq(values, best)), position, full_like(position, count - 1)), (last,))
    if x.dtype.is_floating_point:
        broken = p.isnan(values)
        latest = p.amax(p.where(broken, position, full_like(position, 0)), (last,))
        first = p.where(p.any(broken, (last,)), latest, first)
    spread = p.broadcast_in_dim(flat, tuple(values.shape), tuple(range(1, values.dim())))
    chosen = p.gather(spread, last, reshaped(first, [*first.shape, 1]))
    return reshaped(p.amax(values, (last,)), size), reshaped(chosen, size)


@prims_rule(aten.max_pool2d_with_indices.default)
def max_pool2d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    return max_pool(x, 2, kernel, stride, padding, dilation, ceil_mode)


@prims_rule(aten.max_pool3d_with_indices.default)
def max_pool3d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    return max_pool(x, 3, kernel, stride, padding, dilation, ceil_mode)


@prims_rule(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(x: Tensor, output_size: Sequence[Any]) -> tuple[Tensor, Tensor]:
    return _largest(x, _adaptive(x.shape[x.dim() - 2 :], _per_axis(output_size, 2), x.device))


@prims_rule(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(x: Tensor, output_size: Sequence[Any]) -> tuple[Tensor, Tensor]:
    return _largest(x, _adaptive(x.shape[x.dim() - 3 :], _per_axis(output_size, 3), x.device))


def _added_back(grad: Tensor, x: Tensor, rank: int, indices: Tensor) -> Tensor:
    """Gradients added where their indices say, one plane at a time."""
    planes, places = _images(widened(grad), rank), _images(indices, rank)
    lead = x.dim() - rank
    base = full([planes.shape[0], product(x.shape[lead:])], 0, planes.dtype, x.device)
    if any(type(extent) is int and extent == 0 for extent in places.shape):
        return to(reshaped(base, x.shape), grad.dtype)
    return to(reshaped(p.scatter_add(base, 1, places, planes), x.shape), grad.dtype)


@prims_rule(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Tensor
) -> Tensor:
    return _added_back(grad, x, 2, indices)


@prims_rule(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Tensor
) -> Tensor:
    return _added_back(grad, x, 3, indices)


@prims_rule(aten.adaptive_max_pool2d_backward.default, aten.fractional_max_pool2d_backward.default)
def given_max_pool2d_backward(grad: Tensor, x: Tensor, *given: Any, **named: Any) -> Tensor:
    return _added_back(grad, x, 2, (*given, *named.values())[-1])


@prims_rule(aten.adaptive_max_pool3d_backward.default, aten.fractional_max_pool3d_backward.default)
def given_max_pool3d_backward(grad: Tensor, x: Tensor, *given: Any, **named: Any) -> Tensor:
    return _added_back(grad, x, 3, (*given, *named.values())[-1])


@prims_rule(aten.max_unpool2d.default)
def max_unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[Any]) -> Tensor:
    return _unpooled(x, indices, output_size, 2)


@prims_rule(aten.max_unpool3d.default)
def max_unpool3d(x: Tensor, indices: Tensor, output_size: Sequence[Any], stride: Any, padding: Any) -> Tensor:
    return _unpooled(x, indices, output_size, 3)


def _unpooled(x: Tensor, indices: Tensor, output_size: Sequence[Any], rank: int) -> Tensor:
    planes, places = _images(x, rank), _images(indices, rank)
    size = (*x.shape[: x.dim() - rank], *output_size)
    base = full([planes.shape[0], product(output_size)], 0, x.dtype, x.device)
    if any(type(extent) is int and extent == 0 for extent in places.shape):
        return reshaped(base, size)
    return reshaped(p.scatter(base, 1, places, planes), size)


# --- averages -------------------------------------------------------------------------------------------------------------


def average_pool(
    x: Tensor, rank: int, kernel: Any, stride: Any, padding: Any, ceil: bool, count_include_pad: bool, divisor: int | None
) -> Tensor:
    extents = x.shape[x.dim() - rank :]
    windows, sides = _per_axis(kernel, rank), _per_axis(padding, rank)
    steps = _per_axis(stride, rank) if stride else windows
    counts = [_outputs(extents[a], windows[a], steps[a], sides[a], 1, ceil) for a in range(rank)]
    flat, inside = _lines(_regular(extents, windows, counts, steps, sides, (1,) * rank, x.device))
    acc = widened(x)
    total = p.sum(_windows(acc, rank, flat, inside, 0), (rank + 1,))
    if divisor is not None:
        amount = full_like(total, divisor)
    elif not count_include_pad:
        number = p.sum(to(inside, torch.int64), (rank,))
        amount = p.broadcast_in_dim(to(number, acc.dtype), tuple(total.shape), tuple(range(1, rank + 1)))
    else:
        amount = full_like(total, 1)
        for axis in range(rank):  # windows are cut where the right side ends
            start = line(counts[axis], x.device, -sides[axis], steps[axis])
            end = p.add(start, full_like(start, windows[axis]))
            reach = p.sub(p.minimum(end, full_like(end, extents[axis] + sides[axis])), start)
            amount = p.mul(amount, along(to(reach, acc.dtype), axis + 1, total.shape))
    found = p.div(total, amount) if acc.dtype.is_floating_point else p.trunc_div(total, amount)
    return to(reshaped(found, [*x.shape[: x.dim() - rank], *counts]), x.dtype)


@prims_rule(aten.avg_pool2d.default)
def avg_pool2d(
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    return average_pool(x, 2, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)


@prims_rule(aten.avg_pool3d.default)
def avg_pool3d(
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    return average_pool(x, 3, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)


# --- columns --------------------------------------------------------------------------------------------------------------


@prims_rule(aten.im2col.default)
def im2col(x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """(N, C, H, W) to (N, C · window, windows)."""
    extents = x.shape[x.dim() - 2 :]
    windows, gaps, sides, steps = (_per_axis(value, 2) for value in (kernel, dilation, padding, stride))
    counts = [_outputs(extents[a], windows[a], steps[a], sides[a], gaps[a], False) for a in range(2)]
    flat, inside = _lines(_regular(extents, windows, counts, steps, sides, gaps, x.device))
    values = _windows(x, 2, flat, inside, 0)  # (N · C, rows, columns, window)
    values = p.permute(values, (0, 3, 1, 2))
    lead = [x.shape[0]] if x.dim() == 4 else []
    return reshaped(values, [*lead, x.shape[x.dim() - 3] * product(windows), product(counts)])


@prims_rule(aten.col2im.default)
def col2im(x: Tensor, output_size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """(N, C · window, windows) to (N, C, H, W), where windows that meet are added."""
    extents = tuple(output_size)
    windows, gaps, sides, steps = (_per_axis(value, 2) for value in (kernel, dilation, padding, stride))
    counts = [_outputs(extents[a], windows[a], steps[a], sides[a], gaps[a], False) for a in range(2)]
    flat, inside = _lines(_regular(extents, windows, counts, steps, sides, gaps, x.device))  # (rows, columns, window)
    lead = [x.shape[0]] if x.dim() == 3 else []
    channels = x.shape[x.dim() - 2] // product(windows)
    planes = product([*lead, channels])
    values = p.permute(reshaped(widened(x), [planes, product(windows), *counts]), (0, 2, 3, 1))
    held = p.broadcast_in_dim(inside, tuple(values.shape), (1, 2, 3))
    values = reshaped(p.where(held, values, full_like(values, 0)), [planes, product(flat.shape)])
    places = p.broadcast_in_dim(reshaped(flat, [product(flat.shape)]), tuple(values.shape), (1,))
    base = full([planes, product(extents)], 0, values.dtype, x.device)
    return to(reshaped(p.scatter_add(base, 1, places, values), [*lead, channels, *extents]), x.dtype)
