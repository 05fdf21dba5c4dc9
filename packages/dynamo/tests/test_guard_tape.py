"""The short way through guards: what was unchanged since they held is compared, not walked; any change is still seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxloom_dynamo import _native, optimize


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.scale, self.shifts, self.calls = 2.0, [1.0, 2.0], 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)) * self.scale + self.shifts[0]


class Counted(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Doubled(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All entries that are installed."""
    found: list[Any] = []
    install = _native.Region.install

    def noted(self: Any, *args: Any) -> Any:
        found.append(install(self, *args))
        return found[-1]

    monkeypatch.setattr(_native.Region, "install", noted)
    return found


def layers(kind: type[Block] = Block) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[kind() for _ in range(3)])


def test_a_model_that_stays_as_it_is_takes_the_short_way(entries: list[Any]) -> None:
    model = layers()
    compiled = optimize("eager")(model)
    for _ in range(8):
        x = torch.randn(2, 4)
        assert torch.equal(compiled(x), model(x))
    assert [entry.hits for entry in entries] == [8]
    assert entries[0].short_hits >= 5


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "number": lambda m: setattr(m[1], "scale", 3.0),
    "list item": lambda m: m[1].shifts.__setitem__(0, 5.0),
    "list grows": lambda m: m[1].shifts.insert(0, 7.0),
    "other list": lambda m: setattr(m[1], "shifts", [4.0]),
    "parameter": lambda m: setattr(m[1].linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "parameter in the dict": lambda m: m[1].linear._parameters.__setitem__("weight", torch.ones(4, 4)),
    "no bias": lambda m: setattr(m[1].linear, "bias", None),
    "data": lambda m: setattr(m[1].linear.weight, "data", torch.ones(4, 4)),
    "data of another dtype": lambda m: m.double() and m.float(),
    "requires_grad": lambda m: m[1].linear.weight.requires_grad_(False),
    "frozen": lambda m: m.requires_grad_(False),
    "hook": lambda m: m[1].linear.register_forward_hook(lambda *args: args[-1] * 2),
    "module": lambda m: m[1].__setattr__("linear", Linear(4, 4)),
    "class of a module": lambda m: setattr(m[1], "__class__", Doubled),
    "class of a child": lambda m: setattr(m[1].linear, "__class__", Linear),
    "instance dict": lambda m: setattr(m[1], "__dict__", dict(m[0].__dict__)),
    "own forward": lambda m: setattr(m[1], "forward", lambda x: x),
    "one storage": lambda m: setattr(m[1].linear.bias, "data", m[0].linear.bias.data),
    "one object": lambda m: setattr(m[1].linear, "bias", m[0].linear.bias),
    "shorter": lambda m: m.__delitem__(2),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", [Block, Counted])
def test_a_change_is_seen(name: str, kind: type[Block], entries: list[Any]) -> None:
    model, plain = layers(kind), layers(kind)
    compiled = optimize("eager")(model)
    x = torch.randn(2, 4)
    for _ in range(8):
        assert torch.equal(compiled(x), plain(x))
    assert entries[-1].short_hits
    for changed in (model, plain):
        torch.manual_seed(1)
        CHANGES[name](changed)
    for _ in range(8):
        result, expected = compiled(x), plain(x)
        assert torch.equal(result, expected) and result.requires_grad == expected.requires_grad
    assert [block.calls for block in model] == [block.calls for block in plain]
    result.sum().backward() if result.requires_grad else None


def test_a_method_of_a_class_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    compiled = optimize("eager")(model)
    x = torch.randn(2, 4)
    for _ in range(5):
        compiled(x)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: x)
    assert torch.equal(compiled(x), model(x))


def test_models_that_take_turns(entries: list[Any]) -> None:
    """One function called with many models: the code's guards hold for each, whichever the tape was made for."""
    models = [layers() for _ in range(3)]

    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x) + 1

    compiled = optimize("eager")(run)
    for number in range(60):
        model = models[number % 3]
        if number % 20 == 19:
            model[0].scale = float(number)
        x = torch.randn(2, 4)
        assert torch.equal(compiled(model, x), run(model, x))


def test_objects_at_the_address_of_dead_ones(entries: list[Any]) -> None:
    class Holder:
        def __init__(self, value: float) -> None:
            self.values = [value]

    def run(holder: Holder, x: torch.Tensor) -> torch.Tensor:
        return x + holder.values[0]

    compiled = optimize("eager", dynamic=False)(run)
    x = torch.ones(2)
    for number in range(40):
        value = 1.5 if number < 20 else 2.5
        assert torch.equal(compiled(Holder(value), x), x + value)


def test_attributes_stay_where_they_are(entries: list[Any]) -> None:
    """Guards may move an instance's attributes into its dict: their order, and those who are reading them, see nothing."""
    model = layers()
    before = [list(vars(module)) for module in model.modules()]
    going = iter(vars(model[0]).items())
    next(going)
    compiled = optimize("eager")(model)
    for _ in range(8):
        compiled(torch.ones(2, 4))
    assert entries[-1].short_hits
    assert [list(vars(module)) for module in model.modules()] == before
    assert [name for name, _ in going] == before[1][1:]
