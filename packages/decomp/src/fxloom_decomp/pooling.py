"""Pooling, padding and upsampling in terms of avg_pool2d, reductions and indexing."""

from __future__ import annotations

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten


@decomposition(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(x: Tensor, output_size: list[int]) -> Tensor:
    h, w = x.shape[-2:]
    out_h, out_w = output_size
    if (out_h, out_w) == (1, 1) and x.numel():
        return torch.mean(x, [-2, -1], keepdim=True)
    # windows are plain numbers: a symbolic size would be compiled for
    if any(type(extent) is not int for extent in (h, w)) or x.numel() == 0 or h % out_h or w % out_w:
        return NotImplemented
    window = [h // out_h, w // out_w]
    return torch.ops.aten.avg_pool2d.default(x, window, window)


@decomposition(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    h, w = x.shape[-2:]
    out_h, out_w = grad.shape[-2:]
    if any(type(extent) is not int and not (type(out) is int and out == 1) for extent, out in ((h, out_h), (w, out_w))):
        wide = widen(grad)  # whether windows overlap is decided when the graph runs
        return cast(_shares(out_h, h, wide).t() @ wide @ _shares(out_w, w, wide), grad.dtype)
    if x.numel() == 0 or h % out_h or w % out_w:
        return NotImplemented
    kh, kw = h // out_h, w // out_w
    lead = list(grad.shape[:-2])
    share = grad / (kh * kw)
    spread = share.reshape([*lead, out_h, 1, out_w, 1]).expand([*lead, out_h, kh, out_w, kw])
    return torch.clone(spread, memory_format=torch.contiguous_format).reshape(x.shape)


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
    for number in range(axes):
        before, after = padding[2 * number], padding[2 * number + 1]
        if before == after == 0:
            continue
        axis = x.dim() - 1 - number
        extent = x.shape[axis]
        length = extent + before + after
        place = _reflected(length, extent, before, x.device) if reflect else _clamped(length, extent, before, x.device)
        x = torch.ops.aten.index.Tensor(x, [*[None] * axis, place])
    return torch.clone(x)


def _fits(x: Tensor, padding: list[int], axes: int) -> bool:
    pads_fit = all(0 <= side < x.shape[x.dim() - 1 - number // 2] for number, side in enumerate(padding))
    return x.numel() > 0 and len(padding) == 2 * axes and pads_fit


@decomposition(aten.reflection_pad1d.default)
def reflection_pad1d(x: Tensor, padding: list[int]) -> Tensor:
    return _pad(x, padding, 1, True) if _fits(x, padding, 1) else NotImplemented


@decomposition(aten.reflection_pad2d.default)
def reflection_pad2d(x: Tensor, padding: list[int]) -> Tensor:
    return _pad(x, padding, 2, True) if _fits(x, padding, 2) else NotImplemented


@decomposition(aten.reflection_pad3d.default)
def reflection_pad3d(x: Tensor, padding: list[int]) -> Tensor:
    return _pad(x, padding, 3, True) if _fits(x, padding, 3) else NotImplemented


@decomposition(aten.replication_pad1d.default)
def replication_pad1d(x: Tensor, padding: list[int]) -> Tensor:
    return _pad(x, padding, 1, False) if x.numel() and min(padding) >= 0 else NotImplemented


@decomposition(aten.replication_pad2d.default)
def replication_pad2d(x: Tensor, padding: list[int]) -> Tensor:
    return _pad(x, padding, 2, False) if x.numel() and min(padding) >= 0 else NotImplemented


@decomposition(aten.replication_pad3d.default)
def replication_pad3d(x: Tensor, padding: list[int]) -> Tensor:
    return _pad(x, padding, 3, False) if x.numel() and min(padding) >= 0 else NotImplemented


@decomposition(aten.upsample_nearest2d.default)
def upsample_nearest2d(x: Tensor, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    h, w = x.shape[-2:]
    # integer factors only: there the source is exact whatever the rounding of the scale
    if x.numel() == 0 or output_size[0] % h or output_size[1] % w or not x.is_contiguous():
        return NotImplemented
    if (scales_h or output_size[0] / h) != output_size[0] / h or (scales_w or output_size[1] / w) != output_size[1] / w:
        return NotImplemented
    for axis, factor in ((x.dim() - 2, output_size[0] // h), (x.dim() - 1, output_size[1] // w)):
        place = torch.arange(x.shape[axis] * factor, dtype=torch.int64, device=x.device) // factor
        x = torch.ops.aten.index.Tensor(x, [*[None] * axis, place])
    return x
