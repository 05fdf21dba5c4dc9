"""Metadata of a strided tensor, interned: equal metadata is (normally) one object.

Interning makes descriptors cheap dictionary keys; equality stays by value, so a lost interning costs time only.
Sizes, strides and offset are in elements.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

Sizes = tuple[int, ...]


class Descriptor:
    """size, stride, dtype, device and storage offset of a tensor. Immutable; make with `describe`."""

    __slots__ = ("__weakref__", "_hash", "device", "dtype", "offset", "size", "stride", "wrapper_device")

    size: Sizes
    stride: Sizes
    dtype: torch.dtype
    device: torch.device
    offset: int
    #: what the C++ side is told: the real device, or meta where this machine has no such device
    wrapper_device: torch.device

    def __init__(self, size: Sizes, stride: Sizes, dtype: torch.dtype, device: torch.device, offset: int) -> None:
        self.size, self.stride, self.dtype, self.device, self.offset = size, stride, dtype, device, offset
        self.wrapper_device = device if usable(device.type) else torch.device("meta")
        self._hash = hash(self.key)

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.size, self.stride, self.dtype, self.device, self.offset)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Descriptor) and self.key == other.key)

    def __repr__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}"
        if self.stride != contiguous_stride(self.size):
            text += f" stride={list(self.stride)}"
        return text + (f" offset={self.offset}" if self.offset else "") + f" {self.device}"


_interned: weakref.WeakValueDictionary[tuple[Any, ...], Descriptor] = weakref.WeakValueDictionary()
_usable: dict[str, bool] = {"cpu": True, "meta": True}


def usable(device_type: str) -> bool:
    """True when tensors of this device type can be made on this machine."""
    known = _usable.get(device_type)
    if known is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        known = _usable[device_type] = accelerator is not None and accelerator.type == device_type
    return known


def describe(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device, offset: int = 0) -> Descriptor:
    """The descriptor with these fields."""
    key = (tuple(size), tuple(stride), dtype, device, offset)
    found = _interned.get(key)
    if found is None:
        found = _interned[key] = Descriptor(*key)
    return found


def describe_tensor(tensor: torch.Tensor, device: torch.device) -> Descriptor:
    """The descriptor of `tensor`, said to be on `device`."""
    return describe(tuple(tensor.shape), tensor.stride(), tensor.dtype, device, int(tensor.storage_offset()))


def describe_contiguous(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Descriptor:
    size = tuple(size)
    return describe(size, contiguous_stride(size), dtype, device)


def contiguous_stride(size: Sequence[int]) -> Sizes:
    """Row-major strides. Axes of extent 0 count as 1, as in torch."""
    stride, step = [], 1
    for extent in reversed(size):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))


def extent_of(descriptor: Descriptor) -> int:
    """Elements from the start of the storage to the end of the last element that the tensor reaches."""
    if 0 in descriptor.size:
        return descriptor.offset
    reach = sum((extent - 1) * step for extent, step in zip(descriptor.size, descriptor.stride, strict=True))
    return descriptor.offset + reach + 1
