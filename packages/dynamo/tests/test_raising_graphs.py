"""An operator that raises when the graph runs: effects before it are there, handlers see it, later effects are not."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch

from fxloom_dynamo import optimize
from fxloom_interfaces import telemetry

X = torch.ones(2)
NOTES: list[Any] = []


class Counted:
    def __init__(self) -> None:
        self.count = 0


def effects(x: torch.Tensor, index: torch.Tensor, counted: Counted) -> torch.Tensor:
    NOTES.append("before")
    counted.count += 1
    print("before")
    y = x[index]
    NOTES.append("after")
    counted.count += 1
    print("after")
    return y + 1


def handled(x: torch.Tensor, index: torch.Tensor, counted: Counted) -> torch.Tensor:
    y = x * 2
    try:
        y = y + x[index]
    except IndexError:
        counted.count += 10
        return y * 0
    finally:
        counted.count += 1
    return y


def handled_inside(x: torch.Tensor, index: torch.Tensor, counted: Counted) -> Any:
    def at(x: torch.Tensor) -> torch.Tensor:
        return x[index]

    try:
        return at(x) + 1
    except IndexError as error:
        return x * 0, str(error)


def cleaned_up(x: torch.Tensor, index: torch.Tensor, counted: Counted) -> torch.Tensor:
    with torch.no_grad():
        return x[index] + 1


def outcome(program: Any, index: torch.Tensor) -> Any:
    NOTES.clear()
    counted = Counted()
    try:
        result = str(program(X, index, counted))
    except IndexError as error:
        result = str(error), error.__context__, [(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)[1:]]
    return result, counted.count, list(NOTES), torch.is_grad_enabled()


@pytest.mark.parametrize("program", [effects, handled, handled_inside, cleaned_up])
def test_a_graph_that_raises(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = optimize("eager", fullgraph=True)(program)
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append):
        for index in (0, 5, 1, 7):
            plain = outcome(program, torch.tensor([index])), capsys.readouterr().out
            assert (outcome(compiled, torch.tensor([index])), capsys.readouterr().out) == plain
    assert sum(isinstance(event, telemetry.GraphRaised) for event in events) == 2
    # what was inlined is compiled on its own where the function runs as it is
    assert sum(isinstance(event, telemetry.FrameCompiled) for event in events) == (2 if program is handled_inside else 1)


def test_an_interrupt_is_none_of_the_programs() -> None:
    def interrupted(gm: Any, inputs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            raise KeyboardInterrupt

        return run

    with pytest.raises(KeyboardInterrupt):
        optimize(interrupted)(effects)(X, torch.tensor([0]), Counted())
    NOTES.clear()


def test_the_message_of_an_operator_is_eagers() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        try:
            return x @ y
        except RuntimeError as error:
            return str(error), error.args, f"{error}"

    left, right = torch.ones(2, 3), torch.ones(2, 3)
    assert optimize("eager")(program)(left, right) == program(left, right)
