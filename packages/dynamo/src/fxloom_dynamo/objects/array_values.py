"""NumPy arrays as values of the program: a proxy with the fake of its elements.

In: an array that existed before, or a tensor that a NumPy function gave. Out: an `Array`; `to_array` and `to_scalar` make the
real thing of the graph's output in replacement code. Arrays that no tensor can be (read-only, negative strides, other dtypes)
have no proxy.
Invariant: a real array shares its memory with the tensor that stands for it in the graph, so a write reaches both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo._torch_private import outside_modes
from fxloom_dynamo.breaks import break_error
from fxloom_dynamo.libraries.numpy_numbers import numpy
from fxloom_interfaces.sources import CallSource, Source

if TYPE_CHECKING:
    from fxloom_dynamo.objects.shadow_heap import ShadowHeap


ARRAY_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
)  # fmt: skip
#: NumPy's dtypes that tensors have, too
TORCH_DTYPES: dict[Any, torch.dtype] = (
    {} if numpy is None else {numpy.dtype(str(dtype).removeprefix("torch.")): dtype for dtype in ARRAY_DTYPES}
)


class Array:
    """The proxy of an array, or of one of NumPy's numbers (scalar), with the fake of its elements."""

    __slots__ = ("__weakref__", "scalar", "tensor")

    def __init__(self, tensor: torch.Tensor, scalar: bool) -> None:
        self.tensor = tensor
        self.scalar = scalar


def make(heap: ShadowHeap, tensor: torch.Tensor, scalar: bool = False) -> Array:
    """A new array over `tensor`."""
    array = Array(tensor, scalar)
    heap.keep_untraceable(array, break_error("native_call", "a NumPy array where capture does not model it"))
    return array


def proxy_of(heap: ShadowHeap, real: Any, source: Source) -> Array | None:
    """The proxy of an array that existed before; None for arrays that no tensor can be."""
    if not is_ordinary(real):
        return None
    place = CallSource(source, getter=_as_tensor, label="torch.from_numpy({})")
    heap.arrays_from_outside = True
    with outside_modes():
        tensor = torch.from_numpy(real)
    return make(heap, heap.translate(tensor, place))


def is_ordinary(real: Any) -> bool:
    if type(real) is not numpy.ndarray or not real.flags.writeable or not real.dtype.isnative or not real.flags.aligned:
        return False
    if any(stride < 0 or stride % max(1, real.itemsize) for stride in real.strides):
        return False
    return real.dtype in TORCH_DTYPES


def _as_tensor(array: Any) -> torch.Tensor | None:
    return torch.from_numpy(array) if is_ordinary(array) else None


def to_array(tensor: torch.Tensor) -> Any:
    """Runs in replacement code: the array over a tensor's memory."""
    return tensor.detach().numpy()


def to_scalar(tensor: torch.Tensor) -> Any:
    """Runs in replacement code: NumPy's number of a tensor of no dimensions."""
    return tensor.detach().numpy()[()]


def type_of(array: Array) -> type:
    """What `type()` says of it."""
    return numpy_dtype(array).type if array.scalar else numpy.ndarray  # type: ignore[no-any-return]


def numpy_dtype(array: Array) -> Any:
    return next(found for found, dtype in TORCH_DTYPES.items() if dtype is array.tensor.dtype)
