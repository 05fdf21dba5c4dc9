"""Upsampling (nearest, linear along one to three axes, bicubic, antialiased), forward and backward.

Along each axis a position of the result is a weighted sum of a few positions of the operand, its *taps*. What flows back to a position
of the operand comes from the results whose taps it is among. These lie side by side: where the sizes are known they are gathered, by
as many terms as the most such results of a position; where the sizes are symbolic they are scattered.

Positions and weights are computed in float32, as ATen's UpSample.h has them.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.axes import along, number_like, picked
from fxloom_decomp.libraries import may_reorder_sums, on_cpu_library
from fxloom_decomp.registry import cast, decomposition, widen

aten = torch.ops.aten


def _library_is_faster(x: Tensor) -> bool:
    """On the CPU eager's forward kernels take 0.3 to 0.8 of the time of ours (cubic ones aside), its backward ones 2 to 9 times as long."""
    return on_cpu_library(x)


def _number(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def _step(extent: Any, out: Any, scale: float | None) -> Any:
    """How far apart two positions of the result lie in the operand; scale: what was asked for, in place of the sizes."""
    return 1.0 / scale if scale is not None and scale > 0 else extent / out


# ---- along one axis ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """How `out` positions are made of `extent`.

    taps: for positions of the result (int64, of any shape) their positions in the operand and the weights of these; a weight of
    None is 1. reach: first and last tap of one position, in plain numbers; None where the sizes are symbolic. spacing: how many
    positions of the result come to one of the operand, as a fraction.
    """

    extent: Any
    out: Any
    taps: Callable[[Tensor], list[tuple[Tensor, Tensor | None]]]
    reach: Callable[[int], tuple[int, int]] | None
    spacing: tuple[int, int] = (1, 1)


def _resampled(x: Tensor, number: int, axis: _Axis) -> Tensor:
    terms = []
    for place, weight in axis.taps(torch.arange(axis.out, dtype=torch.int64, device=x.device)):
        term = picked(x, number, place)
        terms.append(term if weight is None else along(weight, number, x.dim()) * term)
    return functools.reduce(torch.add, terms)


#: results that share a position of the operand, as far as they are written out one by one
_MOST_TERMS = 8


def _returned(grad: Tensor, number: int, axis: _Axis) -> Tensor:
    """What flows back along an axis: the adjoint of `_resampled`."""
    if axis.reach is None:
        return _scattered_back(grad, number, axis)
    count, of = axis.spacing
    first, last = [axis.out] * axis.extent, [-1] * axis.extent
    for position in range(axis.out):
        low, high = axis.reach(position)
        for place in range(low, high + 1):
            first[place], last[place] = min(first[place], position), max(last[place], position)
    read = [place for place in range(axis.extent) if last[place] >= 0]
    early = max((place * count // of - first[place] for place in read), default=0)
    terms = max((last[place] - place * count // of for place in read), default=0) + early + 1
    line = torch.arange(axis.extent, dtype=torch.int64, device=grad.device)
    start = torch.div(line * count, of, rounding_mode="floor") - early
    zero = number_like(0, grad)

    def shares(position: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Positions held inside, the weights of `place` among their taps, and whether it is one of them."""
        held = torch.clamp(position, 0, axis.out - 1)
        weight, among = zero, torch.full((), False, dtype=torch.bool, device=grad.device)
        for tap, share in axis.taps(held):
            here = tap == place
            among = among | here
            weight = weight + torch.where(here, number_like(1, grad) if share is None else share, zero)
        return held, weight, among & (position == held)

    if terms <= _MOST_TERMS:
        found = []
        for term in range(terms):
            held, weight, among = shares(start + term, line)
            value = picked(grad, number, held) * along(weight, number, grad.dim())
            found.append(torch.where(along(among, number, grad.dim()), value, zero))
        return functools.reduce(torch.add, found)
    span = torch.arange(terms, dtype=torch.int64, device=grad.device)
    held, weight, among = shares(torch.unsqueeze(start, 1) + span, torch.unsqueeze(line, 1))
    shape = [axis.extent, terms, *[1] * (grad.dim() - 1 - number)]
    value = torch.where(among.reshape(shape), picked(grad, number, held) * weight.reshape(shape), zero)
    return torch.sum(value, [number + 1])


def _scattered_back(grad: Tensor, number: int, axis: _Axis) -> Tensor:
    shape = [*grad.shape]
    shape[number] = axis.extent
    total = torch.full(shape, 0, dtype=grad.dtype, device=grad.device)
    for place, weight in axis.taps(torch.arange(axis.out, dtype=torch.int64, device=grad.device)):
        value = grad if weight is None else along(weight, number, grad.dim()) * grad
        total = aten.index_put.default(total, [*[None] * number, place], value, True)
    return total


def _forward(x: Tensor, size: Sequence[Any], axis_of: Callable[[int, Any, Any], _Axis | None]) -> Any:
    """axis_of: from the number of a resampled axis and its sizes in the operand and the result."""
    lead = x.dim() - len(size)
    axes = [axis_of(number, x.shape[lead + number], out) for number, out in enumerate(size)]
    given, x = x.dtype, widen(x)
    for number in reversed(range(len(size))):  # the innermost axis first, as in eager's sums
        axis = axes[number]
        if axis is None:
            return NotImplemented
        x = _resampled(x, lead + number, axis)
    return cast(x, given)


def _backward(grad: Tensor, size: Sequence[Any], axis_of: Callable[[int, Any, Any], _Axis | None]) -> Any:
    lead = grad.dim() - len(size)
    axes = [axis_of(number, extent, grad.shape[lead + number]) for number, extent in enumerate(size)]
    given, grad = grad.dtype, widen(grad)
    for number, axis in enumerate(axes):
        if axis is None:
            return NotImplemented
        grad = _returned(grad, lead + number, axis)
    return cast(grad, given)


def _static(*sizes: Any) -> bool:
    return all(type(size) is int for size in sizes)


# ---- nearest ----------------------------------------------------------------------------------------------------------------


def _nearest_axis(extent: Any, out: Any, scale: float | None, centre: float, device: torch.device) -> _Axis:
    """centre: what part of a position its number stands for, 0 or a half."""
    step = _step(extent, out, scale)

    def taps(position: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        line = cast(position, torch.float32)
        place = cast(torch.floor((line + centre if centre else line) * _number(step, torch.float32, device)), torch.int64)
        return [(torch.clamp(place, max=extent - 1), None)]

    if not _static(extent, out):
        return _Axis(extent, out, taps, None)
    rounded = ctypes.c_float(step).value

    def reach(position: int) -> tuple[int, int]:
        place = min(math.floor(ctypes.c_float((position + centre) * rounded).value), extent - 1)
        return place, place

    return _Axis(extent, out, taps, reach, (out, extent))


def _nearest(x: Tensor, size: Sequence[Any], scales: Sequence[float | None], centre: float) -> Any:
    if _library_is_faster(x) or not all(x.shape[-len(size) :]) or not all(size):
        return NotImplemented
    lead = x.dim() - len(size)
    for number, out in enumerate(size):
        x = _resampled(x, lead + number, _nearest_axis(x.shape[lead + number], out, scales[number], centre, x.device))
    return x


def _nearest_backward(grad: Tensor, input_size: Sequence[Any], scales: Sequence[float | None], centre: float) -> Any:
    size = input_size[2:]
    if not may_reorder_sums(grad.dtype) or not all(grad.shape) or not all(size):
        return NotImplemented
    return _backward(grad, size, lambda number, extent, out: _nearest_axis(extent, out, scales[number], centre, grad.device))


def _three(scales: Sequence[float | None], named: dict[str, float | None]) -> list[float | None]:
    given = [*scales, *[None] * (3 - len(scales))]
    return [named.get(name, value) for name, value in zip(("scales_d", "scales_h", "scales_w"), given, strict=True)]


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


@decomposition(aten.upsample_nearest1d_backward.default)
def upsample_nearest1d_backward(grad: Tensor, output_size: list[int], input_size: list[int], scales: float | None = None) -> Tensor:
    return _nearest_backward(grad, input_size, [scales], 0.0)


@decomposition(aten.upsample_nearest2d_backward.default)
def upsample_nearest2d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return _nearest_backward(grad, input_size, [scales_h, scales_w], 0.0)


@decomposition(aten.upsample_nearest3d_backward.default)
def upsample_nearest3d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], *scales: float | None, **named: float | None
) -> Tensor:
    return _nearest_backward(grad, input_size, _three(scales, named), 0.0)


@decomposition(aten._upsample_nearest_exact1d_backward.default)
def upsample_nearest_exact1d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], scales: float | None = None
) -> Tensor:
    return _nearest_backward(grad, input_size, [scales], 0.5)


@decomposition(aten._upsample_nearest_exact2d_backward.default)
def upsample_nearest_exact2d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return _nearest_backward(grad, input_size, [scales_h, scales_w], 0.5)


@decomposition(aten._upsample_nearest_exact3d_backward.default)
def upsample_nearest_exact3d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], *scales: float | None, **named: float | None
) -> Tensor:
    return _nearest_backward(grad, input_size, _three(scales, named), 0.5)


# ---- linear and cubic -------------------------------------------------------------------------------------------------------


def _sources(extent: Any, out: Any, align_corners: bool, scale: float | None) -> tuple[Any, float]:
    """(step, half) that tell where a position of the result lies among those of the operand: (position + half) * step - half."""
    if align_corners:
        return (extent - 1) / (out - 1) if out > 1 else 0.0, 0.0
    return _step(extent, out, scale), 0.5


def _source(position: Tensor, step: Any, half: float, dtype: torch.dtype) -> Tensor:
    line = cast(position, dtype)
    step = _number(step, dtype, position.device)
    return (line + half) * step - half if half else line * step


def _spacing(extent: int, out: int, align_corners: bool) -> tuple[int, int]:
    return (out - 1, extent - 1) if align_corners and extent > 1 and out > 1 else (out, extent)


def _linear_axis(extent: Any, out: Any, align_corners: bool, scale: float | None, dtype: torch.dtype) -> _Axis:
    step, half = _sources(extent, out, align_corners, scale)

    def taps(position: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        source = torch.clamp(_source(position, step, half, dtype), min=0.0)
        low = torch.clamp(cast(source, torch.int64), max=extent - 1)
        share = torch.clamp(source - cast(low, dtype), 0.0, 1.0)
        return [(low, 1 - share), (torch.clamp(low + 1, max=extent - 1), share)]

    if not _static(extent, out):
        return _Axis(extent, out, taps, None)

    def reach(position: int) -> tuple[int, int]:
        low = min(int(max((position + half) * step - half, 0)), extent - 1)
        return low, min(low + 1, extent - 1)

    return _Axis(extent, out, taps, reach, _spacing(extent, out, align_corners))


#: of the cubic convolution, Keys 1981; ATen's choice
_A = -0.75


def _near(d: Tensor, a: float = _A) -> Tensor:
    """The cubic convolution at a distance of at most 1."""
    return ((a + 2) * d - (a + 3)) * d * d + 1


def _far(d: Tensor, a: float = _A) -> Tensor:
    """The cubic convolution at a distance from 1 to 2."""
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the four positions around one that lies `t` after the second of them."""
    return [_far(t + 1), _near(t), _near(1 - t), _far(2 - t)]


def cubic_slopes(t: Tensor) -> list[Tensor]:
    """How the weights change as `t` grows."""

    def near(d: Tensor) -> Tensor:
        return (3 * (_A + 2) * d - 2 * (_A + 3)) * d

    def far(d: Tensor) -> Tensor:
        return (3 * _A * d - 10 * _A) * d + 8 * _A

    return [far(t + 1), near(t), -near(1 - t), -far(2 - t)]


def _cubic_axis(extent: Any, out: Any, align_corners: bool, scale: float | None, dtype: torch.dtype) -> _Axis:
    step, half = _sources(extent, out, align_corners, scale)

    def taps(position: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        source = _source(position, step, half, dtype)
        whole = torch.floor(source)
        first = cast(whole, torch.int64) - 1
        weights = cubic_weights(source - whole)
        return [(torch.clamp(first + place, 0, extent - 1), weight) for place, weight in enumerate(weights)]

    if not _static(extent, out):
        return _Axis(extent, out, taps, None)

    def reach(position: int) -> tuple[int, int]:
        first = math.floor((position + half) * step - half) - 1
        return min(max(first, 0), extent - 1), max(min(first + 3, extent - 1), 0)

    return _Axis(extent, out, taps, reach, _spacing(extent, out, align_corners))


#: positions that an antialiased result is made of, as far as they are written out
_MOST_TAPS = 32


def _triangle(d: Tensor) -> Tensor:
    return torch.clamp(1 - torch.abs(d), min=0.0)


def _wide_cubic(d: Tensor) -> Tensor:
    """The cubic convolution with -0.5, as Pillow has it."""
    d = torch.abs(d)
    return torch.where(d < 1, _near(d, -0.5), torch.where(d < 2, _far(d, -0.5), number_like(0, d)))


def _lanczos(d: Tensor) -> Tensor:
    """sinc(d) sinc(d / 3) within a distance of 3."""
    return torch.where(torch.abs(d) < 3, torch.sinc(d) * torch.sinc(d / 3), number_like(0, d))


def _antialiased_axis(
    extent: Any, out: Any, align_corners: bool, scale: float | None, dtype: torch.dtype, width: float, filtered: Callable[[Tensor], Tensor]
) -> _Axis | None:
    """A filter that is stretched by the distance of two results, where that is more than 1. width: how far it reaches, unstretched."""
    if not _static(extent, out):
        return None
    step = _sources(extent, out, align_corners, scale)[0]
    stretch = max(step, 1.0)
    support = width * stretch
    count = math.ceil(support) * 2 + 1
    if count > _MOST_TAPS:
        return None

    def taps(position: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        centre = (cast(position, dtype) + 0.5) * _number(step, dtype, position.device)
        first = torch.clamp(cast(centre - support + 0.5, torch.int64), min=0)
        last = torch.clamp(cast(centre + support + 0.5, torch.int64), max=extent)
        weights = []
        for number in range(count):
            place = first + number
            weight = filtered((cast(place, dtype) - centre + 0.5) * (1 / stretch))
            weights.append(torch.where(place < last, weight, number_like(0, weight)))
        total = functools.reduce(torch.add, weights)
        return [(torch.clamp(first + number, max=extent - 1), weight / total) for number, weight in enumerate(weights)]

    def reach(position: int) -> tuple[int, int]:
        centre = (position + 0.5) * step
        first = max(int(centre - support + 0.5), 0)
        return min(first, extent - 1), min(max(int(centre + support + 0.5) - 1, first), extent - 1)

    return _Axis(extent, out, taps, reach, _spacing(extent, out, align_corners))


AxisMaker = Callable[[Any, Any, bool, "float | None", torch.dtype], "_Axis | None"]


def _upsample(make: AxisMaker, x: Tensor, size: Sequence[Any], align_corners: bool, scales: Sequence[float | None]) -> Any:
    if not may_reorder_sums(x.dtype) or not all(x.shape[-len(size) :]) or not all(size):
        return NotImplemented
    dtype = widen(x).dtype
    return _forward(x, size, lambda number, extent, out: make(extent, out, align_corners, scales[number], dtype))


def _upsample_backward(
    make: AxisMaker, grad: Tensor, input_size: Sequence[Any], align_corners: bool, scales: Sequence[float | None]
) -> Any:
    size = input_size[2:]
    if not may_reorder_sums(grad.dtype) or not all(grad.shape) or not all(size):
        return NotImplemented
    dtype = widen(grad).dtype
    return _backward(grad, size, lambda number, extent, out: make(extent, out, align_corners, scales[number], dtype))


@decomposition(aten.upsample_linear1d.default)
def upsample_linear1d(x: Tensor, output_size: list[int], align_corners: bool, scales: float | None = None) -> Tensor:
    return NotImplemented if _library_is_faster(x) else _upsample(_linear_axis, x, output_size, align_corners, [scales])


@decomposition(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return NotImplemented if _library_is_faster(x) else _upsample(_linear_axis, x, output_size, align_corners, [scales_h, scales_w])


@decomposition(aten.upsample_trilinear3d.default)
def upsample_trilinear3d(
    x: Tensor, output_size: list[int], align_corners: bool, *scales: float | None, **named: float | None
) -> Tensor:
    return NotImplemented if _library_is_faster(x) else _upsample(_linear_axis, x, output_size, align_corners, _three(scales, named))


@decomposition(aten.upsample_bicubic2d.default)
def upsample_bicubic2d(
    x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return _upsample(_cubic_axis, x, output_size, align_corners, [scales_h, scales_w])


_triangle_axis = functools.partial(_antialiased_axis, width=1.0, filtered=_triangle)
_wide_cubic_axis = functools.partial(_antialiased_axis, width=2.0, filtered=_wide_cubic)
_lanczos_axis = functools.partial(_antialiased_axis, width=3.0, filtered=_lanczos)


@decomposition(aten._upsample_bilinear2d_aa.default)
def upsample_bilinear2d_aa(
    x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return NotImplemented if _library_is_faster(x) else _upsample(_triangle_axis, x, output_size, align_corners, [scales_h, scales_w])


@decomposition(aten._upsample_bicubic2d_aa.default)
def upsample_bicubic2d_aa(
    x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
) -> Tensor:
    return NotImplemented if _library_is_faster(x) else _upsample(_wide_cubic_axis, x, output_size, align_corners, [scales_h, scales_w])


@decomposition(aten.upsample_linear1d_backward.default)
def upsample_linear1d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, scales: float | None = None
) -> Tensor:
    return _upsample_backward(_linear_axis, grad, input_size, align_corners, [scales])


@decomposition(aten.upsample_trilinear3d_backward.default)
def upsample_trilinear3d_backward(
    grad: Tensor, output_size: list[int], input_size: list[int], align_corners: bool, *scales: float | None, **named: float | None
) -> Tensor:
    return _upsample_backward(_linear_axis, grad, input_size, align_corners, _three(scales, named))


def _planes_backward(make: AxisMaker) -> Callable[..., Tensor]:
    def rule(
        grad: Tensor,
        output_size: list[int],
        input_size: list[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return _upsample_backward(make, grad, input_size, align_corners, [scales_h, scales_w])  # type: ignore[no-any-return]  # a tensor

    return rule


decomposition(aten.upsample_bilinear2d_backward.default)(_planes_backward(_linear_axis))
decomposition(aten.upsample_bicubic2d_backward.default)(_planes_backward(_cubic_axis))
decomposition(aten._upsample_bilinear2d_aa_backward.default)(_planes_backward(_triangle_axis))
decomposition(aten._upsample_bicubic2d_aa_backward.default)(_planes_backward(_wide_cubic_axis))
if hasattr(aten, "_upsample_lanczos2d_aa"):  # from torch 2.13 on

    @decomposition(aten._upsample_lanczos2d_aa.default)
    def upsample_lanczos2d_aa(
        x: Tensor, output_size: list[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        return NotImplemented if _library_is_faster(x) else _upsample(_lanczos_axis, x, output_size, align_corners, [scales_h, scales_w])

    decomposition(aten._upsample_lanczos2d_aa_backward.default)(_planes_backward(_lanczos_axis))
