"""An operator that raises when the graph runs: effects before it are there, handlers see it, later effects are not."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from counted import compared

from fxloom_dynamo import optimize
from fxloom_interfaces import telemetry

pytestmark = pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")

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


class Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = torch.nn.Embedding(6, 3), torch.nn.BatchNorm1d(3)
        self.count = 0

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        self.count += 1
        y = self.norm(self.embedding(index)) + x.sum()
        self.count += 1
        return torch.nn.functional.cross_entropy(y, index)


def writes_amid(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append("before")
    x.add_(1)
    y = x[index]
    NOTES.append("after")
    x.mul_(2)
    return y + 1


def writes_handled(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    try:
        y = x[index]
        x.mul_(2)
    except IndexError:
        return x * 0
    finally:
        x.add_(3)
    return y


def writes_data(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    NOTES.append("before")
    x.data.add_(1)
    y = x[index]
    NOTES.append("after")
    return y + 1


def writes_alone(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x[index] + 1


def state_after(program: Any, size: int, index: list[int]) -> Any:
    NOTES.clear()
    x = torch.ones(size)
    try:
        result = program(x, torch.tensor(index)).tolist()
    except IndexError as error:
        result = str(error)
    more = [buffer.tolist() for buffer in program.buffers()] + [program.count] if isinstance(program, torch.nn.Module) else []
    return result, x[:4].tolist(), list(NOTES), more


@pytest.mark.parametrize(
    ("program", "size", "graphs", "keys"),
    [
        (writes_amid, 3, 1, set()),
        (writes_handled, 3, 1, set()),
        (writes_data, 3, 1, set()),
        (writes_alone, 3, 1, set()),
        (writes_alone, 70_000, 1, set()),
        (writes_amid, 70_000, 1, {"writes_and_raises"}),
        (Normalized, 3, 1, set()),
    ],
)
def test_a_graph_that_writes_and_raises(program: Any, size: int, graphs: int, keys: set[str]) -> None:
    frames: list[Any] = []
    plain, captured = (program(), program()) if isinstance(program, type) else (program, program)
    compiled = optimize("eager", on_capture=frames.append)(captured)
    for at in range(4):
        index = [0, 1] if at % 2 == 0 else [1, size + 5]
        assert state_after(compiled, size, index) == state_after(plain, size, index)
        if at == 0:  # where the function runs as it is, what it calls is compiled on its own
            assert sum(frame.info.graph is not None for frame in frames) == graphs
    assert {frame.info.broke.key for frame in frames if frame.info.broke is not None} == keys


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


def on_copies(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    """A backend that writes last."""

    def run(*inputs: Any) -> Any:
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        results = gm(*copies)
        for value, copy in zip(inputs, copies, strict=True):
            if isinstance(value, torch.Tensor):
                value.copy_(copy)
        return results

    return run


on_copies.writes_last = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [3, 70_000])
def test_a_backend_that_writes_last_needs_no_copies(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("copies are kept")

    monkeypatch.setattr("fxloom_dynamo.graph.writes_and_raises.copies", never)
    compiled = optimize(on_copies, fullgraph=True)(writes_amid)
    events: list[telemetry.Event] = []
    with telemetry.listen(events.append):
        for index in ([0, 1], [1, size + 5], [1, 0]):
            assert state_after(compiled, size, index) == state_after(writes_amid, size, index)
    assert sum(isinstance(event, telemetry.FrameCompiled) for event in events) == 1
    assert sum(isinstance(event, telemetry.GraphRaised) for event in events) == 1


def draws_and_handles(x, index):
    drawn = torch.rand(2)
    try:
        found = x[index]
    except IndexError:
        found = torch.rand(2)
    return drawn, found, torch.rand(1)


def drops_out_amid_effects(x, index):
    COUNTED.append(1)
    drawn = torch.nn.functional.dropout(x, 0.5)
    return drawn, x.index_select(0, index)


def writes_and_handles(x, index):
    x.add_(1)
    try:
        return x[index]
    except IndexError:
        x.sub_(5)
        return x


COUNTED = []


@pytest.mark.parametrize("program", [draws_and_handles, drops_out_amid_effects, writes_and_handles])
def test_a_graph_that_raises_has_drawn_and_written_nothing(program):
    results = []
    raised: list[telemetry.Event] = []
    for run in (program, optimize("eager")(program)):
        COUNTED.clear()
        torch.manual_seed(0)
        x, found = torch.ones(3), []
        for index in (0, 9, 1, 9):
            try:
                with telemetry.listen(lambda event: raised.append(event) if isinstance(event, telemetry.GraphRaised) else None):
                    found.append(run(x, torch.tensor([index])))
            except IndexError as error:
                found.append(str(error))
            found.append((x._version, x.clone(), len(COUNTED)))
        results.append(str([*found, torch.rand(1)]))
    assert results[0] == results[1]
    assert len(raised) == 2


def test_a_step_of_an_optimizer_after_clipping_is_one_graph():
    def program(compiled):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @compiled
        def step():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            step()
        return model.weight.tolist(), model.bias.tolist()

    assert compared(program).breaks == []
