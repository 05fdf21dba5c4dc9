"""The register, the sets, `decompose`, and the distribution of what random rules draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx

import fxloom_decomp
from fxloom_decomp.registry import OPMATH, REGISTRY, decomposition
from fxloom_interfaces.errors import ConfigError, InternalError
from fxloom_interfaces.meta import set_fake

aten = torch.ops.aten


def test_a_second_rule_is_an_error_that_names_both_places() -> None:
    fxloom_decomp.registered()
    with pytest.raises(InternalError, match=r"activation\.py:\d+ and .*test_registry\.py:\d+"):
        decomposition(aten.silu.default)(lambda x: x)


def test_sets() -> None:
    assert aten.silu.default in fxloom_decomp.table("inductor")
    assert aten.gelu.default not in fxloom_decomp.table("core_aten")  # a core operator
    assert aten.silu.default in fxloom_decomp.table("core_aten")
    with pytest.raises(ConfigError, match="inductor"):
        fxloom_decomp.table("inducktor")


def test_half_types_compute_in_float32() -> None:
    assert fxloom_decomp.registered()[aten.gelu.default].promote is OPMATH
    x = torch.linspace(-1, 4, 1001).to(torch.bfloat16)
    mine = fxloom_decomp.table("inductor")[aten.gelu.default](x)
    assert mine.dtype is torch.bfloat16
    exact = torch.nn.functional.gelu(x.double())
    rounding = exact.abs() * 2**-8 + 1e-6  # half an ulp and float32's own error
    assert ((mine.double() - exact).abs() <= rounding).all()


def test_decompose_rewrites_until_nothing_is_left() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    set_fake(x, torch.randn(3, 4, device="meta"))
    call = graph.call_function(aten.mish.default, (graph.call_function(aten.silu.default, (x,)),))
    graph.output((graph.call_function(aten.native_layer_norm.default, (call, [4], None, None, 1e-5)),))
    table = fxloom_decomp.table("inductor")
    gm = fxloom_decomp.decompose(torch.fx.GraphModule(torch.nn.Module(), graph), table)
    targets = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    assert targets and not any(target in table for target in targets)


def test_dropout_keeps_the_mean_and_its_mask() -> None:
    torch.manual_seed(0)
    out, mask = fxloom_decomp.table("inductor")[aten.native_dropout.default](torch.ones(200, 200), 0.25, True)
    assert abs(mask.float().mean().item() - 0.75) < 0.01
    assert torch.equal(out, torch.where(mask, 1 / 0.75, 0.0))


@pytest.mark.parametrize(
    ("op", "args", "mean", "deviation"),
    [
        (aten.uniform.default, (2.0, 4.0), 3.0, 2 / 12**0.5),
        (aten.normal_functional.default, (1.0, 2.0), 1.0, 2.0),
        (aten.exponential.default, (0.5,), 2.0, 2.0),
        (aten.bernoulli.p, (0.3,), 0.3, 0.21**0.5),
        (aten.bernoulli.Tensor, (torch.full((300,), 0.3),), 0.3, 0.21**0.5),
    ],
    ids=lambda value: str(value) if callable(value) else "",
)
def test_random_rules_have_the_distribution(op: Any, args: tuple[Any, ...], mean: float, deviation: float) -> None:
    torch.manual_seed(0)
    drawn = fxloom_decomp.table("inductor")[op](torch.empty(300, 300), *args)
    assert abs(drawn.mean().item() - mean) < 5 * deviation / 300
    assert abs(drawn.std().item() - deviation) < 0.03 * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rrelu_outside_of_training(dtype: torch.dtype) -> None:
    x, noise, table = torch.randn(50).to(dtype), torch.rand(50).to(dtype), fxloom_decomp.table("inductor")
    result, same = table[aten.rrelu_with_noise_functional.default](x, noise, 0.1, 0.3, False)
    assert torch.equal(result, torch.nn.functional.rrelu(x, 0.1, 0.3)) and torch.equal(same, noise)
    for training, upper in ((False, 0.3), (True, 0.1), (True, 0.3)):
        args = (torch.ones_like(x), x, noise, 0.1, upper, training, False)
        assert torch.equal(table[aten.rrelu_with_noise_backward.default](*args), aten.rrelu_with_noise_backward(*args))


def test_normal_numbers_of_a_size() -> None:
    torch.manual_seed(0)
    drawn = fxloom_decomp.table("inductor")[aten.normal.float_float](3.0, 2.0, [300, 300])
    assert abs(drawn.mean().item() - 3) < 0.05 and abs(drawn.std().item() - 2) < 0.05


def test_draws_in_the_order_of_memory() -> None:
    image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    table = fxloom_decomp.table("inductor")
    for op, args in ((aten.rand_like.default, ()), (aten.randn_like.default, ()), (aten.randint_like.default, (9,))):
        assert table[op](image, *args).stride() == image.stride()
        assert table[op](image, *args, memory_format=torch.contiguous_format).is_contiguous()


def test_a_rule_that_is_registered_late_is_in_the_table() -> None:
    assert aten.bartlett_window.default not in fxloom_decomp.table("inductor")
    decomposition(aten.bartlett_window.default)(lambda length: NotImplemented)
    try:
        assert aten.bartlett_window.default in fxloom_decomp.table("inductor")
    finally:
        del REGISTRY[aten.bartlett_window.default]


def test_statistics_of_batch_norm_have_eagers_type() -> None:
    x = torch.rand(3, 2, 4, dtype=torch.bfloat16)
    rule = fxloom_decomp.table("inductor")[aten.native_batch_norm.default]
    for weight, running in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32), (None, torch.float32), (None, torch.bfloat16)):
        scale = None if weight is None else torch.ones(2, dtype=weight)
        mean, var = torch.zeros(2, dtype=running), torch.ones(2, dtype=running)
        eager = torch.native_batch_norm(x, scale, None, mean, var, False, 0.1, 1e-5)
        assert [value.dtype for value in rule(x, scale, None, mean, var, False, 0.1, 1e-5)] == [value.dtype for value in eager]
