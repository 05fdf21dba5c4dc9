"""The tensors of a compiled module are exchanged: each call sees the current ones, and nothing of fxloom's is in the way or keeps them."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxloom
from fxloom_aot import aot_module

BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What would only go with a garbage collection is in the way until then."""
    fxloom.reset()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.outer = nn.Linear(4, 2, bias=False)
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.sigmoid(self.norm(self.inner(x)))) + self.shift


def swap_each(net: nn.Module) -> None:
    for tensor in [*net.parameters(), *net.buffers()]:
        new = tensor.detach().clone() * 2
        torch.utils.swap_tensors(tensor, nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new)


def swapped_by_conversion(to: Callable[[nn.Module], Any]) -> Callable[[nn.Module], None]:
    def convert(net: nn.Module) -> None:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            to(net)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return convert


def load(assign: bool) -> Callable[[nn.Module], None]:
    def load_tripled(net: nn.Module) -> None:
        net.load_state_dict({name: value * 3 for name, value in net.state_dict().items()}, assign=assign)

    return load_tripled


def load_swapping(net: nn.Module) -> None:
    swapped_by_conversion(load(False))(net)


def set_data(net: nn.Module) -> None:
    for tensor in [*net.parameters(), *net.buffers()]:
        tensor.data = tensor.data * 2


def set_storage(net: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.set_(tensor.detach() * 2)


def new_parameters(net: Any) -> None:
    net.outer.weight = nn.Parameter(net.outer.weight.detach() * 2)
    net.shift = net.shift * 2


EXCHANGES: dict[str, Callable[[Any], None]] = {
    "swap_tensors": swap_each,
    "swap on .double().float()": swapped_by_conversion(lambda net: net.double().float()),
    "swap on .double()": swapped_by_conversion(lambda net: net.double()),
    ".half().float()": lambda net: net.half().float(),
    ".double()": lambda net: net.double(),
    "load_state_dict": load(False),
    "load_state_dict(assign=True)": load(True),
    "load_state_dict that swaps": load_swapping,
    ".data": set_data,
    "set_": set_storage,
    "new parameters": new_parameters,
}


def steps(net: nn.Module, run: Callable[..., Tensor], exchange: Callable[[Any], None], trains: bool, sizes: tuple[int, ...]) -> list[Any]:
    seen: list[Any] = []
    for number, size in enumerate(sizes):
        if number:
            exchange(net)
        x = torch.linspace(-1, 1, 3 * size, dtype=next(net.parameters()).dtype).view(size, 3)
        y = run(x)
        seen.append(y.detach().clone())
        if trains:
            net.zero_grad()
            y.sum().backward()
            seen.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.grad = None  # swapped tensors take it along
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_each_call_sees_the_current_weights(exchange: Callable[[Any], None], trains: bool, backend: str) -> None:
    torch.manual_seed(0)
    net = Net().train(trains).requires_grad_(trains)
    other = copy.deepcopy(net)
    for sizes in ((4, 4, 4), (5, 6, 4)):  # then with a symbolic size
        compiled = fxloom.compile(net, backend=backend)
        torch.testing.assert_close(steps(net, compiled, exchange, trains, sizes), steps(other, other, exchange, trains, sizes))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compilation_keeps_no_reference(dynamic: bool, trains: bool, backend: str) -> None:
    net = Net().requires_grad_(trains)
    compiled = fxloom.compile(net, backend=backend, dynamic=dynamic)
    x = torch.randn(4, 3)
    y = compiled(x)
    if trains:
        y[:, :1].sum().backward()  # a gradient in another layout has a graph of its own
    del y
    gone = weakref.ref(x)
    del x
    assert gone() is None
    for tensor in [*net.parameters(), *net.buffers()]:
        assert not weakref.getweakrefs(tensor)
    del tensor
    weights = [weakref.ref(weight) for weight in [*net.parameters(), *net.buffers()]]
    for part in net.modules():
        for kept in (part._parameters, part._buffers):
            for name, weight in list(kept.items()):
                if weight is not None:
                    kept[name] = nn.Parameter(torch.ones_like(weight)) if kept is part._parameters else torch.ones_like(weight)
    del weight, kept
    assert not any(reference() is not None for reference in weights)


def test_graphs_made_ahead_of_time_keep_no_reference() -> None:
    net = Net()
    x = torch.randn(4, 3)
    run = aot_module(net, (x,))
    run(x).sum().backward()
    gone = weakref.ref(x)
    del x
    assert gone() is None
    for parameter in net.parameters():
        parameter.grad = None
    swap_each(net)
    y = torch.randn(4, 3)
    torch.testing.assert_close(run(y), copy.deepcopy(net)(y))


@pytest.mark.parametrize("backend", BACKENDS)
def test_exchanged_between_forward_and_backward(backend: str) -> None:
    """As eager allows: the bias isn't needed by the backward pass, the weight of a product is held by it."""
    seen = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        run = fxloom.compile(net, backend=backend) if compiles else net
        x = torch.ones(2, 3, requires_grad=True)
        run(x).sum().backward()
        x.grad = None
        y = run(x)
        net[0].bias.data = torch.full((3,), 7.0)
        net[0].weight.data = net[0].weight.data.clone()
        y.sum().backward()
        seen.append([y, x.grad, run(x)])
    torch.testing.assert_close(seen[1], seen[0])
