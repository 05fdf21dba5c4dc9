"""Operators that move data, beside eager's kernels, where the operator database says little: layouts, edges, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_against_eager import Compare

from fxloom_decomp import indexing, shape

aten = torch.ops.aten
torch.manual_seed(0)
IMAGE = torch.randn(2, 6, 5, 7)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3),
}
#: of an image
PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    *(lambda x, pad=pad: F.pad(x, pad, mode="replicate") for pad in ([-1, 2, 1, -1], [1, 1, -2, -2], [0, 3, -4, 2], [-5, 6, 0, 0], [8, -1, -1, -2])),
    lambda x: F.pad(x[0], [-1, 2], mode="replicate"),
    *(lambda x, mode=mode: F.pad(x[:0], [1, 2, 0, 1], mode=mode) for mode in ("replicate", "reflect")),
    lambda x: F.adaptive_avg_pool2d(x[:0], 3),
    *(
        lambda x, d=d, size=size, step=step: x.unfold(d, size, step)
        for d, size, step in ((1, 2, 1), (3, 3, 2), (2, 1, 2), (2, 5, 1), (0, 2, 3), (-1, 2, 5))
    ),
    lambda x: aten.unfold_copy(x.reshape(-1), 0, 20, 1),
    lambda x: x[0, 0, 0, 0].unfold(0, 1, 1),
    lambda x: torch.roll(x[:0], 1, 0),
    lambda x: torch.block_diag(x[0, 0], x[0, 0, 0, 0], x[0, 0, 0]),
]
#: of an image, without gradients
OTHERS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: torch.channel_shuffle(x, 3),
    lambda x: aten._chunk_cat([x, x[:, :, :3]], 2, 4),
    lambda x: aten._chunk_cat([x, x[:1]], 0, 2),
    lambda x: aten.split_copy(x, 2, 1),
    lambda x: aten.split_with_sizes_copy(x, [1, 5], 1),
    *(
        lambda x, size=size, stride=stride, at=at: torch.as_strided_scatter(x.contiguous(), x.new_ones(size), size, stride, at)
        for size, stride, at in (([2, 3], [7, 2], 3), ([2, 3, 4], [50, 12, 3], None), ([], [], 5), ([4], [1], 0))
    ),
    lambda x: torch.block_diag(torch.ones(2, 2, dtype=torch.int32), torch.ones(3), torch.tensor(5.0), torch.ones(0)),
    lambda x: torch.repeat_interleave(torch.tensor([1, 2, 0, 4]), output_size=7),
    *(lambda x, no=no: (torch.isin(x.round(), 1, invert=no), torch.isin(1, x.round(), invert=no)) for no in (False, True)),
    *(
        lambda x, size=size, dtype=dtype: (torch.tril_indices(*size, dtype=dtype), torch.triu_indices(*size, dtype=dtype))
        for size in ((4, 5, 0), (4, 5, 1), (5, 3, -2), (3, 3, 5), (3, 3, -5), (0, 4, 0), (4, 0, 1), (6, 2, 2), (1, 1, 0))
        for dtype in (torch.int64, torch.int32)
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moved_data(layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in (indexing, shape):
        monkeypatch.setattr(family, "_library_is_faster", lambda x: False)
    image, mode = LAYOUTS[layout](IMAGE.to(dtype)), Compare()
    for program in PROGRAMS:
        x = image.detach().requires_grad_()
        with mode:
            y = program(x)
            torch.autograd.backward([y], [torch.randn_like(y)])
    with mode:
        for program in OTHERS:
            program(image)
    assert not mode.faults + mode.failures
    wanted = (
        aten.replication_pad2d_backward, aten.unfold_backward, aten.channel_shuffle, aten.block_diag, aten._chunk_cat,
        aten.as_strided_scatter, aten.tril_indices, aten.triu_indices, aten.roll,
    )  # fmt: skip
    assert all(mode.checked[op.default] for op in wanted) and mode.checked[aten.repeat_interleave.Tensor]
