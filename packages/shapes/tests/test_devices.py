"""Fakes on devices that this machine doesn't have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fxloom_shapes import DataDependent, FakeMode, TraceContext

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")

MADE: dict[str, Callable[[], Any]] = {
    "zeros": lambda: torch.zeros(2, device="cuda"),
    "random": lambda: torch.randn(2, 3, device="cuda:0"),
    "arange": lambda: torch.arange(3, device="cuda"),
    "data": lambda: torch.tensor([1, 2], device="cuda"),
    "like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "new": lambda: torch.ones(2, device="cuda").new_zeros(3),
    "to": lambda: torch.zeros(2).to("cuda", torch.float64),
    "to another": lambda: torch.zeros(2).to(torch.ones(1, device="cuda")),
    "cuda": lambda: torch.zeros(2).cuda(),
    "strided": lambda: torch.empty_strided((2, 2), (1, 2), device="cuda"),
    "module": lambda: nn.Linear(3, 4, device="cuda")(torch.randn(2, 3, device="cuda")),
    "moved module": lambda: nn.Linear(3, 4).to("cuda")(torch.randn(2, 3).cuda()),
    "recurrent": lambda: nn.GRU(3, 4, device="cuda")(torch.zeros(5, 2, 3, device="cuda"))[0],
    "bags": lambda: nn.EmbeddingBag(3, 4, device="cuda")(torch.zeros(2, 2, dtype=torch.long, device="cuda")),
    "heads": lambda: nn.MultiheadAttention(8, 2, device="cuda")(*[torch.zeros(3, 2, 8, device="cuda")] * 3)[0],
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, device="cuda")(torch.zeros(3, 2, 8, device="cuda")),
    "interpolated": lambda: nn.functional.interpolate(torch.zeros(1, 2, 4, 4, device="cuda"), scale_factor=2.0, mode="bilinear"),
    "grid": lambda: nn.functional.affine_grid(torch.zeros(1, 2, 3, device="cuda"), [1, 1, 4, 4], align_corners=False),
    "written in Python": lambda: 2.0 ** torch.zeros(2, device="cuda"),
    "attention": lambda: nn.functional.scaled_dot_product_attention(*[torch.zeros(1, 2, 8, 16, device="cuda")] * 3),
}


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("name", MADE)
def test_a_fake_reports_the_device_that_was_asked_for(name: str) -> None:
    if name == "recurrent" and torch.backends.cudnn.is_available():
        pytest.skip("a torch with cuDNN asks for the addresses of recurrent weights on CUDA, which fakes don't have")
    with FakeMode():
        made = MADE[name]()
    assert made.device == torch.device("cuda:0") and made.is_cuda and made.get_device() == 0


def test_moves_between_devices() -> None:
    with FakeMode():
        x = torch.zeros(2, device="cuda:1")
        assert x.to("cuda:1") is x
        assert x.to("cuda:0").device.index == 0
        assert x.cpu().device.type == "cpu" and (x.cpu() + 1).is_cpu
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.zeros(2)


def test_gradients_are_where_their_tensors_are() -> None:
    with FakeMode():
        model = nn.Linear(3, 4).cuda()
        model(torch.randn(2, 3, device="cuda")).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.device == torch.device("cuda:0")


def test_without_a_fake_mode_the_error_is_torchs_own() -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.vander(torch.ones(3, device="cuda")),
        lambda: torch.zeros(2, device="cuda").new_tensor([1.0]),
        lambda: torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
        lambda: torch.nn.functional.scaled_dot_product_attention(*[torch.zeros(2, 2, 4, 8, device="cuda")] * 3, is_causal=True),
    ],
)
def test_what_is_made_within_is_on_the_tensors_device(make: Any) -> None:
    context = TraceContext()
    with context.activate(), context.fake_mode:
        assert make().device == torch.device("cuda", 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.AdamW])
def test_optimizers_step(optimizer: Any, device: str) -> None:
    context = TraceContext()
    with context.activate(), context.fake_mode:
        layer = torch.nn.Linear(2, 3, device=device)
        steps = optimizer(layer.parameters())
        for _ in range(2):
            layer(torch.zeros(1, 2, device=device)).sum().backward()
            steps.step()
        assert layer.weight.device.type == device


def test_known_numbers_are_known_after_writes() -> None:
    context = TraceContext()
    with context.activate(), context.fake_mode:
        count = torch.tensor(3)
        view = count.view(1)
        assert count.add_(1).mul_(2).item() == 8
        with pytest.raises(DataDependent):
            view.item()
        count.add_(torch.randint(3, ()))
        with pytest.raises(DataDependent):
            count.item()


def test_known_numbers_are_not_those_of_replaced_memory() -> None:
    context = TraceContext()
    with context.activate(), context.fake_mode:
        for replace in (lambda t, other: t.set_(other), lambda t, other: setattr(t, "data", other)):
            number = torch.tensor(1.0)
            replace(number, torch.rand(()))
            with pytest.raises(DataDependent):
                number.item()
            number = torch.tensor(1.0)
            replace(number, torch.tensor(2.0))
            assert number.item() == 2.0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a number alone is this machine's accelerator")
def test_a_number_alone_is_a_device_of_cuda() -> None:
    context = TraceContext()
    with context.activate(), context.fake_mode:
        x = torch.zeros(2, device=0)
        made = [
            x, torch.zeros(2).to(0), torch.zeros(2).to(device=0), torch.tensor([1.0], device=0), torch.nn.Linear(2, 3, device=0)(x),
            torch.nn.Linear(2, 3).to(0).weight,
        ]  # fmt: skip
        assert {str(tensor.device) for tensor in made} == {"cuda:0"}
        moved = torch.zeros(2).to(1, torch.float64)
        assert str(moved.device) == "cuda:1" and moved.dtype is torch.float64
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(2, device=0)  # outside all is as before


@pytest.fixture
def cuda_by_default() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def test_the_default_device_may_be_absent(cuda_by_default: None) -> None:
    with FakeMode():
        made = [
            torch.zeros(2), torch.tensor([1.0]), torch.as_tensor(3), torch.arange(3), torch.randn(2), nn.Linear(2, 2).weight,
            torch.zeros(2).cuda() + torch.ones(2),
        ]  # fmt: skip
        assert [tensor.device for tensor in made] == [torch.device("cuda", 0)] * len(made)
        assert torch.zeros(2, device="cpu").is_cpu and torch.as_tensor(torch.zeros(2, device="cpu")).is_cuda


def test_a_default_device_within_a_mode() -> None:
    with FakeMode():
        torch.set_default_device("cuda")
        try:
            assert torch.zeros(2).is_cuda
        finally:
            torch.set_default_device(None)
        assert torch.zeros(2).is_cpu
        with torch.device("cuda:1"):
            assert torch.zeros(2).device.index == 1 and torch.tensor(1.0).device.index == 1


def test_types_by_name_are_of_devices() -> None:
    with FakeMode():
        x = torch.zeros(2)
        for given in ("torch.cuda.HalfTensor", torch.cuda.HalfTensor):
            made = x.type(given)
            assert (made.device, made.dtype) == (torch.device("cuda", 0), torch.float16)
        assert made.type() == "torch.cuda.HalfTensor" and x.type() == "torch.FloatTensor"
        assert made.type("torch.cuda.HalfTensor") is made
        assert made.type(torch.float64).is_cuda and made.type("torch.FloatTensor").is_cpu
        assert nn.Linear(2, 2).type("torch.cuda.DoubleTensor").weight.dtype is torch.float64
        with pytest.raises(ValueError, match="invalid type"):
            x.type("torch.cuda.NoTensor")


def test_pinned_memory_is_told_from_other() -> None:
    with FakeMode():
        x = torch.arange(6.0).view(2, 3).t()
        pinned = x.pin_memory()
        assert pinned.is_pinned() and pinned[0].is_pinned() and not x.is_pinned()
        assert pinned.is_cpu and pinned.stride() == x.stride() and pinned.pin_memory() is pinned
        assert not (pinned + 1).is_pinned() and pinned.to("cuda", non_blocking=True).is_cuda
        assert torch.zeros(2, pin_memory=True).is_pinned() and torch.empty_like(x, pin_memory=True).is_pinned()
        with pytest.raises(RuntimeError, match="cannot pin 'torch.cuda.FloatTensor'"):
            x.cuda().pin_memory()


def test_numbers_stay_known_where_they_are_moved_to() -> None:
    with FakeMode():
        number = torch.tensor(3, device="cuda")
        assert number.is_cuda and number.item() == 3 and number.cpu().item() == 3 and number.clone().view(1).item() == 3
        assert torch.tensor([2, 5], device="cuda").tolist() == [2, 5]
        for compute in (lambda x: x + 1, lambda x: x.add_(1), lambda x: x.exp(), lambda x: x.to(torch.int32)):
            with pytest.raises(DataDependent):
                compute(torch.tensor(3.5, device="cuda")).item()
        with pytest.raises(DataDependent):
            torch.tensor([True, False], device="cuda").nonzero()
