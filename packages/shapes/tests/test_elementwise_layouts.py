"""Strides of results of elementwise operators, which go by the strides and the order of the operands: those of eager's kernels."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fxloom_shapes import FakeMode

aten = torch.ops.aten

#: (size, stride)
LAYOUTS = [
    ((3, 3, 1), (3, 1, 1)), ((3, 3, 1), (1, 3, 1)), ((3, 3, 3), (1, 3, 9)), ((3, 3, 3), (9, 1, 3)), ((3, 1, 3), (1, 1, 3)),
    ((3, 3, 3), (18, 3, 1)),
]  # fmt: skip
BINARY: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.add.Tensor, ()), (aten.rsub.Tensor, ()), (aten.xlogy.Tensor, ()), (aten.special_xlog1py.default, ()), (aten.logaddexp.default, ()),
    (aten.heaviside.default, ()), (aten.atan2.default, ()), (aten.copysign.Tensor, ()), (aten.floor_divide.default, ()),
    (aten.logical_and.default, ()), (aten.tanh_backward.default, ()), (aten.sigmoid_backward.default, ()),
    (aten.threshold_backward.default, (0,)), (aten.leaky_relu_backward.default, (0.1, False)), (aten.hardswish_backward.default, ()),
    (aten.hardtanh_backward.default, (-1.0, 1.0)), (aten.hardsigmoid_backward.default, ()), (aten.logit_backward.default, (0.1,)),
    (aten.softplus_backward.default, (1.0, 20.0)),
]  # fmt: skip


def fakes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    mode = FakeMode()
    return [mode.from_tensor(tensor) for tensor in tensors]


@pytest.mark.parametrize(("op", "options"), BINARY, ids=lambda value: str(value))
def test_two_operands(op: Any, options: tuple[Any, ...]) -> None:
    for first, second in itertools.product(LAYOUTS, repeat=2):
        real = [torch.empty_strided(size, stride).fill_(1) for size, stride in (first, second)]
        assert op(*fakes(real), *options).stride() == op(*real, *options).stride(), (first, second)


@pytest.mark.parametrize("op", [aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default])
def test_losses(op: Any) -> None:
    options = (1,) if op is aten.mse_loss_backward.default else (1, 1.0)
    for strides in itertools.product([(9, 3, 1), (1, 3, 9), (9, 1, 3), (0, 0, 0)], repeat=3):
        real = [
            torch.ones(1).expand(3, 3, 3) if stride == (0, 0, 0) else torch.empty_strided((3, 3, 3), stride).fill_(1) for stride in strides
        ]
        assert op(*fakes(real), *options).stride() == op(*real, *options).stride(), strides


@pytest.mark.parametrize(
    ("base", "dtype"), [(2, torch.int32), (2.0, torch.int32), (2, torch.float32), (2j, torch.float32), (True, torch.int32)]
)
def test_powers_of_a_number(base: Any, dtype: torch.dtype) -> None:
    for size, stride in LAYOUTS:
        real = torch.empty_strided(size, stride, dtype=dtype).fill_(1)
        fake, wanted = aten.pow.Scalar(base, *fakes([real])), aten.pow.Scalar(base, real)
        assert (fake.stride(), fake.dtype) == (wanted.stride(), wanted.dtype)


def test_elu_backward() -> None:
    for first, second in itertools.product(LAYOUTS, repeat=2):
        real = [torch.empty_strided(size, stride).fill_(1) for size, stride in (first, second)]
        fake = fakes(real)
        assert (
            aten.elu_backward(fake[0], 1.0, 1.0, 1.0, False, fake[1]).stride()
            == aten.elu_backward(real[0], 1.0, 1.0, 1.0, False, real[1]).stride()
        )


@pytest.mark.parametrize(
    "dtypes", [(torch.float64, torch.float32), (torch.int64, torch.float32), (torch.bool, torch.int64), (torch.int64, torch.int64)], ids=str
)
def test_operands_of_another_type_are_converted_before_their_axes_are_sorted(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    operators = (torch.add, torch.lt, torch.div, lambda a, b: torch.where(a > b, a, b))
    for sizes in (((1, 1), (2, 1, 1)), ((1, 2), (2, 1))):
        for strides in itertools.product(*[itertools.product((1, 2, 3), repeat=len(size)) for size in sizes]):
            real = [torch.empty_strided(*layout, dtype=dtype).zero_() for *layout, dtype in zip(sizes, strides, dtypes)]
            imitated = fakes(real)
            for number, operator in enumerate(operators):
                assert operator(*imitated).stride() == operator(*real).stride(), (number, sizes, strides)
