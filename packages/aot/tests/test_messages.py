"""What the library says of wrong arguments, and of compilers and partitioners that give something else than they have to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fxloom_aot import MinCut, Partition, aot_export, aot_function, eager_compiler
from fxloom_interfaces.errors import ConfigError, GraphRejected, PluginError


def leaf() -> Tensor:
    return torch.ones(3, requires_grad=True)


def loss(x: Tensor) -> Tensor:
    return x.sin().sum()


def reads_a_number(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 0 else -x


def reads_numbers(x: Tensor) -> Tensor:
    return x * len(x.detach().numpy())


@pytest.mark.parametrize(("program", "line"), [(reads_a_number, "x.sum().item()"), (reads_numbers, "x.detach().numpy()")])
def test_a_rejection_names_the_line(program: Callable[[Tensor], Tensor], line: str) -> None:
    with pytest.raises(GraphRejected) as caught:
        aot_function(program, [leaf()])
    text = str(caught.value)
    assert program.__name__ in text and __file__ in text and line in text and "fxloom.compile" in text
    assert "call_function" not in text


def partitioner_of(part: Any) -> Callable[[Any], Any]:
    return lambda joint: part


@pytest.mark.parametrize(("part", "words"), [
    (Partition((), (), ()), "forward part is to give"), (None, "returns a Partition; it returned None"),
    (Partition((99,), (), ()), "has call 99"), (Partition((0, 1), (2,), ()), "backward part"),
])  # fmt: skip
def test_a_partition_of_which_no_graph_can_be_made(part: Any, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        aot_function(loss, [leaf()], partitioner=partitioner_of(part))


def gives_nothing(gm: torch.fx.GraphModule, signature: Any) -> Any:
    return None


def gives_too_few(gm: torch.fx.GraphModule, signature: Any) -> Any:
    return lambda inputs: []


def test_compilers_at_fault() -> None:
    with pytest.raises(PluginError, match=r"'gives_nothing'.*it returned None for the forward graph"):
        aot_function(loss, [leaf()], compiler=gives_nothing)
    with pytest.raises(PluginError, match=r"'gives_nothing'.*backward graph"):
        aot_function(loss, [leaf()], backward_compiler=gives_nothing)
    with pytest.raises(PluginError, match=r"'gives_too_few'.*forward graph gives a tuple or list of 1 outputs; it gave 0"):
        aot_function(loss, [leaf()], compiler=gives_too_few)(leaf())
    run = aot_function(loss, [leaf()], compiler=eager_compiler, backward_compiler=gives_too_few)
    with pytest.raises(PluginError, match=r"'gives_too_few'.*backward graph gives a tuple or list of 1 outputs"):
        run(leaf()).backward()


def test_arguments() -> None:
    with pytest.raises(TypeError, match="example_args is a Tensor"):
        aot_function(loss, leaf())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="memory_budget is 'x'"):
        MinCut(memory_budget="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="always_save is 3"):
        MinCut(always_save=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError) as caught:
        aot_function(loss, [leaf()])(torch.ones(3, dtype=torch.float64, requires_grad=True))
    assert str(caught.value) == "argument 0 is of dtype torch.float64; the example was of dtype torch.float32"
    with pytest.raises(TypeError, match="argument 0 is a int; the example was a Tensor"):
        aot_function(loss, [leaf()])(3)


def test_the_report_is_part_of_what_is_traced() -> None:
    assert "kept between forward and backward" in aot_export(loss, [leaf()], partitioner=MinCut()).report
    assert aot_export(loss, [leaf()]).report == ""
