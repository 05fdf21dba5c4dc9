"""Rules for factories with symbolic lengths: sequences, windows, indices, one-hot rows.

In: arguments as torch's function takes them, with a symbolic number among them. Out: as for `registry`, whose rules these are:
the tensor, computed by operators that leave the number symbolic; NotImplemented where a combination of arguments is not covered.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import rule
from fxloom_shapes.symbols.numbers import SYMBOLIC


@rule(torch.linspace)
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **options: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if isinstance(start, Tensor) or isinstance(end, Tensor) or not dtype.is_floating_point or _is_complex(start, end):
        return NotImplemented
    if _unusual(options) or type(steps) is int and steps < 2:
        return NotImplemented
    place = torch.arange(steps, dtype=dtype, **options)
    # the larger of 1: a number of steps that only running the program tells may be 1, and the line is its start then
    step = torch.scalar_tensor((end - start) / torch.sym_max(steps - 1, 1), dtype=dtype, device=place.device)
    return torch.where(place < torch.sym_max(steps // 2, 1), start + step * place, end - step * (steps - 1 - place))


@rule(torch.logspace)
def logspace(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None, **options: Any) -> Any:
    line = linspace(start, end, steps, dtype=dtype, **options)
    return NotImplemented if line is NotImplemented or isinstance(base, Tensor) else torch.pow(base * 1.0, line)


def if_single(length: Any, value: float, otherwise: Tensor) -> Tensor:
    """`otherwise`; but `value` where the length is 1, which for some lengths only running the program tells."""
    if type(length) is int or length.node.has_hint():
        return torch.full_like(otherwise, value) if length == 1 else otherwise
    return torch.where(torch.scalar_tensor(length, dtype=torch.int64, device=otherwise.device) == 1, value, otherwise)


def _is_complex(*values: Any) -> bool:
    return any(isinstance(value, complex) for value in values)


def _unusual(options: dict[str, Any]) -> bool:
    return options.get("layout") not in (None, torch.strided) or options.get("out") is not None or bool(options.get("requires_grad"))


def _window(periodic: Any, length: Any, options: dict[str, Any]) -> Tensor | None:
    """Places of a window's samples from 0 to 1; None where the usual way is right."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if _unusual(options) or not dtype.is_floating_point or type(length) is int and length < 2:
        return None
    last = length if periodic else length - 1
    return torch.arange(length, **{**options, "dtype": dtype}) / last


def _cosines(place: Tensor, *weights: float) -> Tensor:
    """Sum of weights[k] * cos(2 pi k place)"""
    result = place * 0 + weights[0]
    for number, weight in enumerate(weights[1:], 1):
        result = result + weight * torch.cos(place * (2 * math.pi * number))
    return result


@rule(torch.hann_window)
def hann_window(window_length: Any, periodic: Any = True, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else if_single(window_length, 1, _cosines(place, 0.5, -0.5))


@rule(torch.hamming_window)
def hamming_window(window_length: Any, periodic: Any = True, alpha: Any = 0.54, beta: Any = 0.46, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else if_single(window_length, 1, _cosines(place, alpha, -beta))


@rule(torch.blackman_window)
def blackman_window(window_length: Any, periodic: Any = True, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else if_single(window_length, 1, _cosines(place, 0.42, -0.5, 0.08))


@rule(torch.bartlett_window)
def bartlett_window(window_length: Any, periodic: Any = True, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    return NotImplemented if place is None else if_single(window_length, 1, 1 - torch.abs(2 * place - 1))


@rule(torch.kaiser_window)
def kaiser_window(window_length: Any, periodic: Any = True, beta: Any = 12.0, **options: Any) -> Any:
    place = _window(periodic, window_length, options)
    if place is None or type(beta) in SYMBOLIC:
        return NotImplemented
    top = torch.i0(torch.scalar_tensor(float(beta), dtype=place.dtype, device=place.device))
    return if_single(window_length, 1, torch.i0(beta * torch.sqrt(torch.clamp(1 - (2 * place - 1) ** 2, min=0))) / top)


@rule(torch.vander, any_size=True)
def vander(x: Tensor, N: Any = None, increasing: Any = False) -> Any:
    if x.dim() != 1:
        return NotImplemented
    N = x.shape[0] if N is None else N
    ones = torch.ones(x.shape[0], 1, dtype=torch.promote_types(x.dtype, torch.int64), device=x.device)
    powers = torch.cat([ones, x.unsqueeze(1).expand(x.shape[0], N - 1).to(ones.dtype)], 1).cumprod(1)
    return powers if increasing else powers.flip(1)


def _below(rows: Any, columns: Any, offset: Any) -> Any:
    """How many places of a matrix have column <= row + offset."""
    first = torch.sym_max(0, -offset)  # the first row that has one
    full = torch.sym_max(0, columns - offset)  # the first row that has all
    rising = torch.sym_max(0, torch.sym_min(rows, full) - first)
    whole = torch.sym_max(0, rows - full)
    return rising * (first + offset + 1) + rising * (rising - 1) // 2 + whole * columns


def _indices(rows: Any, columns: Any, starts: Tensor, lengths: Tensor, total: Any, dtype: Any) -> Tensor:
    line = torch.arange(rows, device=starts.device)
    row = torch.repeat_interleave(line, lengths, output_size=total)
    before = torch.cumsum(lengths, 0) - lengths - starts
    column = torch.arange(total, device=starts.device) - before[row]
    return torch.stack([row, column]).to(dtype)


@rule(torch.tril_indices)
def tril_indices(row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, **options: Any) -> Any:
    if _unusual(options):
        return NotImplemented
    ends = torch.clamp(torch.arange(row, **options) + (offset + 1), min=0).clamp(max=col)
    return _indices(row, col, torch.zeros_like(ends), ends, _below(row, col, offset), dtype)


@rule(torch.triu_indices)
def triu_indices(row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, **options: Any) -> Any:
    if _unusual(options):
        return NotImplemented
    starts = torch.clamp(torch.arange(row, **options) + offset, min=0).clamp(max=col)
    return _indices(row, col, starts, col - starts, row * col - _below(row, col, offset - 1), dtype)


@rule(torch.combinations, always=True)
def combinations(input: Tensor, r: Any = 2, with_replacement: Any = False) -> Any:
    if type(r) is not int or r != 2 or input.dim() != 1:
        return NotImplemented
    n = input.shape[0]
    first, second = triu_indices(n, n, 0 if with_replacement else 1, device=input.device).unbind()
    return torch.stack([input[first], input[second]], 1)


@rule(F.one_hot, always=True)
def one_hot(tensor: Tensor, num_classes: Any = -1) -> Any:
    """Always, since torch's own version reads the largest and the smallest class. A scatter checks each class, too."""
    if type(num_classes) is int and num_classes <= 0 and num_classes != -1 or tensor.dtype is not torch.int64:
        return NotImplemented
    if type(num_classes) is int and num_classes == -1:
        num_classes = tensor.max().item() + 1
    result = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return result.scatter(-1, tensor.unsqueeze(-1), 1)
