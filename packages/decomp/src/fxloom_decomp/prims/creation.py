"""Tensors made from numbers, and random ones, in prims.

In: sizes, numbers, types, devices; `*_like` operators also a tensor. Out: the tensor. Draws have eager's distributions, not its
sequences. Layouts and memory formats say nothing here: values have no strides.
"""

# what prims give is typed Any; here they give tensors
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.expectations import expect
from fxloom_decomp.prims.operands import Number, aligned, along, full, line, product, reshaped, to
from fxloom_decomp.prims.registry import prims_rule
from fxloom_decomp.registry import wide_dtype
from fxloom_interfaces.prims import p

aten = torch.ops.aten
_DEVIATIONS = "normal expects all elements of std >= 0.0"


def _type(dtype: torch.dtype | None, value: Number = 0.0) -> torch.dtype:
    if dtype is not None:
        return dtype
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.get_default_dtype()


def _device(device: Any) -> torch.device:
    return torch.device(device) if device is not None else torch.get_default_device()


@prims_rule(aten.full.default)
def full_(size: Sequence[Any], value: Number, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return full(size, value, _type(dtype, value), _device(device))


@prims_rule(aten.scalar_tensor.default)
def scalar_tensor(value: Number, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return full((), value, _type(dtype), _device(device))


def _like(x: Tensor, size: Sequence[Any], value: Number, dtype: torch.dtype | None, device: Any) -> Tensor:
    return full(size, value, dtype or x.dtype, torch.device(device) if device is not None else x.device)


@prims_rule(aten.full_like.default)
def full_like(x: Tensor, value: Number, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return _like(x, x.shape, value, dtype, device)


@prims_rule(aten.new_full.default)
def new_full(x: Tensor, size: Any, value: Number, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return _like(x, size, value, dtype, device)


def _constants(value: int, made: Any, like: Any, new: Any) -> None:
    """The operators that fill with `value`: of a size, like a tensor, of a size and like a tensor."""

    def of_size(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
        return full(size, value, _type(dtype), _device(device))

    def like_tensor(x: Tensor, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
        return _like(x, x.shape, value, dtype, device)

    def new_of_size(x: Tensor, size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
        return _like(x, size, value, dtype, device)

    for op, rule in ((made, of_size), (like, like_tensor), (new, new_of_size)):
        prims_rule(op)(rule)


_constants(0, aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_constants(1, aten.ones.default, aten.ones_like.default, aten.new_ones.default)
# any values will do
_constants(0, aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)


@prims_rule(aten.empty_strided.default, aten.empty_permuted.default)
def empty_strided(
    size: Sequence[Any], order: Any, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any
) -> Tensor:
    return full(size, 0, _type(dtype), _device(device))


@prims_rule(aten.new_empty_strided.default)
def new_empty_strided(
    x: Tensor, size: Sequence[Any], stride: Any, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any
) -> Tensor:
    return _like(x, size, 0, dtype, device)


# --- lines ----------------------------------------------------------------------------------------------------------------


def _arange(start: Number, end: Number, step: Number, dtype: torch.dtype | None, device: Any) -> Tensor:
    numbers = (start, end, step)
    whole = all(isinstance(number, (int, torch.SymInt)) for number in numbers)
    dtype = dtype or (torch.int64 if whole else torch.get_default_dtype())
    if any(isinstance(number, torch.SymFloat) for number in numbers):
        return NotImplemented
    length: Any
    if whole:
        sign = 1 if step > 0 else -1
        length = torch.sym_max((end - start + step - sign) // step, 0)
    else:
        length = max(math.ceil((end - start) / step), 0)
    if not dtype.is_floating_point:
        first, stride = (start, step) if whole else (int(start), int(step))
        return line(length, _device(device), first, stride, dtype)
    acc = torch.float64
    places = to(line(length, _device(device)), acc)
    size = (length,)
    found = p.add(full(size, start, acc, places.device), p.mul(places, full(size, step, acc, places.device)))
    return to(found, dtype)


@prims_rule(aten.arange.default)
def arange(end: Number, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return _arange(0, end, 1, dtype, device)


@prims_rule(aten.arange.start)
def arange_start(start: Number, end: Number, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return _arange(start, end, 1, dtype, device)


@prims_rule(aten.arange.start_step)
def arange_step(
    start: Number, end: Number, step: Number = 1, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any
) -> Tensor:
    return _arange(start, end, step, dtype, device)


@prims_rule(torch.ops.prims.iota.default)
def iota(length: Any, *, start: Any, step: Any, dtype: torch.dtype, device: Any, requires_grad: bool) -> Tensor:
    return line(length, _device(device), start, step, dtype)


_KINDS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@prims_rule(*[getattr(packet, kind) for packet in (aten.linspace, aten.logspace) for kind in _KINDS])
def spaced(
    start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any
) -> Tensor:
    """Lines of no numbers; others have decompositions."""
    return full((0,), 0, _type(dtype), _device(device)) if type(steps) is int and steps == 0 else NotImplemented


def triangle(x: Tensor, diagonal: Any, lower: bool) -> Tensor:
    """x where its column is not beyond (or not before) the diagonal, 0 elsewhere."""
    size = tuple(x.shape)
    rows = along(line(size[-2], x.device, diagonal), len(size) - 2, size)
    columns = along(line(size[-1], x.device), len(size) - 1, size)
    keep = p.le(columns, rows) if lower else p.ge(columns, rows)
    return p.where(keep, x, full(size, 0, x.dtype, x.device))


@prims_rule(aten.tril.default)
def tril(x: Tensor, diagonal: Any = 0) -> Tensor:
    return triangle(x, diagonal, lower=True)


@prims_rule(aten.triu.default)
def triu(x: Tensor, diagonal: Any = 0) -> Tensor:
    return triangle(x, diagonal, lower=False)


# --- draws ----------------------------------------------------------------------------------------------------------------


@prims_rule(aten.rand.default)
def rand(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return p.uniform(tuple(size), _type(dtype), _device(device))


@prims_rule(aten.randn.default)
def randn(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return p.normal(tuple(size), _type(dtype), _device(device))


@prims_rule(aten.rand_like.default)
def rand_like(x: Tensor, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return p.uniform(tuple(x.shape), dtype or x.dtype, device or x.device)


@prims_rule(aten.randn_like.default)
def randn_like(x: Tensor, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return p.normal(tuple(x.shape), dtype or x.dtype, device or x.device)


@prims_rule(aten.randint.default)
def randint(high: int, size: Sequence[Any], *, dtype: torch.dtype | None = torch.int64, device: Any = None, **layout: Any) -> Tensor:
    return p.randint(tuple(size), 0, high, dtype or torch.int64, _device(device))


@prims_rule(aten.randint.low)
def randint_low(
    low: int, high: int, size: Sequence[Any], *, dtype: torch.dtype | None = torch.int64, device: Any = None, **layout: Any
) -> Tensor:
    return p.randint(tuple(size), low, high, dtype or torch.int64, _device(device))


@prims_rule(aten.randint_like.default)
def randint_like(x: Tensor, high: int, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    return p.randint(tuple(x.shape), 0, high, dtype or x.dtype, device or x.device)


@prims_rule(aten.randint_like.low_dtype)
def randint_like_low(
    x: Tensor, low: int, high: int, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any
) -> Tensor:
    return p.randint(tuple(x.shape), low, high, dtype or x.dtype, device or x.device)


@prims_rule(aten.uniform.default)
def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    acc = wide_dtype(x.dtype)
    size = tuple(x.shape)
    drawn = p.uniform(size, acc, x.device)
    return to(p.fma(drawn, full(size, high - low, acc, x.device), full(size, low, acc, x.device)), x.dtype)


@prims_rule(aten.normal_functional.default)
def normal(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    acc = wide_dtype(x.dtype)
    size = tuple(x.shape)
    drawn = p.normal(size, acc, x.device)
    return to(p.fma(drawn, full(size, std, acc, x.device), full(size, mean, acc, x.device)), x.dtype)


@prims_rule(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def normal_of(mean: Any, std: Any, *, generator: Any = None) -> Tensor:
    """Of means and deviations of any sizes."""
    if generator is not None:
        return NotImplemented
    dtype = mean.dtype if isinstance(mean, Tensor) else std.dtype
    if isinstance(std, Tensor):
        expect(p.all(p.ge(reshaped(std, [product(std.shape)]), full([product(std.shape)], 0, std.dtype, std.device)), (0,)), _DEVIATIONS)
    m, s = aligned(mean, std, dtype=wide_dtype(dtype))
    return to(p.fma(p.normal(tuple(m.shape), m.dtype, m.device), s, m), dtype)


def below(x: Tensor, probability: Tensor) -> Tensor:
    """True with a probability that each element has."""
    return p.lt(p.uniform(tuple(x.shape), probability.dtype, x.device), probability)


@prims_rule(aten.bernoulli.default)
def bernoulli(x: Tensor, *, generator: Any = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    acc = wide_dtype(x.dtype)
    return to(below(x, to(x, acc)), x.dtype)


@prims_rule(aten.bernoulli.p)
def bernoulli_p(x: Tensor, probability: float = 0.5, *, generator: Any = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    return to(below(x, full(tuple(x.shape), probability, torch.float32, x.device)), x.dtype)

