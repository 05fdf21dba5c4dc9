"""Products of matrices, convolution, attention."""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.descriptor import Descriptor, is_empty
from fxloom_shapes.layout import (
    assume_equal,
    assume_size,
    broadcast,
    channels_last_stride,
    is_contiguous,
    same_size,
    suggests_channels_last,
)
from fxloom_shapes.propagate import Plan
from fxloom_shapes.rules.registry import fresh, shape_rule

aten = torch.ops.aten


def _product(a: Descriptor, b: Descriptor, rank: int) -> tuple[int, ...] | None:
    if len(a.size) != rank or len(b.size) != rank or a.dtype != b.dtype or a.dtype.is_complex:
        return None
    if not assume_equal(a.size[-1], b.size[-2]) or not all(map(assume_equal, a.size[:-2], b.size[:-2])):
        return None
    return (*a.size[:-1], b.size[-1])


def _covers(part: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """`part` can be broadcast to `size`."""
    common = broadcast(part, size)
    return common is not None and same_size(common, size)


@shape_rule(aten.mm.default)
def mm(device: torch.device, a: Any, b: Any) -> Plan | None:
    size = _product(a.desc, b.desc, 2)
    return None if size is None else fresh(size, a.desc.dtype, device)


@shape_rule(aten.bmm.default)
def bmm(device: torch.device, a: Any, b: Any) -> Plan | None:
    size = _product(a.desc, b.desc, 3)
    return None if size is None else fresh(size, a.desc.dtype, device)


@shape_rule(aten.addmm.default)
def addmm(device: torch.device, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
    size = _product(a.desc, b.desc, 2)
    if size is None or x.desc.dtype != a.desc.dtype or not _covers(x.desc.size, size):
        return None
    return fresh(size, a.desc.dtype, device)


@shape_rule(aten.baddbmm.default)
def baddbmm(device: torch.device, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Plan | None:
    size = _product(a.desc, b.desc, 3)
    if size is None or x.desc.dtype != a.desc.dtype or not _covers(x.desc.size, size):
        return None
    return fresh(size, a.desc.dtype, device)


@shape_rule(aten.convolution.default)
def convolution(
    device: torch.device,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Plan | None:
    a, w = x.desc, weight.desc
    rank = len(a.size) - 2
    if transposed or len(w.size) != len(a.size) or rank not in (1, 2, 3) or a.dtype != w.dtype or is_empty(a.size) or is_empty(w.size):
        return None
    if a.size[1] != w.size[1] * groups or w.size[0] % groups or not a.dtype.is_floating_point:
        return None
    if bias is not None and (bias.desc.size != (w.size[0],) or bias.desc.dtype != a.dtype):
        return None
    stride, padding, dilation = (_per_axis(value, rank) for value in (stride, padding, dilation))
    size = [a.size[0], w.size[0]]
    for axis in range(rank):
        reach = dilation[axis] * (w.size[axis + 2] - 1) + 1
        room = a.size[axis + 2] + 2 * padding[axis] - reach
        if stride[axis] <= 0 or not assume_size(room):
            return None
        size.append(room // stride[axis] + 1)
    if rank == 2 and suggests_channels_last(a):
        return fresh(size, a.dtype, device, channels_last_stride(tuple(size)))  # type: ignore[arg-type]  # four extents
    if not is_contiguous(a) or not is_contiguous(w) or suggests_channels_last(w):
        return None
    return fresh(size, a.dtype, device)


def _per_axis(value: Any, rank: int) -> list[int]:
    return list(value) * rank if len(value) == 1 else list(value)
