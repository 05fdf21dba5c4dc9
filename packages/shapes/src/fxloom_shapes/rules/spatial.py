"""Shape rules of padding and of shuffling channels and pixels.

In: the device and the operator's arguments. Out: a plan of one new tensor in the memory format that the input suggests, or None
to decline. Only for the CPU: elsewhere the results are row-major, and torch's Meta kernels say so, but for pixel_unshuffle's. Of
padding by a number it is asked only whether what is cut off is there.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import equal, is_empty
from fxloom_shapes.fake.layout import suggested_stride
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import assume_size
from fxloom_shapes.rules.registry import fresh, shape_rule
from fxloom_shapes.rules.view import copy_of

aten = torch.ops.aten


def _like(device: torch.device, x: Any, size: tuple[int, ...]) -> Plan:
    return fresh(size, x.desc.dtype, device, suggested_stride(x.desc, size))


@shape_rule(aten.constant_pad_nd.default)
def constant_pad(device: torch.device, x: Any, pad: Any, value: Any = 0) -> Plan | None:
    """Asks, as eager does, whether what is cut off is there; torch's Meta kernel asks for the size of the result alone, and says it."""
    size = x.desc.size
    for number in range(min(len(pad) // 2, len(size))):
        cut = sum(extent for extent in pad[2 * number : 2 * number + 2] if type(extent) is int and extent < 0)
        if cut and not assume_size(size[-1 - number] + cut):
            raise RuntimeError("narrow(): length must be non-negative.")
    return None


@shape_rule(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(device: torch.device, x: Any, padding: Any) -> Plan | None:
    return _pad(device, x, padding, any_width=False)


@shape_rule(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(device: torch.device, x: Any, padding: Any) -> Plan | None:
    return _pad(device, x, padding, any_width=True)


def _pad(device: torch.device, x: Any, padding: Any, any_width: bool) -> Plan | None:
    """any_width: what is added need not be less than what there is."""
    size = list(x.desc.size)
    axes = len(padding) // 2
    if device.type != "cpu" or len(size) not in (axes + 1, axes + 2) or any(extent <= 0 for extent in size[1:]):
        return None
    for number in range(axes):
        before, after = padding[2 * number], padding[2 * number + 1]
        extent = size[-1 - number]
        if not any_width and (before >= extent or after >= extent) or extent + before + after <= 0:
            return None  # torch says what is wrong
        size[-1 - number] = extent + before + after
    return _like(device, x, tuple(size))


@shape_rule(
    aten.reflection_pad2d_backward.default, aten.reflection_pad3d_backward.default,
    aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default,
)  # fmt: skip
def pad_backward(device: torch.device, grad: Any, x: Any, padding: Any) -> Plan | None:
    size = list(x.desc.size)
    axes = len(padding) // 2
    if device.type != "cpu" or len(size) not in (axes + 1, axes + 2) or is_empty(x.desc.size):
        return None
    for number in range(axes):
        size[-1 - number] += padding[2 * number] + padding[2 * number + 1]
    if len(grad.desc.size) != len(size) or not all(equal(a, b) for a, b in zip(grad.desc.size, size, strict=True)):
        return None  # torch says what is wrong
    return _like(device, x, x.desc.size)


@shape_rule(aten.pixel_shuffle.default)
def pixel_shuffle(device: torch.device, x: Any, factor: int) -> Plan | None:
    size = x.desc.size
    if device.type != "cpu" or len(size) != 4 or factor <= 0 or size[1] % (factor * factor) or size[1] == 0:
        return None
    return _like(device, x, (size[0], size[1] // (factor * factor), size[2] * factor, size[3] * factor))


@shape_rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(device: torch.device, x: Any, factor: int) -> Plan | None:
    size = x.desc.size
    if device.type == "cpu" and len(size) >= 3 and factor > 0 and is_empty(size):
        return None if size[-1] % factor or size[-2] % factor else copy_of(x.desc, x.desc.dtype, device, None)  # not shuffled
    if len(size) != 4 or factor <= 0 or size[2] % factor or size[3] % factor or size[1] == 0:
        return None
    small = (size[0], size[1] * factor * factor, size[2] // factor, size[3] // factor)
    return _like(device, x, small) if device.type == "cpu" else fresh(small, x.desc.dtype, device)


@shape_rule(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(device: torch.device, x: Any, groups: int) -> Plan | None:
    size = x.desc.size
    if device.type != "cpu" or len(size) < 3 or groups <= 0 or size[1] % groups or size[1] == 0:
        return None
    return _like(device, x, size)
