"""Numbers that change from call to call, wherever they lie: the second value seen makes them symbolic."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxloom_dynamo import optimize

X = torch.arange(4.0)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate, self.step, self.settings = 0.1, 2, {"scale": 1.0, "counts": [2]}

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.rate + self.step, self.settings["scale"] * x, x * self.settings["counts"][0]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1 - 0.9**self.calls)


class Repeating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.times = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(self.times)


CONFIG = types.SimpleNamespace(deep=types.SimpleNamespace(rate=1.0))


def read_config(x: torch.Tensor) -> torch.Tensor:
    return x * CONFIG.deep.rate


def set_scaled(module: Any, number: int) -> None:
    module.rate, module.step = 0.1 * number, number
    module.settings["scale"], module.settings["counts"][0] = 1.0 / number, number * 2


def set_times(module: Any, number: int) -> None:
    module.times = number


def set_config(_: Any, number: int) -> None:
    CONFIG.deep.rate = float(number)


def nothing(module: Any, number: int) -> None:
    pass


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any, int], None]]] = {
    "attributes": (Scaled, set_scaled),
    "sizes": (Repeating, set_times),
    "objects in objects": (lambda: read_config, set_config),
    "what the program counts": (Counting, nothing),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_that_changes_is_compiled_for_twice(name: str) -> None:
    graphs: list[Any] = []
    make, change = PROGRAMS[name]
    plain, program = make(), make()
    compiled = optimize(lambda gm, inputs: graphs.append(gm) or gm.forward)(program)
    for number in range(2, 14):
        change(plain, number)
        change(program, number)
        torch.testing.assert_close(compiled(X), plain(X))
    assert len(graphs) <= (3 if name == "what the program counts" else 2)  # 0, 1 and all others


def test_what_is_written_back_is_a_number() -> None:
    module = Counting()
    compiled = optimize()(module)
    for number in range(1, 6):
        compiled(X)
        assert type(module.calls) is int and module.calls == number


def test_a_number_that_decides_how_often_is_compiled_for_each_within_the_limit() -> None:
    graphs: list[Any] = []

    class Loop(nn.Module):
        times = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.times):
                x = x + 1
            return x

    module = Loop()
    compiled = optimize(lambda gm, inputs: graphs.append(gm) or gm.forward)(module)
    for times in range(2, 6):
        module.times = times
        assert torch.equal(compiled(X), X + times)
    assert len(graphs) == 4


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_a_scheduled_learning_rate(kind: str) -> None:
    graphs: list[Any] = []
    weights = []
    for compile_it in (False, True):
        weight = nn.Parameter(torch.ones(3))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = optimizer.step
        if compile_it:
            step = optimize(lambda gm, inputs: graphs.append(gm) or gm.forward)(step)
        for _ in range(6):
            weight.square().sum().backward()
            step()
            optimizer.zero_grad()
            scheduler.step()
        weights.append(weight.detach())
    torch.testing.assert_close(*weights)
    assert len(graphs) == 2


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_that_reads_norms_is_one_graph(foreach: bool) -> None:
    """Only in optimizers: elsewhere reading a number is a break unless the user asks for it in the graph."""
    if not hasattr(torch.optim, "Adafactor"):
        pytest.skip("this torch has no Adafactor")
    seen, count = [], 0
    for compiled in (False, True):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))]
        optimizer = torch.optim.Adafactor(params, eps=(1e-10, 1e-3), foreach=foreach)  # torch 2.11 needs one when it is compiled
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        frames: list[Any] = []
        step = optimize("eager", fullgraph=True, on_capture=frames.append)(optimizer.step) if compiled else optimizer.step
        for number in range(5):
            for p in params:
                p.grad = torch.full_like(p, 0.5 + number)
            step()
            scheduler.step()
        seen.append([p.detach() for p in params])
        count = sum(frame.info.graph is not None for frame in frames)
    assert count == 2  # its state is made at the first step
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0)


def test_initializers_take_numbers_that_change() -> None:
    def program(x: torch.Tensor, bound: float) -> torch.Tensor:
        return torch.nn.init.uniform_(x.clone(), -bound, bound) + torch.nn.init.normal_(x.clone(), 0.0, bound)

    frames: list[Any] = []
    compiled = optimize(fullgraph=True, on_capture=frames.append)(program)
    for bound in (1.5, 2.5, 0.5, 7.0):
        results = []
        for run in (program, compiled):
            torch.manual_seed(0)
            results.append(run(torch.zeros(3), bound))
        assert torch.equal(*results)
    assert len(frames) == 2


def test_a_diagonal_is_filled_at_any_size() -> None:
    frames: list[Any] = []
    compiled = optimize(fullgraph=True, on_capture=frames.append)(lambda x: x.clone().fill_diagonal_(1.0))
    for rows, columns in ((3, 4), (4, 5), (6, 3), (7, 7)):
        x = torch.zeros(rows, columns)
        assert torch.equal(compiled(x), x.clone().fill_diagonal_(1.0))
    assert len(frames) == 2
