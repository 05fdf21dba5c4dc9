"""Average pooling of any divisor against eager, on the reference interpreter."""

from __future__ import annotations

import pytest
import torch
from core_graphs import check

from fxloom_inductor_core.lowering import pooling

torch.manual_seed(0)
PLANES = torch.randn(2, 3, 9, 8) * 10
#: kernel, stride, padding, rounded up, counting what is padded, divisor
WINDOWS = [
    ([3], [1], [1], True, False, 2),
    ([4, 4], [2, 3], [1], True, False, 2),
    ([6, 4], [3, 3], [2, 2], True, True, 2),
    ([2, 2], [], [0], False, True, -2),
    ([4, 4], [2, 2], [2], True, True, None),
    ([4, 4], [2, 2], [2], True, False, None),
    ([3, 3], [2, 2], [1], False, False, None),
    ([3, 2], [2, 3], [0], True, True, None),
    ([6, 6], [1, 2], [1], True, False, None),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_equals_eager_without_fallback(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_library_is_faster", lambda *given: False)
    planes = PLANES.to(dtype)
    layouts = (planes, planes.to(memory_format=torch.channels_last), planes.transpose(2, 3), planes[0], planes[:0])
    for layout in layouts:
        graph = check(
            lambda x: [torch.ops.aten.avg_pool2d(x, *windows) for windows in WINDOWS],
            layout,
            rtol=2e-2 if dtype.itemsize == 2 else 1e-5 if dtype.is_floating_point else 0,
        )
        assert graph.fallbacks == () and graph.library_calls == ()


def test_large_windows_and_masked_channels_last_are_the_librarys_on_the_cpu() -> None:
    graph = check(lambda x: torch.ops.aten.avg_pool2d(x, [6, 6], [1, 1], [1, 1]), PLANES)
    assert graph.library_calls == (("aten.avg_pool2d", 1),)
    graph = check(lambda x: torch.ops.aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1]), PLANES.to(memory_format=torch.channels_last))
    assert graph.library_calls == (("aten.avg_pool2d", 1),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_windows_along_three_axes_are_kernels_too(dtype: torch.dtype) -> None:
    volumes = (torch.randn(2, 3, 7, 9, 8) * 10).to(dtype)
    windows = (
        ([2], [], [0], False, True, None),
        ([3], [2], [1], True, False, None),
        ([2, 3, 1], [1, 2, 1], [1, 1, 0], True, True, 5),
    )
    graph = check(lambda x: [torch.ops.aten.avg_pool3d(x, *window) for window in windows], volumes)
    assert graph.fallbacks == () and graph.library_calls == ()
