"""Running folds against eager, on the reference interpreter: values, positions, one kernel each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_graphs import check, compiled

torch.manual_seed(0)
NUMBERS = torch.randint(-3, 4, (5, 6, 7))
SCANS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("name", SCANS)
def test_dtypes_and_dims(name: str) -> None:
    scan = SCANS[name]
    for dtype in DTYPES:
        if name == "logcumsumexp" and not dtype.is_floating_point:
            continue
        x = NUMBERS.to(dtype)
        for dim in (0, 1, -1):
            tolerance = 2 * torch.finfo(dtype).eps if dtype.is_floating_point and dtype.itemsize == 2 else 1e-5
            graph = check(lambda x, dim=dim: scan(x, dim), x, rtol=tolerance)
            called = name in ("cummax", "cummin") and dtype.itemsize == 2 and dtype.is_floating_point and dim == -1
            assert (graph.fallbacks, len(graph.kernel_sources)) == ((), 0 if called else 1)


@pytest.mark.parametrize("name", SCANS)
def test_shapes_and_layouts(name: str) -> None:
    scan = SCANS[name]
    x = NUMBERS.double()
    for value, dim in ((x[0, 0, 0], 0), (x[:, :1, :1], 1), (x.permute(2, 0, 1), 0), (x[:, ::2, 1::3], 1), (x[:0], 1), (x[:, :0], 1)):
        assert check(lambda x, dim=dim: scan(x, dim), value).fallbacks == ()


def test_not_numbers() -> None:
    nan, inf = math.nan, math.inf
    rows = torch.tensor([[1, 3, 3, nan, 5, nan, 2], [-inf, -inf, inf, 1, inf, -inf, 0], [0.0, -0.0, 0.0, -1000, 1, nan, inf]])
    for name in ("cummax", "cummin", "logcumsumexp"):
        check(lambda x, name=name: SCANS[name](x, -1), rows)


def test_what_precedes_is_fused() -> None:
    graph = compiled(lambda x: torch.cummax(x * 2, 1), torch.randn(4, 9))
    assert len(graph.kernel_sources) == 1
