"""Compiled and disabled callables are as good as the functions and modules that they are made of."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from fxloom_dynamo import disable, explain, optimize
from fxloom_interfaces.errors import Unsupported


@optimize("eager")
def compiled_here(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.function, self.plain, self.method = compiled_here, disable(torch.relu), optimize("eager")(self.scale)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_copies() -> None:
    model = Scaled()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.weight.fill_(3)
    assert copied.function is copy.copy(model.function) is compiled_here
    assert (copied.method(torch.ones(1)).item(), model.method(torch.ones(1)).item()) == (3, 1)


def test_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(compiled_here)) is compiled_here


def test_a_disabled_module_is_a_module() -> None:
    linear = nn.Linear(2, 2)
    model = nn.Sequential(disable(linear), nn.ReLU())
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    found = explain(model, torch.ones(1, 2))
    assert torch.equal(found.result, linear(torch.ones(1, 2)).relu())
    assert [broke.key for broke in found.breaks] == ["asked_for"]  # once, though three frames end there


def test_what_is_disabled_is_named() -> None:
    @disable
    def ours(x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.compiler.disable
    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x

    found = explain(lambda x: ours(theirs(x)) + 1, torch.ones(1))
    assert [broke.key for broke in found.breaks] == ["asked_for", "asked_for"]
    assert "theirs" in found.breaks[0].details and "ours" in found.breaks[1].details


@pytest.mark.parametrize("make", [optimize("eager"), disable])
def test_what_can_not_be_called(make: Any) -> None:
    with pytest.raises(TypeError, match="got int"):
        make(5)


def coroutine_function() -> Any:
    async def waits(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    return waits


def generator_function() -> Any:
    def yields(x: torch.Tensor) -> Any:
        yield x + 1

    return yields


def frame_reader() -> Any:
    def looks(x: torch.Tensor) -> Any:
        return locals()

    return looks


@pytest.mark.parametrize("make", [coroutine_function, generator_function, frame_reader])
def test_functions_that_are_never_captured(make: Any) -> None:
    function = make()
    found = explain(function, torch.ones(1))
    if make is coroutine_function:
        found.result.close()
    assert [broke.key for broke in found.breaks] == ["not_captured"]
    with pytest.raises(Unsupported, match="not_captured"):
        optimize("eager", fullgraph=True)(function)(torch.ones(1))


class Logging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(1)
        return x + len(self.log)


def test_the_warning_of_the_limit_names_module_and_remedy() -> None:
    model = optimize("eager", recompile_limit=2)(Logging())
    with pytest.warns(RuntimeWarning, match="of a Logging .* Keep the number of items between calls, or raise recompile_limit"):
        for _ in range(8):
            model(torch.ones(1))


@pytest.mark.parametrize(
    "values, text",
    [
        ([torch.ones(1), None], "L\\['given'\\] is a NoneType, was a .*Tensor. Pass the same kind of value at every call"),
        (["linear", "cubic", "none"], "L\\['given'\\] is 'cubic'.* Call it with the same value, or compile it once for each"),
    ],
    ids=["kind", "text"],
)
def test_the_remedy_fits_what_changed(values: list[Any], text: str) -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        return x + 1 if given == "linear" else (x + 2, given is None)

    run = optimize("eager", recompile_limit=1)(program)
    with pytest.warns(RuntimeWarning, match=text):
        for given in values:
            run(torch.ones(1), given)


def test_torch_jit_trace_sees_the_program_itself() -> None:
    compiled = optimize("eager")(lambda x: x * 2 + 1)
    compiled(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit itself
        traced = torch.jit.trace(lambda x: compiled(x), torch.ones(2))
    assert torch.equal(traced(torch.ones(3)), torch.full((3,), 3.0))
    assert "torch.mul" in traced.code
