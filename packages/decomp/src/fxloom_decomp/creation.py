"""Tensors from nothing: everything is `full` or `arange`.

In: an operator's arguments. Out: the operator's results in simpler operators, or NotImplemented to decline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.registry import cast, decomposition

aten = torch.ops.aten
Number = float | int | bool


def _full(size: Any, value: Number, dtype: torch.dtype | None, device: Any) -> Tensor:
    return torch.full(size, value, dtype=dtype or torch.get_default_dtype(), device=device)


@decomposition(aten.zeros.default)
def zeros(
    size: list[int], dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _full(size, False if dtype is torch.bool else 0, dtype, device)


@decomposition(aten.ones.default)
def ones(
    size: list[int], dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _full(size, dtype is torch.bool or 1, dtype, device)


@decomposition(aten.new_zeros.default)
def new_zeros(
    x: Tensor, size: list[int], dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _full(size, 0, dtype or x.dtype, device or x.device)


@decomposition(aten.new_ones.default)
def new_ones(
    x: Tensor, size: list[int], dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _full(size, 1, dtype or x.dtype, device or x.device)


@decomposition(aten.new_full.default)
def new_full(
    x: Tensor, size: list[int], value: Number, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _full(size, value, dtype or x.dtype, device or x.device)


def _filled_like(x: Tensor, value: Number, dtype: Any, device: Any, memory_format: Any) -> Tensor:
    """`full` with the strides that `empty_like` gives."""
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    return in_memory_order(x, memory_format, lambda shape: _full(shape, value, dtype or x.dtype, device or x.device))


def in_memory_order(x: Tensor, memory_format: Any, make: Callable[[list[int]], Tensor]) -> Tensor:
    """A tensor of x's shape, with x's strides where these are dense and are to be preserved. make: a row-major one of a shape."""
    stride = x.stride()
    order = sorted(range(x.dim()), key=lambda axis: (-stride[axis], axis))
    preserved = memory_format in (None, torch.preserve_format)
    if not preserved or order == list(range(x.dim())) or not _dense(x, order):
        return make(list(x.shape))
    return torch.permute(make([x.shape[axis] for axis in order]), [order.index(axis) for axis in range(x.dim())])


def _dense(x: Tensor, order: list[int]) -> bool:
    step = 1
    for axis in reversed(order):
        if x.shape[axis] != 1 and x.stride(axis) != step:
            return False
        step *= x.shape[axis]
    return True


@decomposition(aten.full_like.default, sets=("core_aten",))
def full_like(
    x: Tensor,
    value: Number,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    return _filled_like(x, value, dtype, device, memory_format)


@decomposition(aten.zeros_like.default)
def zeros_like(
    x: Tensor, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    if layout not in (None, torch.strided):
        return NotImplemented
    return _filled_like(x, 0, dtype, device, memory_format)


@decomposition(aten.ones_like.default)
def ones_like(
    x: Tensor, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    return _filled_like(x, 1, dtype, device, memory_format)


@decomposition(aten.arange.default)
def arange(end: Number, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    return torch.ops.aten.arange.start_step(0, end, 1, dtype=dtype or _arange_dtype(end), device=device)


@decomposition(aten.arange.start)
def arange_start(
    start: Number, end: Number, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return torch.ops.aten.arange.start_step(start, end, 1, dtype=dtype or _arange_dtype(start, end), device=device)


def _arange_dtype(*values: Number) -> torch.dtype:
    return torch.get_default_dtype() if any(isinstance(value, (float, torch.SymFloat)) for value in values) else torch.int64


@decomposition(aten.eye.default)
def eye(n: int, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    return eye_m(n, n, dtype, layout, device, pin_memory)


@decomposition(aten.eye.m)
def eye_m(n: int, m: int, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    rows = torch.unsqueeze(torch.arange(n, dtype=torch.int64, device=device), 1)
    columns = torch.arange(m, dtype=torch.int64, device=device)
    return cast(rows == columns, dtype or torch.get_default_dtype())


def _line(start: Tensor | Number, end: Tensor | Number, steps: int, result: torch.dtype, device: Any) -> Tensor:
    """`steps` numbers from `start` to `end` in the type in which eager steps: float64 for integers."""
    compute = result if result.is_floating_point else torch.float64
    begin, last = (_as_number(v, result, compute, device) for v in (start, end))
    line = torch.arange(steps, dtype=torch.int64, device=device)
    if steps == 1:
        return cast(line, compute) + begin
    step = (last - begin) / (steps - 1)
    # from both ends, as in ATen, so that the last element is `end` exactly
    low = cast(line, compute) * step + begin
    high = last - cast(steps - 1 - line, compute) * step
    return torch.where(line < steps // 2, low, high)


def _as_number(value: Tensor | Number, result: torch.dtype, compute: torch.dtype, device: Any) -> Any:
    """An end of the line, which is converted to the type of the result first."""
    if isinstance(value, torch.Tensor):
        return cast(cast(value, result), compute)
    return value if result.is_floating_point else float(int(value))


def _has_line(start: Tensor | Number, end: Tensor | Number, steps: int, result: torch.dtype, device: Any) -> bool:
    # half types: eager rounds each step; integers of a single byte: their differences wrap
    ends = [value for value in (start, end) if isinstance(value, torch.Tensor)]
    fits = all(v.dim() == 0 and not v.dtype.is_complex and v.device == torch.device(device or "cpu") for v in ends)
    numbers = all(isinstance(value, (torch.Tensor, float, int)) and not isinstance(value, bool) for value in (start, end))
    return fits and numbers and steps >= 1 and result in (torch.float32, torch.float64, torch.int64, torch.int32)


@decomposition(aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    result = dtype or torch.get_default_dtype()
    return cast(_line(start, end, steps, result, device), result) if _has_line(start, end, steps, result, device) else NotImplemented


@decomposition(aten.logspace.default, aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    result = dtype or torch.get_default_dtype()
    if not _has_line(start, end, steps, result, device) or not result.is_floating_point:
        return NotImplemented
    return torch.pow(base, _line(start, end, steps, result, device))


# ---- indices of triangles -----------------------------------------------------------------------------------------------------


def _triangle(row: int, col: int, offset: int, dtype: Any, device: Any, lower: bool) -> Tensor:
    """Rows and columns of the triangle's elements, in row-major order."""
    if any(type(number) is not int for number in (row, col, offset)) or row < 0 or col < 0:
        return NotImplemented
    total = sum(min(max(r + 1 + offset if lower else col - r - offset, 0), col) for r in range(row))
    dtype = dtype or torch.int64
    if total == 0:
        return torch.full([2, 0], 0, dtype=dtype, device=device)

    def count(rows: Tensor) -> Tensor:
        return torch.clamp(rows + (1 + offset) if lower else (col - offset) - rows, 0, col)

    ends = torch.cumsum(count(torch.arange(row, dtype=torch.int64, device=device)), 0)
    number = torch.arange(total, dtype=torch.int64, device=device)
    rows = torch.bucketize(number, ends, right=True)
    behind = aten._unsafe_index.Tensor(ends, [rows]) - number  # elements of the row from this one on
    columns = count(rows) - behind if lower else col - behind
    return cast(torch.stack([rows, columns]), dtype)


@decomposition(aten.tril_indices.default)
def tril_indices(
    row: int, col: int, offset: int = 0, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _triangle(row, col, offset, dtype, device, lower=True)


@decomposition(aten.triu_indices.default)
def triu_indices(
    row: int, col: int, offset: int = 0, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _triangle(row, col, offset, dtype, device, lower=False)
