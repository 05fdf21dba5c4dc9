"""Random operators in terms of `rand`, `randn` and `randint`, and these as functions of a seed (`fxloom_ops.philox`).

In: the operator's arguments. Out: a tensor of the distribution that eager draws from; the numbers differ from eager's.
NotImplemented for draws from a generator that the program names.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxloom_decomp.creation import in_memory_order
from fxloom_decomp.expectations import expect
from fxloom_decomp.registry import cast, decomposition, widen
from fxloom_ops.philox import PHILOX_INTEGERS, PHILOX_NORMAL, PHILOX_SEEDS, PHILOX_UNIFORM, UNIFORM_BITS
from fxloom_ops.scalar_overloads import scalar_overload

aten = torch.ops.aten
_DEVIATIONS = "normal expects all elements of std >= 0.0"
#: with a probability that is known only at run time
BERNOULLI: Any = scalar_overload(aten.bernoulli.p, differentiated=False)
DROPOUT: Any = scalar_overload(aten.native_dropout.default, differentiated=False)

# ---- the draws ------------------------------------------------------------------------------------------------------


def _seed(device: Any) -> Tensor:
    seeds: list[Tensor] = PHILOX_SEEDS(1, device=torch.device("cpu" if device is None else device))
    return seeds[0]


@decomposition(aten.rand.default, sets=("inductor",))
def rand(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    wanted = dtype or torch.get_default_dtype()
    return PHILOX_UNIFORM(_seed(device), size, dtype=wanted) if wanted in UNIFORM_BITS else NotImplemented


@decomposition(aten.randn.default, sets=("inductor",))
def randn(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    wanted = dtype or torch.get_default_dtype()
    return PHILOX_NORMAL(_seed(device), size, dtype=wanted) if wanted in UNIFORM_BITS else NotImplemented


def _integers(low: int, high: int, size: Any, dtype: torch.dtype, device: Any) -> Tensor:
    if dtype.is_complex or type(low) is not int or type(high) is not int or not 0 < high - low < 1 << 63:
        return NotImplemented
    return PHILOX_INTEGERS(_seed(device), low, high, size, dtype=dtype)


@decomposition(aten.randint.default, sets=("inductor",))
def randint(high: int, size: Any, dtype: Any = torch.int64, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    return _integers(0, high, size, dtype or torch.int64, device)


@decomposition(aten.randint.low, sets=("inductor",))
def randint_low(
    low: int, high: int, size: Any, dtype: Any = torch.int64, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _integers(low, high, size, dtype or torch.int64, device)


# ---- in terms of them -----------------------------------------------------------------------------------------------


def _uniform(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(list(x.shape), dtype=dtype, device=x.device)


@decomposition(aten.native_dropout.default)
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return torch.clone(x), torch.full(list(x.shape), True, dtype=torch.bool, device=x.device)
    if p == 1:
        return torch.zeros_like(x), torch.full(list(x.shape), False, dtype=torch.bool, device=x.device)
    keep = _uniform(x) >= p
    kept = torch.where(keep, widen(x) * (1 / (1 - p)), torch.full((), 0, dtype=widen(x).dtype, device=x.device))
    return cast(kept, x.dtype), keep


@decomposition(DROPOUT)
def native_dropout_of_a_number(x: Tensor, p: Any, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return native_dropout(x, 0.0, train)
    keep = _uniform(x) >= p
    scale = 1 / torch.full((), 1 - p, dtype=widen(x).dtype, device=x.device)  # infinite, and unused, for p of 1
    return cast(torch.where(keep, widen(x) * scale, torch.zeros_like(scale)), x.dtype), keep


@decomposition(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.where(mask, grad * scale, torch.full((), 0, dtype=grad.dtype, device=grad.device))


@decomposition(aten.bernoulli.p)
def bernoulli_p(x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    return NotImplemented if generator is not None else cast(_uniform(x) < p, x.dtype)


@decomposition(BERNOULLI)
def bernoulli_of_a_number(x: Tensor, p: Any = 0.5, generator: Any = None) -> Tensor:
    return bernoulli_p(x, p, generator)


@decomposition(aten.bernoulli.default)
def bernoulli(x: Tensor, generator: Any = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    expect((x >= 0) & (x <= 1), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return cast(_uniform(x) < widen(x), x.dtype)


@decomposition(aten.bernoulli.Tensor)
def bernoulli_by_tensor(x: Tensor, p: Tensor, generator: Any = None) -> Tensor:
    if generator is not None or not p.is_floating_point() or p.device != x.device or x.dtype.is_complex:
        return NotImplemented
    expect((p >= 0) & (p <= 1), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return cast(_uniform(x, _wide(p)) < p, x.dtype)


@decomposition(aten.uniform.default)
def uniform(x: Tensor, low: float = 0, high: float = 1, generator: Any = None) -> Tensor:
    if generator is not None or x.dtype.is_complex:
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return cast(_uniform(x, wide) * (high - low) + low, x.dtype)


@decomposition(aten.normal_functional.default)
def normal(x: Tensor, mean: float = 0, std: float = 1, generator: Any = None) -> Tensor:
    if generator is not None or x.dtype.is_complex:
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return cast(torch.randn(list(x.shape), dtype=wide, device=x.device) * std + mean, x.dtype)


@decomposition(aten.exponential.default)
def exponential(x: Tensor, lambd: float = 1, generator: Any = None) -> Tensor:
    if generator is not None or math.isinf(lambd):
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    # 1 - u lies in (0, 1]
    return cast(torch.neg(torch.log1p(-_uniform(x, wide))) / lambd, x.dtype)


@decomposition(aten.rand_like.default)
def rand_like(
    x: Tensor, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    return in_memory_order(x, memory_format, lambda shape: torch.rand(shape, dtype=dtype or x.dtype, device=device or x.device))


@decomposition(aten.randn_like.default)
def randn_like(
    x: Tensor, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    return in_memory_order(x, memory_format, lambda shape: torch.randn(shape, dtype=dtype or x.dtype, device=device or x.device))


@decomposition(aten.randint_like.default, sets=("inductor",))
def randint_like(x: Tensor, high: int, **kwargs: Any) -> Tensor:
    return _randint_like(x, 0, high, **kwargs)


@decomposition(aten.randint_like.low_dtype, sets=("inductor",))
def randint_like_low(x: Tensor, low: int, high: int, **kwargs: Any) -> Tensor:
    return _randint_like(x, low, high, **kwargs)


def _randint_like(
    x: Tensor, low: int, high: int, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    dtype, device = dtype or x.dtype, device or x.device
    if dtype.is_complex or type(low) is not int or type(high) is not int or not 0 < high - low < 1 << 63:
        return NotImplemented
    return in_memory_order(x, memory_format, lambda shape: _integers(low, high, shape, dtype, device))


@decomposition(aten.normal.Tensor_float)
def normal_of_means(mean: Tensor, std: float = 1, generator: Any = None) -> Tensor:
    return NotImplemented if generator is not None or mean.dtype.is_complex else cast(_normal(mean) * std + mean, mean.dtype)


@decomposition(aten.normal.float_Tensor)
def normal_of_deviations(mean: float, std: Tensor, generator: Any = None) -> Tensor:
    if generator is not None or std.dtype.is_complex:
        return NotImplemented
    expect(std >= 0, _DEVIATIONS)
    return cast(_normal(std) * std + mean, std.dtype)


@decomposition(aten.normal.Tensor_Tensor)
def normal_of_both(mean: Tensor, std: Tensor, generator: Any = None) -> Tensor:
    if generator is not None or mean.dtype.is_complex or std.dtype.is_complex or mean.shape != std.shape:
        return NotImplemented
    expect(std >= 0, _DEVIATIONS)
    return cast(_normal(mean) * std + mean, mean.dtype)


@decomposition(aten.normal.float_float)
def normal_of_a_size(
    mean: float, std: float, size: Any, generator: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    wanted = dtype or torch.get_default_dtype()
    if generator is not None or not wanted.is_floating_point or std < 0:
        return NotImplemented
    wide = torch.float64 if wanted is torch.float64 else torch.float32
    return cast(torch.randn(size, dtype=wide, device=device) * std + mean, wanted)


def _normal(x: Tensor) -> Tensor:
    return torch.randn(list(x.shape), dtype=_wide(x), device=x.device)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


@decomposition(aten.log_normal.default)
def log_normal(x: Tensor, mean: float = 1, std: float = 2, generator: Any = None) -> Tensor:
    return NotImplemented if generator is not None else cast(torch.exp(_normal(x) * std + mean), x.dtype)


@decomposition(aten.cauchy.default)
def cauchy(x: Tensor, median: float = 0, sigma: float = 1, generator: Any = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    return cast(torch.tan((_uniform(x, _wide(x)) - 0.5) * math.pi) * sigma + median, x.dtype)


@decomposition(aten.geometric.default)
def geometric(x: Tensor, p: float, generator: Any = None) -> Tensor:
    if generator is not None or not 0 < p < 1:
        return NotImplemented
    # 1 - u lies in (0, 1]; of 1 comes 0, where eager has 1 too
    trials = torch.ceil(torch.log1p(-_uniform(x, torch.float64)) / math.log1p(-p))
    return cast(torch.clamp(trials, min=1), x.dtype)


@decomposition(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise_functional(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    if not training:
        return aten.leaky_relu.default(x, (lower + upper) / 2), torch.clone(noise)
    if generator is not None:
        return NotImplemented
    slope = torch.where(x <= 0, _uniform(x, _wide(x)) * (upper - lower) + lower, 1.0)
    return cast(widen(x) * slope, x.dtype), cast(slope, x.dtype)


@decomposition(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    if training:
        return grad * noise
    return aten.leaky_relu_backward.default(grad, x, (lower + upper) / 2, self_is_result)  # type: ignore[no-any-return]  # a tensor


@decomposition(aten.random.to, sets=("inductor",))
def random_to(x: Tensor, to: int, generator: Any = None) -> Tensor:
    return NotImplemented if generator is not None else _integers(0, to, list(x.shape), x.dtype, x.device)


@decomposition(getattr(aten.random, "from"), sets=("inductor",))
def random_from(x: Tensor, low: int, to: int | None, generator: Any = None) -> Tensor:
    if generator is not None or to is None:
        return NotImplemented
    return _integers(low, to, list(x.shape), x.dtype, x.device)


@decomposition(aten.random.default, sets=("inductor",))
def random(x: Tensor, generator: Any = None) -> Tensor:
    if generator is not None or x.dtype.is_complex:
        return NotImplemented
    if x.dtype is torch.bool:
        high = 2
    elif x.dtype.is_floating_point:  # all whole numbers that the type holds without a gap
        high = round(2 / torch.finfo(x.dtype).eps) + 1
    else:
        high = min(torch.iinfo(x.dtype).max + 1, (1 << 63) - 1)
    return _integers(0, high, list(x.shape), x.dtype, x.device)
