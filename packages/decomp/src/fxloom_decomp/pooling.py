"""Average pooling and padding, forward and backward, in terms of reductions, slices and indexing.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.axes import along, part, picked
from fxloom_decomp.libraries import may_reorder_sums, on_cpu_library
from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten


@decomposition(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(x: Tensor, output_size: list[int]) -> Tensor:
    h, w = x.shape[-2:]
    out_h, out_w = output_size
    if (out_h, out_w) == (1, 1) and x.numel():
        return torch.mean(x, [-2, -1], keepdim=True)
    # windows are plain numbers: a symbolic size would be compiled for
    if any(type(extent) is not int for extent in (h, w)):
        return NotImplemented
    if x.numel() == 0:
        return _adaptive_avg_pool(x, output_size)
    if out_h and out_w and not h % out_h and not w % out_w:
        window = [h // out_h, w // out_w]
        return torch.ops.aten.avg_pool2d.default(x, window, window)
    return _adaptive_avg_pool(x, output_size)


@decomposition(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(x: Tensor, output_size: list[int]) -> Tensor:
    return _adaptive_avg_pool(x, output_size)


#: positions of a window along one axis that are written out one by one
_LONGEST_WINDOW = 32


def _adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Any:
    """Window i of an axis goes from floor(i * extent / out) to ceil((i + 1) * extent / out)."""
    axes = len(output_size)
    lead, sizes = x.shape[:-axes], list(zip(x.shape[-axes:], output_size, strict=True))
    if not x.numel():
        return NotImplemented if math.prod(lead) else torch.full([*lead, *output_size], 0, dtype=x.dtype, device=x.device)
    if not may_reorder_sums(x.dtype) or not x.numel() or any(type(v) is not int or v <= 0 for pair in sizes for v in pair):
        return NotImplemented
    if any(extent // out + 2 > _LONGEST_WINDOW for extent, out in sizes):
        return NotImplemented
    total = widen(x)
    count = torch.full((), 1, dtype=torch.int64, device=x.device)
    for number, (extent, out) in enumerate(sizes):
        at = x.dim() - axes + number
        window = torch.arange(out, dtype=torch.int64, device=x.device)
        start, end = window * extent // out, ((window + 1) * extent + (out - 1)) // out
        longest = max(-(-(i + 1) * extent // out) - i * extent // out for i in range(out))
        total = _gathered(total, at, start, end, longest, extent)
        count = count * along(end - start, at, x.dim())
    return cast(total / cast(count, total.dtype), x.dtype)


def _gathered(x: Tensor, axis: int, start: Tensor, end: Tensor, longest: int, extent: int) -> Tensor:
    """The sums of the positions from each start to its end along an axis."""
    zero = torch.full((), 0, dtype=x.dtype, device=x.device)
    terms = []
    for place in range(longest):
        position = start + place
        chosen = picked(x, axis, torch.clamp(position, max=extent - 1))
        terms.append(torch.where(along(position < end, axis, x.dim()), chosen, zero))
    return functools.reduce(torch.add, terms)


@decomposition(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    h, w = x.shape[-2:]
    out_h, out_w = grad.shape[-2:]
    if any(type(extent) is not int and not (type(out) is int and out == 1) for extent, out in ((h, out_h), (w, out_w))):
        wide = widen(grad)  # whether windows overlap is decided when the graph runs
        return cast(_shares(out_h, h, wide).t() @ wide @ _shares(out_w, w, wide), grad.dtype)
    if x.numel() == 0 or h % out_h or w % out_w:
        return _adaptive_avg_pool_backward(grad, x, 2)
    kh, kw = h // out_h, w // out_w
    lead = list(grad.shape[:-2])
    share = grad / (kh * kw)
    spread = share.reshape([*lead, out_h, 1, out_w, 1]).expand([*lead, out_h, kh, out_w, kw])
    return torch.clone(spread, memory_format=torch.contiguous_format).reshape(x.shape)


@decomposition(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_avg_pool_backward(grad, x, 3)


def _adaptive_avg_pool_backward(grad: Tensor, x: Tensor, axes: int) -> Any:
    """Position p lies in the windows from floor(p * out / extent) up to the last that begins at or before it."""
    sizes = list(zip(x.shape[-axes:], grad.shape[-axes:], strict=True))
    if not x.numel() and not grad.numel():
        return torch.full([*x.shape], 0, dtype=x.dtype, device=x.device)
    if not may_reorder_sums(x.dtype) or not x.numel() or any(type(v) is not int or v <= 0 for pair in sizes for v in pair):
        return NotImplemented
    if any(out // extent + 2 > _LONGEST_WINDOW for extent, out in sizes):
        return NotImplemented
    total = widen(grad)
    for number, (extent, out) in enumerate(sizes):
        at = x.dim() - axes + number
        window = torch.arange(out, dtype=torch.int64, device=x.device)
        length = ((window + 1) * extent + (out - 1)) // out - window * extent // out
        total = total / along(cast(length, total.dtype), at, x.dim())
    for number, (extent, out) in enumerate(sizes):
        at = x.dim() - axes + number
        place = torch.arange(extent, dtype=torch.int64, device=x.device)
        first, behind = place * out // extent, ((place + 1) * out - 1) // extent + 1
        longest = max(((p + 1) * out - 1) // extent + 1 - p * out // extent for p in range(extent))
        total = _gathered(total, at, first, behind, longest, out)
    return cast(total, grad.dtype)


def _shares(windows: int, extent: int, like: Tensor) -> Tensor:
    """(windows, extent): what part of a window each position is; window i begins at floor(i * extent / windows)."""
    number = torch.arange(windows, dtype=torch.int64, device=like.device).unsqueeze(1)
    start, end = number * extent // windows, ((number + 1) * extent + (windows - 1)) // windows
    place = torch.arange(extent, dtype=torch.int64, device=like.device)
    return ((place >= start) & (place < end)).to(like.dtype) / (end - start)


def _reflected(start: int, extent: int, before: int, device: torch.device) -> Tensor:
    """Source position of each of `extent` positions after padding by reflection `before` positions."""
    line = torch.arange(start, dtype=torch.int64, device=device) - before
    low = torch.abs(line)
    return extent - 1 - torch.abs(extent - 1 - low)


def _clamped(length: int, extent: int, before: int, device: torch.device) -> Tensor:
    return torch.clamp(torch.arange(length, dtype=torch.int64, device=device) - before, 0, extent - 1)


def _pad(x: Tensor, padding: list[int], axes: int, reflect: bool) -> Tensor:
    """One gather along all axes that grow."""
    first = x.dim() - axes
    places: list[Tensor] = []
    for axis in range(first, x.dim()):
        before, after = padding[2 * (x.dim() - 1 - axis)], padding[2 * (x.dim() - 1 - axis) + 1]
        extent = x.shape[axis]
        length = extent + before + after
        place = _reflected(length, extent, before, x.device) if reflect else _clamped(length, extent, before, x.device)
        places.append(along(place, axis - first, axes))
    return torch.clone(torch.ops.aten._unsafe_index.Tensor(x, [*[None] * first, *places]))


def _nothing(x: Tensor, padding: list[int]) -> Tensor:
    """What padding makes of no elements: none of any batch."""
    shape = [*x.shape]
    for number in range(len(padding) // 2):
        shape[-1 - number] += padding[2 * number] + padding[2 * number + 1]
    return torch.full(shape, 0, dtype=x.dtype, device=x.device) if not math.prod(shape) else NotImplemented


def _replicate(x: Tensor, padding: list[int], axes: int) -> Tensor:
    if not x.numel():
        return _nothing(x, padding)
    return NotImplemented if on_cpu_library(x) else _pad(x, padding, axes, False)


def _reflect(x: Tensor, padding: list[int], axes: int) -> Tensor:
    if not x.numel():
        return _nothing(x, padding)
    return NotImplemented if on_cpu_library(x) or not _fits(x, padding, axes) else _pad(x, padding, axes, True)


def _fits(x: Tensor, padding: list[int], axes: int) -> bool:
    pads_fit = all(0 <= side < x.shape[x.dim() - 1 - number // 2] for number, side in enumerate(padding))
    return x.numel() > 0 and len(padding) == 2 * axes and pads_fit


@decomposition(aten.reflection_pad1d.default)
def reflection_pad1d(x: Tensor, padding: list[int]) -> Tensor:
    return _reflect(x, padding, 1)


@decomposition(aten.reflection_pad2d.default)
def reflection_pad2d(x: Tensor, padding: list[int]) -> Tensor:
    return _reflect(x, padding, 2)


@decomposition(aten.reflection_pad3d.default)
def reflection_pad3d(x: Tensor, padding: list[int]) -> Tensor:
    return _reflect(x, padding, 3)


@decomposition(aten.replication_pad1d.default)
def replication_pad1d(x: Tensor, padding: list[int]) -> Tensor:
    return _replicate(x, padding, 1)


@decomposition(aten.replication_pad2d.default)
def replication_pad2d(x: Tensor, padding: list[int]) -> Tensor:
    return _replicate(x, padding, 2)


@decomposition(aten.replication_pad3d.default)
def replication_pad3d(x: Tensor, padding: list[int]) -> Tensor:
    return _replicate(x, padding, 3)


# ---- what flows back through padding -----------------------------------------------------------------------------------------


def _unpad(grad: Tensor, x: Tensor, padding: list[int], axes: int, reflect: bool) -> Any:
    """The gradient of what was padded: each position gets what came of its copies."""
    if not x.numel() and not grad.numel():
        return torch.full([*x.shape], 0, dtype=x.dtype, device=x.device)
    if not _fits(x, padding, axes) if reflect else not x.numel() or len(padding) != 2 * axes:
        return NotImplemented
    dtype, grad = grad.dtype, widen(grad)
    for number in range(axes):
        before, after = padding[2 * number], padding[2 * number + 1]
        if before or after:
            axis = x.dim() - 1 - number
            fold = _unreflected if reflect else _unclamped
            grad = fold(grad, axis, x.shape[axis], before, after)
    return cast(grad, dtype) if grad.dtype != dtype or max(padding) else torch.clone(grad)


def _unreflected(grad: Tensor, axis: int, extent: int, before: int, after: int) -> Tensor:
    """Position i was copied to before - i on the left and to before + 2 (extent - 1) - i on the right."""
    total = part(grad, axis, before, before + extent)
    pads = [0] * (2 * grad.dim())
    at = 2 * (grad.dim() - 1 - axis)
    if before:
        left = torch.flip(part(grad, axis, 0, before), [axis])
        total = total + torch.constant_pad_nd(left, [*pads[:at], 1, extent - 1 - before, *pads[at + 2 :]])
    if after:
        right = torch.flip(part(grad, axis, before + extent, before + extent + after), [axis])
        total = total + torch.constant_pad_nd(right, [*pads[:at], extent - 1 - after, 1, *pads[at + 2 :]])
    return total


def _unclamped(grad: Tensor, axis: int, extent: int, before: int, after: int) -> Tensor:
    if min(before, after) < 0:
        return _unclamped_and_cut(grad, axis, extent, before, after)
    if extent == 1:
        return torch.sum(grad, [axis], keepdim=True)
    first = torch.sum(part(grad, axis, 0, before + 1), [axis], keepdim=True)
    last = torch.sum(part(grad, axis, before + extent - 1, before + extent + after), [axis], keepdim=True)
    return torch.cat([first, part(grad, axis, before + 1, before + extent - 1), last], axis)


def _unclamped_and_cut(grad: Tensor, axis: int, extent: int, before: int, after: int) -> Tensor:
    """Where nothing was copied of some positions, or several times as far as from beyond the other end."""
    at = 2 * (grad.dim() - 1 - axis)

    def placed(x: Tensor, left: int, right: int) -> Tensor:
        return torch.constant_pad_nd(x, [*[0] * at, left, right])

    length = grad.shape[axis]
    terms = [placed(grad, -before, -after)] if max(before, 0) + max(after, 0) < length else []
    if before > 0:
        terms.append(placed(torch.sum(part(grad, axis, 0, before), [axis], keepdim=True), 0, extent - 1))
    if after > 0:
        terms.append(placed(torch.sum(part(grad, axis, length - after, length), [axis], keepdim=True), extent - 1, 0))
    return functools.reduce(torch.add, terms)


@decomposition(aten.reflection_pad1d_backward.default)
def reflection_pad1d_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    return _unpad(grad, x, padding, 1, True)


@decomposition(aten.reflection_pad2d_backward.default)
def reflection_pad2d_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    return _unpad(grad, x, padding, 2, True)


@decomposition(aten.reflection_pad3d_backward.default)
def reflection_pad3d_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    return _unpad(grad, x, padding, 3, True)


@decomposition(aten.replication_pad1d_backward.default)
def replication_pad1d_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    return _unpad(grad, x, padding, 1, False)


@decomposition(aten.replication_pad2d_backward.default)
def replication_pad2d_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    return _unpad(grad, x, padding, 2, False)


@decomposition(aten.replication_pad3d_backward.default)
def replication_pad3d_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    return _unpad(grad, x, padding, 3, False)


# ---- averages over windows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows along one axis: `out` of them, `size` wide, one every `step` positions, the first at -`pad`."""

    extent: int
    out: int
    size: int
    step: int
    pad: int

    def counts(self, include_pad: bool, device: torch.device) -> Tensor:
        """How many positions each window averages over: those inside of it, with what is padded on both sides or without."""
        start = torch.arange(self.out, dtype=torch.int64, device=device) * self.step - self.pad
        end = torch.clamp(start + self.size, max=self.extent + self.pad)
        return end - start if include_pad else torch.clamp(end, max=self.extent) - torch.clamp(start, min=0)


def _windows(
    shape: Sequence[int], size: Sequence[int], step: Sequence[int], pad: Sequence[int], ceil_mode: bool
) -> list[_Windows] | None:
    """Of the last axes of a tensor of that shape; None where a size is symbolic or torch refuses the windows."""
    axes = len(shape)
    size, step, pad = (list(v) * axes if len(v) == 1 else list(v) for v in (size, step or size, pad))
    found = []
    for extent, width, every, before in zip(shape, size, step, pad, strict=True):
        if type(extent) is not int or extent <= 0 or width <= 0 or every <= 0 or not 0 <= before <= width // 2 or width > 32:
            return None
        room = extent + 2 * before - width
        out = (room + (every - 1 if ceil_mode else 0)) // every + 1
        if ceil_mode and (out - 1) * every >= extent + before:
            out -= 1  # a window that would begin in the padding behind
        if out <= 0:
            return None
        found.append(_Windows(extent, out, width, every, before))
    return found


def _divisor(windows: list[_Windows], rank: int, include_pad: bool, override: int | None, like: Tensor) -> Tensor:
    if override is not None:
        return torch.full((), override, dtype=like.dtype, device=like.device)
    total = torch.full((), 1, dtype=torch.int64, device=like.device)
    for number, axis in enumerate(windows):
        at = rank - len(windows) + number
        total = total * along(axis.counts(include_pad, like.device), at, rank)
    return cast(total, like.dtype)


def _avg_pool_backward(
    grad: Tensor, x: Tensor, axes: int, size: Any, step: Any, pad: Any, ceil_mode: bool, include_pad: bool, override: int | None
) -> Any:
    """Each position sums up the shares of the windows that it lies in, one axis after the other."""
    if not x.numel() and not grad.numel():
        return torch.full([*x.shape], 0, dtype=x.dtype, device=x.device)
    windows = _windows(x.shape[-axes:], size, step, pad, ceil_mode)
    if windows is None or not may_reorder_sums(x.dtype) or not x.numel() or override == 0:
        return NotImplemented
    if [axis.out for axis in windows] != list(grad.shape[-axes:]):
        return NotImplemented
    total = widen(grad)
    total = total / _divisor(windows, grad.dim(), include_pad, override, total)
    for number, axis in enumerate(windows):
        at = grad.dim() - axes + number
        line = torch.arange(axis.extent, dtype=torch.int64, device=grad.device) + axis.pad
        terms = []
        for distance in range(0, axis.size, axis.step):  # windows that begin in the step of the position, or steps before it
            window = torch.div(line, axis.step, rounding_mode="floor") - distance // axis.step
            inside = (window >= 0) & (window < axis.out) & (line - window * axis.step < axis.size)
            chosen = picked(total, at, torch.clamp(window, 0, axis.out - 1))
            terms.append(torch.where(along(inside, at, grad.dim()), chosen, torch.full((), 0, dtype=total.dtype, device=total.device)))
        total = functools.reduce(torch.add, terms)
    return cast(total, grad.dtype)


@decomposition(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    grad: Tensor, x: Tensor, size: list[int], step: list[int], pad: list[int], ceil_mode: bool, include_pad: bool, override: int | None
) -> Tensor:
    return _avg_pool_backward(grad, x, 2, size, step, pad, ceil_mode, include_pad, override)


@decomposition(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    grad: Tensor, x: Tensor, size: list[int], step: list[int], pad: list[int], ceil_mode: bool, include_pad: bool, override: int | None
) -> Tensor:
    return _avg_pool_backward(grad, x, 3, size, step, pad, ceil_mode, include_pad, override)
