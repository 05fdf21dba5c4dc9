"""Random numbers as functions of a seed and a position: what `rand`, `randn` and `randint64` of the loop IR compute.

In: tensors of seeds and positions, both int64. Out: a number for each position. Philox 4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), keyed by the seed, counted by the position, both 64 bits wide. Invariant: the functions
are pure. The operators that graphs draw by are in `fxloom_ops.philox`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


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
