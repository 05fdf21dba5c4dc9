"""Layouts of fused attention on the CPU: what fakes say against what the kernels give."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxloom_shapes import FakeMode

aten = torch.ops.aten
B, H, N, D = 2, 3, 4, 8

#: (batch, heads, length, width) in memory as the name says
LAYOUTS: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": lambda memory, b, h, n, d: memory(b, h, n, d),
    "projected": lambda memory, b, h, n, d: memory(b, n, h, d).transpose(1, 2),
    "part of a projection": lambda memory, b, h, n, d: memory(b, n, 3 * h, d)[:, :, h : 2 * h].transpose(1, 2),
    "padded rows": lambda memory, b, h, n, d: memory(b, h, n, 2 * d)[..., :d],
    "heads outermost": lambda memory, b, h, n, d: memory(h, b, n, d).transpose(0, 1),
    "length outermost": lambda memory, b, h, n, d: memory(n, b, h, d).permute(1, 2, 0, 3),
    "same for all": lambda memory, b, h, n, d: memory(1, h, n, d).expand(b, h, n, d),
}


def made(layout: str, length: int, dtype: torch.dtype = torch.float32, heads: int = H) -> torch.Tensor:
    return LAYOUTS[layout](functools.partial(torch.randn, dtype=dtype), B, heads, length, D)


def compare(call: Callable[..., Any], *tensors: Any) -> Any:
    """Eager's results, after a look at those of fakes."""
    real = call(*tensors)
    mode = FakeMode()
    fakes = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in tensors]
    with mode:
        fake = call(*fakes)
    for mine, theirs in zip(fake if isinstance(fake, tuple) else [fake], real if isinstance(real, tuple) else [real], strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    return real


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("query", "key"), list(itertools.product(LAYOUTS, ["contiguous", "projected", "padded rows"])))
def test_flash_attention_forward_and_backward(query: str, key: str, dtype: torch.dtype) -> None:
    q, k, v = made(query, N, dtype), made(key, N + 2, dtype), made(key, N + 2, dtype)
    out, lse = compare(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v)
    for layout in ("contiguous", "projected"):
        grad = made(layout, N, dtype)
        compare(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, grad, q, k, v, out, lse, 0.0, False)


@pytest.mark.parametrize("query", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.zeros(N, N + 2)}, {"enable_gqa": True}], ids=str)
def test_public_function(query: str, options: dict[str, Any]) -> None:
    """Whatever kernel it chooses."""
    heads = 1 if options.get("enable_gqa") else H
    q, k, v = made(query, N), made("projected", N + 2, heads=heads), made("projected", N + 2, heads=heads)
    mask = options.get("attn_mask")
    rest = {name: value for name, value in options.items() if name != "attn_mask"}
    compare(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, **rest), q, k, v, mask)


@pytest.mark.parametrize("query", LAYOUTS)
def test_unfused_attention(query: str) -> None:
    q, k, v = made(query, N), made("contiguous", N), made("projected", N)
    compare(aten._scaled_dot_product_attention_math.default, q, k, v)
