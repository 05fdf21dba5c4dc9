"""Upsampling: nearest, linear along one to three axes, bicubic; each axis is a weighted choice of positions.

Positions and weights are computed as ATen's UpSample.h has them: in float32 for types up to that, in float64 for float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten


def _line(extent: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return cast(torch.arange(extent, dtype=torch.int64, device=device), dtype)


def _number(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def _picked(x: Tensor, axis: int, place: Tensor) -> Tensor:
    return aten._unsafe_index.Tensor(x, [*[None] * axis, place])  # type: ignore[no-any-return]  # a tensor


def _along(x: Tensor, axis: int, values: Tensor) -> Tensor:
    """A line of numbers beside `x`, along an axis of it."""
    return values.reshape([-1 if other == axis else 1 for other in range(x.dim())])


# ---- nearest ----------------------------------------------------------------------------------------------------------------


def _nearest(x: Tensor, size: Sequence[Any], scales: Sequence[float | None], centre: float) -> Any:
    """centre: what part of a position its number stands for, 0 or a half."""
    if not all(x.shape[-len(size) :]) or not all(size):
        return NotImplemented
    for number, (out, scale) in enumerate(zip(size, scales, strict=True)):
        axis = x.dim() - len(size) + number
        extent = x.shape[axis]
        step = _number(1.0 / scale if scale is not None and scale > 0 else extent / out, torch.float32, x.device)
        line = _line(out, torch.float32, x.device)
        place = cast(torch.floor((line + centre if centre else line) * step), torch.int64)
        x = _picked(x, axis, torch.clamp(place, max=extent - 1))
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
    step = 1.0 / scale if scale is not None and scale > 0 else extent / out
    return (line + 0.5) * _number(step, dtype, x.device) - 0.5


def _linear(x: Tensor, size: Sequence[Any], align_corners: bool, scales: Sequence[float | None]) -> Any:
    if not x.dtype.is_floating_point or not all(x.shape[-len(size) :]) or not all(size):
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
        share = _along(x, axis, share)
        x = (1 - share) * _picked(x, axis, low) + share * _picked(x, axis, high)
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
    if not x.dtype.is_floating_point or not all(x.shape[-2:]) or not all(output_size):
        return NotImplemented
    given, x = x.dtype, widen(x)
    for axis, out, scale in ((x.dim() - 1, output_size[1], scales_w), (x.dim() - 2, output_size[0], scales_h)):
        extent = x.shape[axis]
        source = _sources(x, extent, out, align_corners, scale)
        whole = torch.floor(source)
        first = cast(whole, torch.int64) - 1
        weights = _cubic_weights(source - whole)
        terms = [
            _picked(x, axis, torch.clamp(first + place, 0, extent - 1)) * _along(x, axis, weight)
            for place, weight in enumerate(weights)
        ]
        x = terms[0] + terms[1] + terms[2] + terms[3]
    return cast(x, given)
