"""Upsampling compiled: gradients are kernels on every device, for sizes that change too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom


def gradient(x: torch.Tensor, mode: str) -> torch.Tensor:
    x = x.detach().requires_grad_()
    y = F.interpolate(x, scale_factor=2.0, mode=mode)
    return torch.autograd.grad((y * y).sum(), x)[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_gradients_of_upsampling(mode: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    fxloom.reset()
    compiled: Any = fxloom.compile(gradient, dynamic=dynamic, fullgraph=True)
    for size in ((2, 3, 5, 6), (3, 4, 8, 9))[: 1 + dynamic]:
        for layout in (torch.contiguous_format, torch.channels_last)[: 2 - dynamic]:
            x = torch.randn(size).to(memory_format=layout)
            got, want = compiled(x, mode), gradient(x, mode)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            assert got.stride() == want.stride()
    assert not fxloom.stats().fallbacks
