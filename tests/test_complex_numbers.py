"""Complex numbers through `inductor`: no kernel has them, so every operator that does more than look calls eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom

torch.manual_seed(0)
Z, OTHER = torch.randn(4, 6, dtype=torch.cfloat), torch.randn(4, 6, dtype=torch.cfloat)
ROWS = torch.tensor([1, 0, 3])


def _set(z: torch.Tensor) -> torch.Tensor:
    y = z.clone()
    y[1:3] = 0
    return y


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cat": lambda z: torch.cat([z[:1].expand(4, 6), z * 2]),
    "stack": lambda z: torch.stack([z, z]),
    "clone": lambda z: z.t().clone(),
    "contiguous": lambda z: z.t().contiguous() * 1,
    "flip": lambda z: z.flip(0),
    "roll": lambda z: z.roll(1, 0),
    "index": lambda z: z[ROWS],
    "gather": lambda z: z.gather(0, torch.zeros(2, 6, dtype=torch.long)),
    "pad": lambda z: F.pad(z, (1, 1)),
    "repeat": lambda z: z.repeat(2, 1),
    "where": lambda z: torch.where(z.real > 0, z, OTHER),
    "reductions": lambda z: (z.sum(0), z.mean(), z.prod(0), z.cumsum(0)),
    "triangle": lambda z: (z.tril(), z.triu()),
    "diagonal": lambda z: z.diagonal().clone(),
    "products": lambda z: (z @ z.t(), F.linear(z, OTHER), torch.bmm(z[None].transpose(1, 2), z[None])),
    "comparison": lambda z: (z == OTHER, z.isnan()),
    "conjugate": lambda z: z.conj() * OTHER,
    "set": _set,
    "scatter": lambda z: (torch.slice_scatter(z, OTHER[:2], 0, 0, 2), z.index_put((ROWS,), OTHER[:3])),
    "reshape": lambda z: z.t().reshape(3, 8) + 1,
    "parts": lambda z: (z.real, z.imag * 2, z.real.to(torch.cfloat) + z),
    "zeros": lambda z: torch.zeros(4, 6, dtype=torch.cfloat) + z,
    "maths": lambda z: (z.exp().abs(), z**2, z * (1 + 2j)),
    "unfold": lambda z: z.unfold(1, 2, 1).clone(),
    "strided": lambda z: z.as_strided((2, 2), (1, 6)).clone(),
    "split": lambda z: torch.cat(z.chunk(3, 1)[::-1], 1),
    "other strides": lambda z: torch.empty(6, 4, dtype=torch.cfloat).t().copy_(z),
}

TRAINING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "spectrum": lambda x: torch.fft.rfft(x).abs().sum(),
    "angles": lambda x: torch.fft.rfft(x).angle().sum(),
    "short time": lambda x: torch.stft(x.repeat(20), 16, return_complex=True, window=torch.ones(16)).abs().sum(),
    "convolution": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x.cos()), n=8).square().sum(),
    "polar": lambda x: torch.polar(x.abs(), x).exp().real.sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_strides(name: str) -> None:
    wanted, got = PROGRAMS[name](Z), fxloom.compile(PROGRAMS[name], fullgraph=True)(Z)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    assert all(mine.stride() == theirs.stride() for mine, theirs in pairs)


@pytest.mark.parametrize("name", TRAINING)
def test_gradients(name: str) -> None:
    x = torch.linspace(-2, 3, 8).requires_grad_()
    (wanted,) = torch.autograd.grad(TRAINING[name](x), x)
    (got,) = torch.autograd.grad(fxloom.compile(TRAINING[name])(x), x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
