"""Strides of results for inputs of other memory layouts than row-major, against eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_shapes import FakeMode
from fxloom_shapes.propagate import statistics


def channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def reversed_axes(x: Tensor) -> Tensor:
    axes = tuple(range(x.dim() - 1, -1, -1))
    return x.permute(axes).contiguous().permute(axes)


def with_gaps(x: Tensor) -> Tensor:
    wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., ::2]
    return wide.copy_(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row_major": Tensor.contiguous, "channels_last": channels_last, "reversed": reversed_axes, "gaps": with_gaps,
}  # fmt: skip
Program = Callable[[Tensor], Any]
PROGRAMS: dict[str, Program] = {
    "roll": lambda x: x.roll(1, 2),
    "roll_by_nothing": lambda x: x.roll(0, 2),
    "roll_two_axes": lambda x: x.roll((1, -1), (1, 2)),
    "roll_all": lambda x: x.roll(1),
    "pad_reflect": lambda x: F.pad(x, (1, 2) * (x.dim() - 2), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (1, 2) * (x.dim() - 2), mode="replicate"),
    "group_norm": lambda x: F.group_norm(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2) if x.dim() > 3 else x,
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2) if x.dim() == 4 else x,
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2) if x.dim() == 4 else x,
    "flip": lambda x: x.flip(1),
    "frexp": lambda x: x.frexp(),
    "normal": lambda x: torch.normal(x, x.abs()),
    "native_dropout_backward": lambda x: torch.ops.aten.native_dropout_backward(x, x > 0, 2.0),
    "logaddexp": lambda x: torch.logaddexp(x, x.contiguous()),
    "logaddexp_broadcast": lambda x: torch.logaddexp(x[:, :1], x[0]),
    "xlogy": lambda x: torch.xlogy(x, x.contiguous().abs()),
    "heaviside": lambda x: torch.heaviside(x, x.contiguous()),
    "ldexp": lambda x: torch.ldexp(x[:, :1], x[0]),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros_like(x[:, 0], dtype=torch.int64), reduction="none"),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}


def layouts_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return tuple(map(layouts_of, value))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_strides_are_eagers(name: str, layout: str, rank: int, batch: int) -> None:
    x = LAYOUTS[layout](torch.randn(batch, 4, *(6, 8, 4)[: rank - 2]))
    mode = FakeMode()
    with mode:
        fake = PROGRAMS[name](mode.from_tensor(x))
    assert layouts_of(fake) == layouts_of(PROGRAMS[name](x))


@pytest.mark.parametrize("name", ["hardtanh", "relu6", "nan_to_num", "flip", "fill", "frexp", "roll"])
def test_an_empty_tensor_keeps_its_strides(name: str) -> None:
    programs: dict[str, Program] = {
        "hardtanh": F.hardtanh, "relu6": F.relu6, "nan_to_num": torch.nan_to_num, "flip": torch.fliplr,
        "fill": lambda x: torch.fill(x, 1.0), "frexp": torch.frexp, "roll": lambda x: x.roll(1, 2),
    }  # fmt: skip
    x = torch.empty(5, 0, 20)[..., ::2]
    mode = FakeMode()
    with mode:
        fake = programs[name](mode.from_tensor(x))
    assert layouts_of(fake) == layouts_of(programs[name](x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_choose_the_memory_format(rank: int, transposed: bool, dtype: torch.dtype) -> None:
    tried = 0
    before = statistics.meta_kernels
    for batch, channels, outputs, groups in ((1, 2, 4, 1), (2, 2, 4, 1), (2, 4, 8, 4), (1, 1, 1, 1), (2, 3, 1, 1), (64, 4, 4, 1)):
        for extent, kernel in ((5, 3), (5, 1), (6, 5)):
            for layout in ("row_major", "channels_last", "reversed"):
                for of_weight in ("row_major", "channels_last", "reversed"):
                    shape = (channels, outputs // groups) if transposed else (outputs, channels // groups)
                    x = LAYOUTS[layout](torch.randn(batch, channels, *[extent] * rank).to(dtype))
                    weight = LAYOUTS[of_weight](torch.randn(*shape, *[kernel] * rank).to(dtype))
                    options = None, [1] * rank, [0] * rank, [1] * rank, transposed, [0] * rank, groups
                    real = torch.ops.aten.convolution.default(x, weight, *options)
                    mode = FakeMode()
                    with mode:
                        fake = torch.ops.aten.convolution.default(mode.from_tensor(x), mode.from_tensor(weight), *options)
                    assert layouts_of(fake) == layouts_of(real), (x.shape, x.stride(), weight.shape, weight.stride(), groups)
                    tried += 1
    assert tried == 162
    assert statistics.meta_kernels == before


def test_transposed_convolution_has_eagers_sizes() -> None:
    for stride, padding, added, dilation in ((2, 1, 1, 1), (3, 0, 2, 2), (1, 1, 0, 2), (2, 2, 0, 1)):
        x, weight = torch.randn(2, 4, 7, 9), torch.randn(4, 3, 3, 5)
        options = None, [stride] * 2, [padding] * 2, [dilation] * 2, True, [added] * 2, 2
        mode = FakeMode()
        with mode:
            fake = torch.ops.aten.convolution.default(mode.from_tensor(x), mode.from_tensor(weight), *options)
        assert layouts_of(fake) == layouts_of(torch.ops.aten.convolution.default(x, weight, *options))


def test_a_number_expanded_as_a_matrix_has_no_strides() -> None:
    mode = FakeMode()
    with mode:
        fake = mode.from_tensor(torch.ones(())).expand(1, 1)
    assert fake.stride() == torch.ones(()).expand(1, 1).stride() == (0, 0)
