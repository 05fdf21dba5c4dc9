"""The operators that graphs draw random numbers by, as functions of a seed and a position.

In: a number of seeds and a device (`philox_seeds`); a seed, a size and a dtype (the others). Out: seeds; numbers.
Invariant: `philox_seeds` is the one that has an effect: it takes seeds from a device's default generator, and so advances it. The
others are pure: element i, counted in rows, of a draw is a function of (seed, i). So a value may be computed twice and is the
same, a backward pass needs the seed alone, and a kernel draws where it needs the number. What they compute is defined by
`fxloom_interfaces.philox`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fxloom_interfaces.philox import rand, randint64, randn

#: bits of a uniform number, by type: as many as every number below 1 has room for
UNIFORM_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

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
