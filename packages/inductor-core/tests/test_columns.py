"""Windows as columns, and columns added up to images, against eager on the reference interpreter."""

from __future__ import annotations

import pytest
import torch
from core_graphs import check, compiled

from fxloom_inductor_core.lowering import columns

aten = torch.ops.aten
torch.manual_seed(0)
IMAGE = torch.randn(2, 3, 6, 7)
#: kernel, dilation, padding, stride
WINDOWS = [
    ([2, 3], [1, 1], [0, 0], [1, 1]),
    ([2, 2], [2, 1], [1, 0], [2, 1]),
    ([3, 3], [1, 2], [1, 2], [2, 3]),
    ([1, 1], [1, 1], [0, 0], [3, 2]),
    ([6, 6], [1, 1], [2, 2], [1, 1]),
    ([4, 4], [1, 1], [1, 2], [3, 2]),
]


@pytest.fixture(autouse=True)
def whatever_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_library_is_faster", lambda device, axes: False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_windows_as_columns(dtype: torch.dtype) -> None:
    image = IMAGE.to(dtype)
    layouts = (image, image.to(memory_format=torch.channels_last), image.transpose(2, 3), image[0], image[:, :1].expand(2, 3, 6, 7))
    for layout in layouts:
        graph = check(lambda x: [aten.im2col(x, *windows) for windows in WINDOWS], layout, rtol=0)
        assert graph.fallbacks == () and graph.library_calls == ()


@pytest.mark.parametrize("windows", WINDOWS)
def test_columns_added_up(windows: tuple[list[int], ...]) -> None:
    """To the bit: terms are added in eager's order."""
    for dtype in (torch.float32, torch.float64):
        given = torch.randn_like(aten.im2col(IMAGE.to(dtype), *windows))
        for given_now in (given, given.transpose(1, 2).contiguous().transpose(1, 2), given[0]):
            graph = check(lambda x: aten.col2im(x, [6, 7], *windows), given_now, rtol=0)
            assert graph.fallbacks == () and graph.library_calls == ()
    half = given.bfloat16()
    exact, eager = aten.col2im(half.double(), [6, 7], *windows), aten.col2im(half, [6, 7], *windows)
    (got,) = compiled(lambda x: aten.col2im(x, [6, 7], *windows), half)([half])
    assert (got.double() - exact).abs().max() <= (eager.double() - exact).abs().max()
