"""Sampling at the points of a grid: nearest, linear along two or three axes, bicubic; grids of affine maps; forward and backward.

A point is a weighted sum of corners around it. What flows back to a corner is scattered; what flows back to a point is the sum over
the channels of how each changes as the point moves.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.axes import number_like
from fxloom_decomp.libraries import may_reorder_sums, on_cpu_library
from fxloom_decomp.registry import cast, decomposition, widen
from fxloom_decomp.resampling import cubic_slopes, cubic_weights

aten = torch.ops.aten

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _library_is_faster(x: Tensor) -> bool:
    """On the CPU eager's forward kernels take 0.3 to 0.8 of the time of ours, its backward ones about the same."""
    return on_cpu_library(x)


# ---- where points lie -------------------------------------------------------------------------------------------------------


def _in_positions(point: Tensor, extent: int, align_corners: bool) -> Tensor:
    """From [-1, 1] to positions."""
    return (point + 1) / 2 * (extent - 1) if align_corners else ((point + 1) * extent - 1) / 2


def _reflected(position: Tensor, extent: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """(position reflected at the borders, its slope: 1, -1, or 0 where all positions are one)."""
    low, high = (0, 2 * (extent - 1)) if align_corners else (-1, 2 * extent - 1)
    if low == high:
        return torch.zeros_like(position), torch.zeros_like(position)
    start, span = low / 2, (high - low) / 2
    distance = position - start
    away = torch.abs(distance)
    rest = torch.fmod(away, span)
    even = torch.floor(away / span) % 2 == 0
    one = number_like(1, position)
    slope = torch.where(distance < 0, -one, one) * torch.where(even, one, -one)
    return torch.where(even, rest + start, span - rest + start), slope


def _within(position: Tensor, extent: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """(position held at the border or reflected, by what the padding says, its slope)."""
    slope = number_like(1, position)
    if padding == _ZEROS:
        return position, slope
    if padding == _REFLECTION:
        position, slope = _reflected(position, extent, align_corners)
    outside = (position <= 0) | (position >= extent - 1)
    return torch.clamp(position, 0, extent - 1), torch.where(outside, number_like(0, slope), slope)


# ---- corners ----------------------------------------------------------------------------------------------------------------


class _Points:
    """Points of a grid in an image: the corners around them, read and written.

    x: (batch, channels, *extents); grid: (batch, *shape, axes), which names the innermost axis first.
    """

    def __init__(self, x: Tensor, grid: Tensor, padding: int, align_corners: bool) -> None:
        self.axes = grid.shape[-1]
        self.extents = [*x.shape[2:]]
        self.padding, self.align_corners = padding, align_corners
        self.x, points = widen(x), widen(grid)
        #: in positions, outermost axis first
        self.given = [
            _in_positions(torch.select(points, -1, self.axes - 1 - n), extent, align_corners) for n, extent in enumerate(self.extents)
        ]
        self.shape = [*grid.shape[1:-1]]

    def _line(self, extent: int, axis: int) -> Tensor:
        shape = [1] * (2 + len(self.shape))
        shape[axis] = -1
        return torch.arange(extent, dtype=torch.int64, device=self.x.device).reshape(shape)

    def corner(self, position: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Indices of all channels there, and whether the corner lies inside."""
        inside = torch.full((), True, dtype=torch.bool, device=self.x.device)
        held = []
        for place, extent in zip(position, self.extents, strict=True):
            inside = inside & (place >= 0) & (place <= extent - 1)
            place = torch.clamp(torch.where(torch.isnan(place), 0.0, place), 0, extent - 1)
            held.append(torch.unsqueeze(cast(place, torch.int64), 1))
        return [self._line(self.x.shape[0], 0), self._line(self.x.shape[1], 1), *held], torch.unsqueeze(inside, 1)

    def read(self, position: Sequence[Tensor]) -> Tensor:
        """(batch, channels, *shape), 0 outside."""
        index, inside = self.corner(position)
        return torch.where(inside, aten._unsafe_index.Tensor(self.x, index), number_like(0, self.x))

    def add(self, total: Tensor, position: Sequence[Tensor], value: Tensor) -> Tensor:
        """`total`, an image, with the values of all channels added at the corner, where it lies inside."""
        index, inside = self.corner(position)
        return aten.index_put.default(total, index, torch.where(inside, value, number_like(0, value)), True)  # type: ignore[no-any-return]

    def corners(self, mode: int) -> tuple[list[list[tuple[Tensor, Any, Any]]], list[Tensor]]:
        """For each axis the corners of the points as (position, weight, slope of the weight), and the slope of the position itself."""
        found: list[list[tuple[Tensor, Any, Any]]] = []
        slopes: list[Tensor] = []
        for position, extent in zip(self.given, self.extents, strict=True):
            scale = (extent - 1) / 2 if self.align_corners else extent / 2
            if mode == _BICUBIC:
                whole = torch.floor(position)
                t = position - whole
                places = [self._bounded(whole + (n - 1), extent) for n in range(4)]
                found.append(list(zip(places, cubic_weights(t), cubic_slopes(t), strict=True)))
                slopes.append(number_like(scale, position))
                continue
            held, slope = _within(position, extent, self.padding, self.align_corners)
            slopes.append(slope * scale)
            if mode == _NEAREST:
                found.append([(torch.round(held), None, None)])
            else:
                low = torch.floor(held)
                found.append([(low, low + 1 - held, -1), (low + 1, held - low, 1)])
        return found, slopes

    def _bounded(self, place: Tensor, extent: int) -> Tensor:
        """Of whole positions."""
        place = _within(place, extent, self.padding, self.align_corners)[0]
        return torch.round(place) if self.padding == _REFLECTION else place


def _product(weights: Sequence[Any]) -> Any:
    return torch.unsqueeze(functools.reduce(lambda a, b: a * b, weights), 1)


def _accepts(x: Tensor, grid: Tensor, mode: int, axes: int) -> bool:
    if x.dim() != axes + 2 or grid.dim() != axes + 2 or grid.shape[-1] != axes or x.dtype != grid.dtype:
        return False
    if mode not in (_BILINEAR, _NEAREST) and (mode != _BICUBIC or axes != 2):
        return False
    return may_reorder_sums(x.dtype) and bool(x.numel() > 0) and bool(grid.numel() > 0)


def _sample(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, axes: int) -> Any:
    if _library_is_faster(x) or not _accepts(x, grid, mode, axes):
        return NotImplemented
    points = _Points(x, grid, padding, align_corners)
    corners, _ = points.corners(mode)
    if mode == _NEAREST:
        return cast(points.read([axis[0][0] for axis in corners]), x.dtype)
    terms = [
        points.read([place for place, _, _ in corner]) * _product([weight for _, weight, _ in corner])
        for corner in itertools.product(*corners)
    ]
    return cast(functools.reduce(torch.add, terms), x.dtype)


def _sample_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, wanted: Sequence[bool], axes: int
) -> Any:
    if _library_is_faster(x) or not _accepts(x, grid, mode, axes) or grad.dtype != x.dtype:
        return NotImplemented
    points, flow = _Points(x, grid, padding, align_corners), widen(grad)
    corners, slopes = points.corners(mode)
    image = torch.full([*x.shape], 0, dtype=flow.dtype, device=x.device)
    moves = [torch.zeros_like(points.given[0])] * axes
    for corner in itertools.product(*corners):
        position = [place for place, _, _ in corner]
        if wanted[0]:
            value = flow if mode == _NEAREST else flow * _product([weight for _, weight, _ in corner])
            image = points.add(image, position, value)
        if wanted[1] and mode != _NEAREST:
            change = torch.sum(flow * points.read(position), [1])
            for n in range(axes):
                rate = functools.reduce(lambda a, b: a * b, [c[2] if m == n else c[1] for m, c in enumerate(corner)])
                moves[n] = moves[n] + change * rate
    moved = torch.stack([move * slope for move, slope in zip(reversed(moves), reversed(slopes), strict=True)], -1)
    return cast(image, x.dtype) if wanted[0] else None, cast(moved, grid.dtype) if wanted[1] else None


@decomposition(aten.grid_sampler_2d.default)
def grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sample(x, grid, interpolation_mode, padding_mode, align_corners, 2)


@decomposition(aten.grid_sampler_3d.default)
def grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sample(x, grid, interpolation_mode, padding_mode, align_corners, 3)


@decomposition(aten.grid_sampler_2d_backward.default)
def grid_sampler_2d_backward(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    return _sample_backward(grad, x, grid, interpolation_mode, padding_mode, align_corners, output_mask, 2)


@decomposition(aten.grid_sampler_3d_backward.default)
def grid_sampler_3d_backward(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    return _sample_backward(grad, x, grid, interpolation_mode, padding_mode, align_corners, output_mask, 3)


# ---- grids of affine maps ---------------------------------------------------------------------------------------------------


def _coordinates(size: Sequence[Any], align_corners: bool, like: Tensor) -> list[Tensor]:
    """From -1 to 1 along each axis of an image, the innermost axis first, each to be broadcast over the image."""
    lines = []
    for number, extent in enumerate(reversed(size)):
        if extent > 1:
            line = torch.linspace(-1, 1, extent, dtype=like.dtype, device=like.device)
            line = line if align_corners else line * ((extent - 1) / extent)
        else:
            line = torch.full([extent], 0, dtype=like.dtype, device=like.device)
        lines.append(line.reshape([extent, *[1] * number]))
    return lines


@decomposition(aten.affine_grid_generator.default)
def affine_grid_generator(theta: Tensor, size: list[int], align_corners: bool) -> Tensor:
    """theta: (batch, axes, axes + 1), a matrix beside a vector; a point for each position of an image of `size`."""
    axes = len(size) - 2
    if not may_reorder_sums(theta.dtype) or theta.dim() != 3 or axes not in (2, 3) or list(theta.shape) != [size[0], axes, axes + 1]:
        return NotImplemented
    wide = widen(theta)

    def column(number: int) -> Tensor:
        return torch.select(wide, 2, number).reshape([size[0], *[1] * axes, axes])

    total = column(axes)
    for number, line in enumerate(_coordinates(size[2:], align_corners, wide)):
        total = total + torch.unsqueeze(line, -1) * column(number)
    return cast(total, theta.dtype)
