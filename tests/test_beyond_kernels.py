"""Dtypes, devices and operators that no layer has a model of are library calls or graph breaks, never internal errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxloom

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "chalf_sum": lambda x: x.chalf() + 1,
    "chalf_clone": lambda x: x.chalf().clone(),
    "chalf_cat": lambda x: torch.cat([x.chalf(), x.chalf()]),
    "chalf_transposed": lambda x: x.chalf().t().contiguous(),
    "chalf_view": lambda x: torch.view_as_real(x.chalf()),
    "chalf_widened": lambda x: (x.chalf().to(torch.complex64) * 2).real + x,
    **{f"{dtype}_cast": lambda x, dtype=dtype: x.to(dtype).float() * 2 for dtype in FLOAT8},
    **{f"{dtype}_cat": lambda x, dtype=dtype: torch.cat([x.to(dtype), x.to(dtype)]).float() for dtype in FLOAT8},
    **{f"{dtype}_clone": lambda x, dtype=dtype: x.to(dtype).clone().t() for dtype in UNSIGNED},
    **{f"{dtype}_stack": lambda x, dtype=dtype: torch.stack([x.to(dtype), x.to(dtype)])[1].long() + 1 for dtype in UNSIGNED},
    "full_float8": lambda x: torch.full((3,), 2.0).to(torch.float8_e5m2).float() + x[0, 0],
    "bits": lambda x: x.view(torch.bits16).shape,
    "same_storage": lambda x: torch._has_compatible_shallow_copy_type(x, x),
    "sparse": lambda x: x.to_sparse().to_dense() + 1,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize() + 1,
    "mkldnn": lambda x: x.to_mkldnn().to_dense() + 1,
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", CALLS)
def test_what_kernels_do_not_have(name: str, backend: str) -> None:
    x = torch.arange(8.0).view(2, 4)
    result, expected = fxloom.compile(CALLS[name], backend=backend)(x), CALLS[name](x)
    if not isinstance(expected, Tensor):
        assert result == expected
        return
    assert (result.dtype, result.shape, result.stride()) == (expected.dtype, expected.shape, expected.stride())
    wide = torch.complex64 if expected.dtype.is_complex else torch.float64
    torch.testing.assert_close(result.to(wide), expected.to(wide))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_an_operator_without_a_fake_kernel_raises_what_eager_raises(backend: str) -> None:
    def program(x: Tensor) -> Any:
        return torch._use_cudnn_ctc_loss(x[None].log_softmax(-1), torch.tensor([1, 2]), [1, 1], [1, 1], 0)

    with pytest.raises(NotImplementedError, match="_use_cudnn_ctc_loss"):  # without a GPU, that is
        fxloom.compile(program, backend=backend)(torch.ones(2, 4))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_tensors_on_meta(backend: str) -> None:
    result = fxloom.compile(lambda x: (x.to("meta") + 1, torch.empty(3, device="meta") * 2), backend=backend)(torch.ones(2, 4))
    assert [(part.device.type, part.shape) for part in result] == [("meta", (2, 4)), ("meta", (3,))]


def test_one_graph_with_calls_amid_kernels(counters_at_zero: None) -> None:
    x = torch.arange(8.0)
    program = fxloom.compile(lambda x: (x + 1).to(torch.float8_e4m3fn).float() * 2, fullgraph=True)
    torch.testing.assert_close(program(x), (x + 1).to(torch.float8_e4m3fn).float() * 2)
    assert fxloom.stats().graphs == 1 and fxloom.stats().kernels["cpp"] == 2
    assert fxloom.stats().fallbacks, "named as what runs without a kernel"
