"""Random numbers as functions of a seed and a position: the operators that graphs draw them by, and what they compute.

`philox_seeds` is the one that has an effect: it takes seeds from a device's default generator, and so moves it on. The others
are pure: element i, counted in rows, of a draw is a function of (seed, i). So a value may be computed twice and is the same,
a backward pass needs the seed alone, and a kernel draws where it needs the number. The functions of words here are the
meaning of `rand`, `randn` and `randint64` of the loop IR: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011), keyed by the seed, counted by the position, both 64 bits wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

#: bits of a uniform number, by type: as many as every number below 1 has room for
UNIFORM_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def words(seed: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four independent words of 32 bits, as int64, for every position."""
    c0, c1 = position & _LOW, (position >> 32) & _LOW
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # wraps at 64 bits, of which none is lost
        c0, c1, c2, c3 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def rand(seed: Tensor, position: Tensor) -> Tensor:
    """float32, uniform in [0, 1): the upper 24 bits of the first word."""
    return (words(seed, position)[0] >> 8).to(torch.float32) * 2.0**-24


def randn(seed: Tensor, position: Tensor) -> Tensor:
    """float32, normal: Box and Muller (1958) of the first two words."""
    first, second, _, _ = words(seed, position)
    # in (0, 1], so that the logarithm is finite
    u = first.to(torch.float32) * 2.0**-32 + 2.0**-33
    angle = (second >> 8).to(torch.float64) * (2.0**-24 * 2 * math.pi)
    return torch.sqrt(-2 * torch.log(u)) * torch.cos(angle).to(torch.float32)


def randint64(seed: Tensor, position: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """int64, uniform in [low, high), which is less than 2^63 wide: 63 bits of the first two words, less the rest of a division."""
    first, second, _, _ = words(seed, position)
    return low + (((second & 0x7FFFFFFF) << 32) | first) % (high - low)


# ---- operators ------------------------------------------------------------------------------------------------------

_library = torch.library.Library("fxloom", "DEF")
_library.define("philox_seeds(int count, *, Device device) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("philox_uniform(Tensor seed, SymInt[] size, *, ScalarType dtype) -> Tensor")
_library.define("philox_normal(Tensor seed, SymInt[] size, *, ScalarType dtype) -> Tensor")
_library.define("philox_integers(Tensor seed, int low, int high, SymInt[] size, *, ScalarType dtype) -> Tensor")


def _seeds(count: int, device: torch.device) -> list[Tensor]:
    """Seeds without axes: as many, all drawn at once from the default generator."""
    return list(torch.empty(count, dtype=torch.int64, device=device).random_().unbind())


def _positions(seed: Tensor, size: Sequence[int]) -> Tensor:
    return torch.arange(math.prod(size), device=seed.device).reshape(list(size))


def _uniform(seed: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Uniform in [0, 1), in steps of 2^-UNIFORM_BITS."""
    positions, bits = _positions(seed, size), UNIFORM_BITS[dtype]
    if dtype is torch.float64:
        low, high = torch.zeros_like(seed), torch.full_like(seed, 1 << bits)
        return randint64(seed, positions, low, high).to(dtype) * 2.0**-bits
    fine = rand(seed, positions)
    return fine if bits == 24 else (torch.floor(fine * 2.0**bits) * 2.0**-bits).to(dtype)


def _normal(seed: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Normal of mean 0 and deviation 1; in float64 of two draws of 53 bits, at positions 2 i and 2 i + 1."""
    positions = _positions(seed, size)
    if dtype is not torch.float64:
        return randn(seed, positions).to(dtype)
    low, high = torch.zeros_like(seed), torch.full_like(seed, 1 << 53)
    first, second = (randint64(seed, 2 * positions + n, low, high).to(dtype) for n in (0, 1))
    return torch.sqrt(-2 * torch.log((first + 1) * 2.0**-53)) * torch.cos(second * (2.0**-53 * 2 * math.pi))


def _integers(seed: Tensor, low: int, high: int, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    positions = _positions(seed, size)
    return randint64(seed, positions, torch.full_like(seed, low), torch.full_like(seed, high)).to(dtype)


for _name, _kernel in (("seeds", _seeds), ("uniform", _uniform), ("normal", _normal), ("integers", _integers)):
    _library.impl(f"philox_{_name}", _kernel, "CompositeExplicitAutograd")


@torch.library.register_fake("fxloom::philox_seeds", lib=_library)
def _fake_seeds(count: int, device: torch.device) -> list[Tensor]:
    return [torch.empty((), dtype=torch.int64, device=device) for _ in range(count)]


@torch.library.register_fake("fxloom::philox_uniform", lib=_library)
@torch.library.register_fake("fxloom::philox_normal", lib=_library)
def _fake_draw(seed: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=seed.device)


@torch.library.register_fake("fxloom::philox_integers", lib=_library)
def _fake_integers(seed: Tensor, low: int, high: int, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=seed.device)


PHILOX_SEEDS = torch.ops.fxloom.philox_seeds.default
PHILOX_UNIFORM = torch.ops.fxloom.philox_uniform.default
PHILOX_NORMAL = torch.ops.fxloom.philox_normal.default
PHILOX_INTEGERS = torch.ops.fxloom.philox_integers.default
#: the pure ones
DRAWS = (PHILOX_UNIFORM, PHILOX_NORMAL, PHILOX_INTEGERS)


def draws_numbers(op: torch._ops.OpOverload) -> bool:
    """Whether `op` draws from a generator, and so moves it on.

    torch's tag is not enough: backward operators of attention have it too, which are given the seed of the forward pass.
    """
    return torch.Tag.nondeterministic_seeded in op.tags and all(argument.name != "philox_seed" for argument in op._schema.arguments)
