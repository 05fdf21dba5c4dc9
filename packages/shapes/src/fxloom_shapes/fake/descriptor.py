"""Metadata of a strided tensor, interned: equal metadata is one object, so that descriptors are compared by identity.

That makes them dictionary keys without a call of Python code. Sizes, strides and offset are in elements: plain ints, or
`torch.SymInt`s over nodes of one symbol environment. Symbolic ones are interned by that environment, by their expressions:
comparing descriptors never leaves a guard.

In: sizes, strides, dtype, device, offset, bits (conjugated, negated). Out: the one `Descriptor` that has these.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes.errors import UnsupportedTensor

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv

Sizes = tuple[int, ...]
CONJ, NEG = 1, 2


class Descriptor:
    """size, stride, dtype, device, storage offset and lazy bits of a tensor. Immutable; make with `describe`."""

    __slots__ = ("__weakref__", "bits", "device", "dtype", "env", "key", "offset", "size", "stride", "wrapper_device")

    size: Sizes
    stride: Sizes
    dtype: torch.dtype
    device: torch.device
    offset: int
    #: the device of the C++ tensor: the real one, or meta where this machine has no such device
    wrapper_device: torch.device
    #: of the symbols in sizes, strides and offset; None where all are plain ints
    env: SymbolEnv | None
    #: CONJ, NEG: elements are conjugated, negated on reading
    bits: int

    def __init__(
        self,
        size: Sizes,
        stride: Sizes,
        dtype: torch.dtype,
        device: torch.device,
        offset: int,
        bits: int = 0,
        env: SymbolEnv | None = None,
        key: tuple[Any, ...] | None = None,
    ) -> None:
        self.size, self.stride, self.dtype, self.device, self.offset, self.bits = size, stride, dtype, device, offset, bits
        self.wrapper_device = device if usable(device.type) else torch.device("meta")
        if self.wrapper_device is not device:
            absent_devices_met.add(device.type)
        self.env = env
        self.key = key if key is not None else (size, stride, dtype, device, offset, bits)

    def __copy__(self) -> Descriptor:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Descriptor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return describe, (self.size, self.stride, self.dtype, self.device, self.offset, self.bits)

    def __repr__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}"
        if str(self.stride) != str(contiguous_stride(self.size)):
            text += f" stride={list(self.stride)}"
        text += f" offset={self.offset}" if str(self.offset) != "0" else ""
        text += " conj" * bool(self.bits & CONJ) + " neg" * bool(self.bits & NEG)
        return f"{text} {self.device}"


#: types of devices that this machine doesn't have and that a fake was said to be on
absent_devices_met: set[str] = set()
_interned: weakref.WeakValueDictionary[tuple[Any, ...], Descriptor] = weakref.WeakValueDictionary()
_interning = threading.Lock()
_usable: dict[str, bool] = {"cpu": True, "meta": True}


def usable(device_type: str) -> bool:
    """True when tensors of this device type can be made on this machine."""
    known = _usable.get(device_type)
    if known is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        known = _usable[device_type] = accelerator is not None and accelerator.type == device_type
    return known


def describe(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device, offset: int = 0, bits: int = 0
) -> Descriptor:
    """The descriptor with these fields."""
    key = (tuple(size), tuple(stride), dtype, device, offset, bits)
    try:
        found = _interned.get(key)
    except TypeError:  # symbolic numbers don't hash
        return _describe_symbolic(*key)
    if found is None:
        made = Descriptor(*key)
        with _interning:  # another thread may have made it since
            found = _interned.setdefault(key, made)
    return found


def _describe_symbolic(size: Sizes, stride: Sizes, dtype: torch.dtype, device: torch.device, offset: int, bits: int) -> Descriptor:
    env: SymbolEnv | None = None

    def canonical(number: Any) -> Any:
        nonlocal env
        if type(number) is int:
            return number
        node: Any = getattr(number, "node", None)
        poly = getattr(node, "poly", None)
        if poly is None:
            raise UnsupportedTensor(f"a size {number!r} that is not an integer of this compilation")
        env = node.env
        return node.env.number(poly)

    def text(number: Any) -> Any:
        return number if type(number) is int else number.node.poly

    size, stride, offset = tuple(map(canonical, size)), tuple(map(canonical, stride)), canonical(offset)
    if all(type(number) is int for number in (*size, *stride, offset)):
        return describe(size, stride, dtype, device, offset, bits)
    assert env is not None
    key = (id(env), tuple(map(text, size)), tuple(map(text, stride)), dtype, device, text(offset), bits)
    found = env.interned.get(key)
    if found is None:
        found = env.interned.setdefault(key, Descriptor(size, stride, dtype, device, offset, bits, env, key))
    return found


def at_least_one(extent: int) -> int:
    """max(extent, 1), without asking whether a symbolic extent is 0."""
    if type(extent) is int:
        return max(extent, 1)
    return torch.sym_max(extent, 1)  # type: ignore[no-any-return]  # untyped


def equal(a: int, b: int) -> bool:
    """a == b; False where that depends on a number known only at run time."""
    if type(a) is int and type(b) is int:
        return a == b
    if a is b:
        return True
    outcome: Any = a == b
    return outcome if type(outcome) is bool else bool(outcome.node.guard_or_false("", 0))


def known_equal(a: int, b: int) -> bool | None:
    """Whether a == b, whatever the symbols are that a trace may meet; None where it depends on them. Leaves no guard."""
    if a is b:
        return True
    one, other = getattr(a, "node", None), getattr(b, "node", None)
    if one is None and other is None:
        return a == b
    if one is not None and other is not None and one.poly == other.poly:
        return True
    outcome: Any = a == b
    if type(outcome) is bool:
        return outcome
    statement = outcome.node.statement
    return statement if type(statement) is bool else outcome.node.env.proven(statement)  # type: ignore[no-any-return]  # untyped


def is_empty(size: Sequence[int]) -> bool:
    """True when an extent is 0."""
    return any(extent == 0 if type(extent) is int else equal(extent, 0) for extent in size)


def describe_tensor(tensor: torch.Tensor, device: torch.device) -> Descriptor:
    """The descriptor of `tensor`, said to be on `device`."""
    bits = (CONJ if tensor.is_conj() else 0) | (NEG if tensor.is_neg() else 0)
    return describe(tuple(tensor.shape), tensor.stride(), tensor.dtype, device, tensor.storage_offset(), bits)  # type: ignore[arg-type]  # a SymInt where sizes are symbolic


def describe_contiguous(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Descriptor:
    size = tuple(size)
    return describe(size, contiguous_stride(size), dtype, device)


def contiguous_stride(size: Sequence[int]) -> Sizes:
    """Row-major strides. Axes of extent 0 count as 1, as in torch."""
    stride, step = [], 1
    for extent in reversed(size):
        stride.append(step)
        step = step * at_least_one(extent)
    return tuple(reversed(stride))


def extent_of(descriptor: Descriptor) -> int:
    """Elements from the start of the storage to the end of the last element that the tensor reaches."""
    if is_empty(descriptor.size):
        return descriptor.offset
    reach = sum((extent - 1) * step for extent, step in zip(descriptor.size, descriptor.stride, strict=True))
    return descriptor.offset + reach + 1
