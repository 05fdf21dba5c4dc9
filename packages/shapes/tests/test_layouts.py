"""Strides of results for inputs of other memory layouts than row-major, against eager's."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxloom_shapes import FakeMode
from fxloom_shapes.propagation.propagate import _plans, statistics
from fxloom_shapes.rules import convolution

HALVES = ("torch.bfloat16", "torch.float16")


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
    "log_sigmoid": torch.ops.aten.log_sigmoid_forward,
    "heaviside": lambda x: torch.heaviside(x, x.contiguous()),
    "ldexp": lambda x: torch.ldexp(x[:, :1], x[0]),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros_like(x[:, 0], dtype=torch.int64), reduction="none"),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm_with_update": lambda x: torch.ops.aten._batch_norm_with_update(x, *[torch.ones(4) for _ in range(4)], 0.1, 1e-5),
    "rrelu": lambda x: (F.rrelu(x, training=True), F.rrelu(x)),
    "gradient": lambda x: torch.gradient(x, dim=1),
    "cat_of_one_channel": lambda x: torch.cat([x[:, :1], x[:, 1:2]], 0),
    "cat_of_single_rows": lambda x: torch.cat([x[:, :, :1], x[:, :, -1:]], 1),
    "view_copy": lambda x: torch.view_copy(x, (x.shape[0], -1)),
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


@pytest.mark.parametrize(
    "name", ["hardtanh", "relu6", "nan_to_num", "flip", "fill", "frexp", "roll", "randint_like", "randint_like_between"]
)
def test_an_empty_tensor_keeps_its_strides(name: str) -> None:
    programs: dict[str, Program] = {
        "hardtanh": F.hardtanh, "relu6": F.relu6, "nan_to_num": torch.nan_to_num, "flip": torch.fliplr,
        "fill": lambda x: torch.fill(x, 1.0), "frexp": torch.frexp, "roll": lambda x: x.roll(1, 2),
        "randint_like": lambda x: torch.randint_like(x, 9), "randint_like_between": lambda x: torch.randint_like(x, 2, 9),
    }  # fmt: skip
    x = torch.empty(5, 0, 20)[..., ::2]
    mode = FakeMode()
    with mode:
        fake = programs[name](mode.from_tensor(x))
    assert layouts_of(fake) == layouts_of(programs[name](x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
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


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("isa", ["AVX2", "ALL"])
def test_convolutions_choose_the_memory_format_of_the_processor(isa: str) -> None:
    """oneDNN answers for a processor of at most these instructions: a process asks once, so another one runs the test above."""
    halves = [f"{__file__}::test_convolutions_choose_the_memory_format[3-{t}-{d}]" for t in (False, True) for d in HALVES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *halves],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "4 passed" in done.stdout


@pytest.mark.cpu_only("oneDNN is asked on the CPU")
@pytest.mark.parametrize("has", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_in_three_dimensions_follows_onednn(dtype: torch.dtype, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both answers, whatever this processor's is; the real result can be compared with one of them only (above)."""
    monkeypatch.setattr(convolution, "onednn_computes", lambda asked: asked is dtype and has)
    x = channels_last(torch.randn(2, 4, 5, 5, 5).to(dtype))
    mode = FakeMode()
    _plans.clear()  # of the other answer
    try:
        with mode:
            fake = F.conv3d(mode.from_tensor(x), mode.from_tensor(torch.randn(4, 4, 3, 3, 3).to(dtype)))
    finally:
        _plans.clear()
    assert fake.stride() == ((108, 1, 36, 12, 4) if has else (108, 27, 9, 3, 1))


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


@pytest.mark.parametrize("size", [(1, 0, 2, 2), (0, 4, 2, 4), (2, 3, 4, 0)])
def test_pixels_of_an_empty_picture_are_not_shuffled_back(size: tuple[int, ...]) -> None:
    x = torch.empty(*size[:-1], 2 * size[-1])[..., ::2]
    mode = FakeMode()
    with mode:
        fake = F.pixel_unshuffle(mode.from_tensor(x), 2)
    assert layouts_of(fake) == layouts_of(F.pixel_unshuffle(x, 2))


@pytest.mark.parametrize("sizes", [((0, 1), (1,)), ((3, 0, 2), (2,)), ((2, 0, 3), (2, 1, 3)), ((2, 3, 0, 4), (3, 1, 1))])
def test_strides_of_empty_results_are_eagers(sizes: tuple[tuple[int, ...], ...]) -> None:
    """In any order but the row-major one the axes outside of an empty one have stride 0."""
    for layout in (torch.Tensor.contiguous, reversed_axes):
        for strides in (None, (1,) * len(sizes[0])):
            x, y = layout(torch.empty(sizes[0])), torch.empty(sizes[1])
            x = x if strides is None else x.as_strided(x.shape, strides)
            for program in (torch.add, torch.logaddexp, lambda a, b: torch.where(a > b, a, b), lambda a, b: (-a, torch.empty_like(a))):
                mode = FakeMode()
                with mode:
                    fake = program(mode.from_tensor(x), mode.from_tensor(y))
                assert layouts_of(fake) == layouts_of(program(x, y)), (x.stride(), y.shape)


@pytest.mark.parametrize("of_a", ["row_major", "reversed"])
@pytest.mark.parametrize("of_b", ["row_major", "reversed"])
@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_products_take_factors_that_lie_in_any_way(of_a: str, of_b: str, by_row: bool) -> None:
    a, b = (LAYOUTS[layout](torch.randn(16, 16)).to(torch.float8_e4m3fn) for layout in (of_a, of_b))
    scales = (torch.ones(16, 1), torch.ones(1, 16)) if by_row else (torch.ones(()), torch.ones(()))
    mode = FakeMode()
    for dtype in (None, torch.bfloat16):
        program = functools.partial(torch._scaled_mm, out_dtype=dtype)
        try:
            real = program(a, b, *scales)
        except RuntimeError as error:
            pytest.skip(f"this torch has no such kernel on the CPU: {error}")
        with mode:
            fake = program(*map(mode.from_tensor, (a, b, *scales)))
        assert layouts_of(fake) == layouts_of(real)


def test_the_memory_format_follows_the_number_of_threads() -> None:
    """oneDNN leaves small convolutions in three dimensions to others where there is one thread: no plan is kept of that."""
    x, weight = torch.randn(2, 4, 5, 5, 5).to(memory_format=torch.channels_last_3d), torch.randn(4, 4, 1, 1, 1)
    before, mode = torch.get_num_threads(), FakeMode()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            with mode:
                fake = F.conv3d(mode.from_tensor(x), mode.from_tensor(weight))
            assert fake.stride() == F.conv3d(x, weight).stride(), threads
    finally:
        torch.set_num_threads(before)


def _laid_out(shape: list[int], dtype: torch.dtype, random: random.Random) -> torch.Tensor:
    """A tensor of one value, contiguous, permuted, with gaps or expanded."""
    order = random.sample(range(len(shape)), len(shape))
    permuted = torch.zeros([shape[axis] for axis in order], dtype=dtype).permute([order.index(axis) for axis in range(len(shape))])
    gaps = torch.zeros([2 * extent for extent in shape], dtype=dtype)[tuple(slice(0, None, 2) for _ in shape)]
    expanded = torch.zeros([random.choice((1, extent)) for extent in shape], dtype=dtype).expand(shape)
    return random.choice((torch.zeros(shape, dtype=dtype), permuted, gaps, expanded))


@pytest.mark.parametrize(("seed", "dtype", "extents"), [(0, torch.int64, (1, 2, 3, 4)), (1, torch.int32, (2, 3, 4))], ids=str)
def test_what_indices_pick_has_eagers_strides(seed: int, dtype: torch.dtype, extents: tuple[int, ...]) -> None:
    """400 indexings by one to four tensors, side by side and apart."""
    drawn = random.Random(seed)
    for _ in range(400):
        shape = [drawn.choice(extents) for _ in range(drawn.randint(1, 4))]
        picked = [drawn.choice(extents[:-1]) for _ in range(drawn.randint(0, 3))]
        x = _laid_out(shape, torch.float32, drawn)
        indices = [_laid_out(picked[drawn.choice((0, 0, 1)) :], dtype, drawn) if drawn.random() < 0.6 else None for _ in shape]
        indices[drawn.randrange(len(shape))] = _laid_out(picked, dtype, drawn)
        mode = FakeMode()
        with mode:
            fake = torch.ops.aten.index.Tensor(mode.from_tensor(x), [None if index is None else mode.from_tensor(index) for index in indices])
        real = torch.ops.aten.index.Tensor(x, indices)
        assert fake.shape == real.shape
        same = [a == b for a, b, extent in zip(fake.stride(), real.stride(), real.shape, strict=True) if extent > 1]
        assert all(same), (x.shape, x.stride(), [(i.shape, i.stride()) for i in indices if i is not None], fake.stride(), real.stride())
