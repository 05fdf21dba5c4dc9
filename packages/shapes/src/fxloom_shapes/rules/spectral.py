"""Shape rules of Fourier transforms on the CPU: which axis is innermost in the result (aten/src/ATen/native/mkl/SpectralOps.cpp).

In: the device and the operator's arguments. Out: a plan of one new tensor, or None to decline, as for symbolic sizes. MKL
transforms a copy whose batch axes come first; the result is that copy seen with the axes put back. Without MKL the result is
contiguous, and left to torch.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.descriptor import Descriptor, contiguous_stride
from fxloom_shapes.fake.plans import Fresh, Plan
from fxloom_shapes.rules.registry import fresh, shape_rule

aten = torch.ops.aten


def _by_mkl(device: torch.device, *desc: Descriptor) -> bool:
    return device.type == "cpu" and torch.backends.mkl.is_available() and all(item.env is None for item in desc)


def _sorted(dims: Any, desc: Descriptor) -> list[int]:
    """Axes from the largest stride to the smallest. std::sort is insertion, hence stable, for so few."""
    return sorted(dims, key=lambda axis: -desc.stride[axis])


def _transformed(desc: Descriptor, size: tuple[int, ...], dims: list[int], dtype: torch.dtype, device: torch.device) -> Plan:
    """What `_exec_fft` returns: batch axes, by stride, before the transformed ones in the order given."""
    order = [*_sorted([axis for axis in range(len(size)) if axis not in dims], desc), *dims]
    packed = contiguous_stride([size[axis] for axis in order])
    stride = [0] * len(size)
    for axis, step in zip(order, packed, strict=True):
        stride[axis] = step
    return fresh(size, dtype, device, stride)


@shape_rule(aten._fft_r2c.default)
def fft_r2c(device: torch.device, x: Any, dim: Any, normalization: int, onesided: bool) -> Plan | None:
    desc = x.desc
    if not _by_mkl(device, desc) or not desc.dtype.is_floating_point or not dim or any(axis < 0 for axis in dim):
        return None
    size = list(desc.size)
    if onesided:
        size[dim[-1]] = size[dim[-1]] // 2 + 1
    dims = [*_sorted(dim[:-1], desc), dim[-1]]
    return _transformed(desc, tuple(size), dims, desc.dtype.to_complex(), device)


@shape_rule(aten._fft_c2c.default)
def fft_c2c(device: torch.device, x: Any, dim: Any, normalization: int, forward: bool) -> Plan | None:
    desc = x.desc
    if not _by_mkl(device, desc) or not desc.dtype.is_complex or not dim or any(axis < 0 for axis in dim):
        return None
    return _transformed(desc, desc.size, _sorted(dim, desc), desc.dtype, device)


@shape_rule(aten._fft_c2r.default)
def fft_c2r(device: torch.device, x: Any, dim: Any, normalization: int, last_dim_size: int) -> Plan | None:
    """Transforms all axes but the last to complex numbers, then the last one."""
    desc = x.desc
    if not _by_mkl(device, desc) or not desc.dtype.is_complex or not dim or any(axis < 0 for axis in dim):
        return None
    if len(dim) > 1:
        between = fft_c2c(device, x, dim[:-1], normalization, False)
        assert isinstance(between, Fresh)
        desc = between.desc
    size = list(desc.size)
    size[dim[-1]] = last_dim_size
    return _transformed(desc, tuple(size), [dim[-1]], desc.dtype.to_real(), device)
