"""Upsampling (nearest, linear along one to three axes, bicubic) and sampling at the points of a grid.

Each axis is a weighted choice of positions.

Positions and weights are computed in float32, as ATen's UpSample.h has them.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.axes import along, picked
from fxloom_decomp.registry import REORDERED_SUMS, cast, decomposition, widen

aten = torch.ops.aten


def _library_is_faster(x: Tensor) -> bool:
    """On the CPU eager's kernels take a third to two thirds of the time of gathers that we compile (cubic ones aside)."""
    return x.device.type == "cpu"


def _line(extent: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return cast(torch.arange(extent, dtype=torch.int64, device=device), dtype)


def _number(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def _step(extent: Any, out: Any, scale: float | None) -> Any:
    """How far apart two positions of the result lie in the operand; scale: what was asked for, in place of the sizes."""
    return 1.0 / scale if scale is not None and scale > 0 else extent / out


# ---- nearest ----------------------------------------------------------------------------------------------------------------


def _nearest(x: Tensor, size: Sequence[Any], scales: Sequence[float | None], centre: float) -> Any:
    """centre: what part of a position its number stands for, 0 or a half."""
    if _library_is_faster(x) or not all(x.shape[-len(size) :]) or not all(size):
        return NotImplemented
    for number, (out, scale) in enumerate(zip(size, scales, strict=True)):
        axis = x.dim() - len(size) + number
        extent = x.shape[axis]
        step = _number(_step(extent, out, scale), torch.float32, x.device)
        line = _line(out, torch.float32, x.device)
        place = cast(torch.floor((line + centre if centre else line) * step), torch.int64)
        x = picked(x, axis, torch.clamp(place, max=extent - 1))
    return x


@decomposition(aten.upsample_nearest1d.default)
def upsample_nearest1d(x: Tensor, output_size: list[int], scales: float | None = None) -> Tensor:
    return _nearest(x, output_size, [scales], 0.0)


@decomposition(aten.upsample_nearest2d.default)
def upsample_nearest2d(x: Tensor, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
    return _nearest(x, output_size, [scales_h, scales_w], 0.0)


@decomposition(aten.upsample_nearest3d.default)
def upsample_nearest3d(x: Tensor, output_size: list[int], *scales: float | None, **named: float | None) -> Tensor:
    return _nearest(x, output_size, _three(scales, named), 0.0)


@decomposition(aten._upsample_nearest_exact1d.default)
def upsample_nearest_exact1d(x: Tensor, output_size: list[int], scales: float | None = None) -> Tensor:
    return _nearest(x, output_size, [scales], 0.5)


@decomposition(aten._upsample_nearest_exact2d.default)
def upsample_nearest_exact2d(
    x: Tensor, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return _nearest(x, output_size, [scales_h, scales_w], 0.5)


@decomposition(aten._upsample_nearest_exact3d.default)
def upsample_nearest_exact3d(x: Tensor, output_size: list[int], *scales: float | None, **named: float | None) -> Tensor:
    return _nearest(x, output_size, _three(scales, named), 0.5)


def _three(scales: Sequence[float | None], named: dict[str, float | None]) -> list[float | None]:
    given = [*scales, *[None] * (3 - len(scales))]
    return [named.get(name, value) for name, value in zip(("scales_d", "scales_h", "scales_w"), given, strict=True)]


# ---- linear and cubic -------------------------------------------------------------------------------------------------------


def _sources(x: Tensor, extent: Any, out: Any, align_corners: bool, scale: float | None) -> Tensor:
    """Where each position of the result lies among those of the operand, as a float."""
    dtype = x.dtype
    line = _line(out, dtype, x.device)
    if align_corners:
        return line * _number((extent - 1) / (out - 1) if out > 1 else 0.0, dtype, x.device)
    return (line + 0.5) * _number(_step(extent, out, scale), dtype, x.device) - 0.5


def _linear(x: Tensor, size: Sequence[Any], align_corners: bool, scales: Sequence[float | None]) -> Any:
    if _library_is_faster(x) or x.dtype not in REORDERED_SUMS or not all(x.shape[-len(size) :]) or not all(size):
        return NotImplemented
    given, x = x.dtype, widen(x)
    for number in reversed(range(len(size))):  # the innermost axis first, as in eager's sums
        axis = x.dim() - len(size) + number
        extent = x.shape[axis]
        source = _sources(x, extent, size[number], align_corners, scales[number])
        source = torch.clamp(source, min=0.0)
        low = torch.clamp(cast(source, torch.int64), max=extent - 1)
        high = torch.clamp(low + 1, max=extent - 1)
        share = torch.clamp(source - cast(low, source.dtype), 0.0, 1.0)
        share = along(share, axis, x.dim())
        x = (1 - share) * picked(x, axis, low) + share * picked(x, axis, high)
    return cast(x, given)


@decomposition(aten.upsample_linear1d.default)
def upsample_linear1d(x: Tensor, output_size: list[int], align_corners: bool, scales: float | None = None) -> Tensor:
    return _linear(x, output_size, align_corners, [scales])


@decomposition(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return _linear(x, output_size, align_corners, [scales_h, scales_w])


@decomposition(aten.upsample_trilinear3d.default)
def upsample_trilinear3d(
    x: Tensor, output_size: list[int], align_corners: bool, *scales: float | None, **named: float | None
) -> Tensor:
    return _linear(x, output_size, align_corners, _three(scales, named))


#: of the cubic convolution, Keys 1981; ATen's choice
_A = -0.75


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the four positions around one that lies `t` after the second of them."""

    def near(d: Tensor) -> Tensor:
        return ((_A + 2) * d - (_A + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


@decomposition(aten.upsample_bicubic2d.default)
def upsample_bicubic2d(
    x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    if x.dtype not in REORDERED_SUMS or not all(x.shape[-2:]) or not all(output_size):
        return NotImplemented
    given, x = x.dtype, widen(x)
    for axis, out, scale in ((x.dim() - 1, output_size[1], scales_w), (x.dim() - 2, output_size[0], scales_h)):
        extent = x.shape[axis]
        source = _sources(x, extent, out, align_corners, scale)
        whole = torch.floor(source)
        first = cast(whole, torch.int64) - 1
        weights = _cubic_weights(source - whole)
        terms = [
            picked(x, axis, torch.clamp(first + place, 0, extent - 1)) * along(weight, axis, x.dim())
            for place, weight in enumerate(weights)
        ]
        x = terms[0] + terms[1] + terms[2] + terms[3]
    return cast(x, given)


# ---- sampling at the points of a grid -------------------------------------------------------------------------------------

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _in_positions(point: Tensor, extent: int, align_corners: bool) -> Tensor:
    """From [-1, 1] to positions."""
    return (point + 1) / 2 * (extent - 1) if align_corners else ((point + 1) * extent - 1) / 2


def _within(position: Tensor, extent: int, padding: int, align_corners: bool) -> Tensor:
    """Positions outside held at the border or reflected, by what the padding says."""
    if padding == _ZEROS:
        return position
    if padding == _REFLECTION:
        low, high = (0, 2 * (extent - 1)) if align_corners else (-1, 2 * extent - 1)
        if low == high:
            return torch.zeros_like(position)
        start, span = low / 2, (high - low) / 2
        away = torch.abs(position - start)
        rest = torch.fmod(away, span)
        even = torch.floor(away / span) % 2 == 0
        position = torch.where(even, rest + start, span - rest + start)
    return torch.clamp(position, 0, extent - 1)


def _sample(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, axes: int) -> Any:
    extents = x.shape[-axes:]
    if _library_is_faster(x):
        return NotImplemented
    if x.dim() != axes + 2 or grid.dim() != axes + 2 or grid.shape[-1] != axes or x.dtype != grid.dtype or mode not in (0, 1):
        return NotImplemented
    if x.dtype not in REORDERED_SUMS or not x.numel() or not grid.numel() or any(type(extent) is not int for extent in x.shape):
        return NotImplemented
    wide, points = widen(x), widen(grid)
    # the grid names the innermost axis first
    places = [
        _within(_in_positions(torch.select(points, -1, axes - 1 - n), extents[n], align_corners), extents[n], padding, align_corners)
        for n in range(axes)
    ]
    batch = torch.arange(x.shape[0], dtype=torch.int64, device=x.device).reshape([-1, *[1] * axes])

    def at_corner(corner: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The channels at a corner, as the last axis, and where it lies inside."""
        inside = torch.full((), True, dtype=torch.bool, device=x.device)
        held = []
        for position, extent in zip(corner, extents, strict=True):
            inside = inside & (position >= 0) & (position <= extent - 1)
            held.append(cast(torch.clamp(torch.where(torch.isnan(position), 0.0, position), 0, extent - 1), torch.int64))
        last = torch.permute(wide, [0, *range(2, axes + 2), 1])
        return aten._unsafe_index.Tensor(last, [batch, *held]), inside

    zero = torch.full((), 0, dtype=wide.dtype, device=x.device)
    if mode == _NEAREST:
        value, inside = at_corner([torch.round(place) for place in places])
        total = torch.where(torch.unsqueeze(inside, -1), value, zero)
    else:
        lows = [torch.floor(place) for place in places]
        total = zero
        for number in range(2**axes):
            sides = [(number >> (axes - 1 - n)) & 1 for n in range(axes)]
            corner = [low + side if side else low for low, side in zip(lows, sides, strict=True)]
            weight = torch.full((), 1, dtype=wide.dtype, device=x.device)
            for place, low, side in zip(places, lows, sides, strict=True):
                weight = weight * (place - low if side else low + 1 - place)
            value, inside = at_corner(corner)
            total = total + torch.where(torch.unsqueeze(inside, -1), value * torch.unsqueeze(weight, -1), zero)
    return cast(torch.permute(total, [0, axes + 1, *range(1, axes + 1)]), x.dtype)


@decomposition(aten.grid_sampler_2d.default)
def grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sample(x, grid, interpolation_mode, padding_mode, align_corners, 2)


@decomposition(aten.grid_sampler_3d.default)
def grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sample(x, grid, interpolation_mode, padding_mode, align_corners, 3)
