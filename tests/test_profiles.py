"""What a profiler sees of a compiled program."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import fxloom


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_named_regions_hold_what_runs_in_them(backend: str) -> None:
    def labelled(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with record_function("block"):
            y = y.sin()
        return y * 2

    def within(run: object) -> list[str]:
        with profile(activities=[ProfilerActivity.CPU], acc_events=True):
            run(torch.ones(2))  # type: ignore[operator]
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            run(torch.ones(2))  # type: ignore[operator]
        (block,) = (event for event in profiler.events() if event.name == "block")
        return [child.name for child in block.cpu_children]

    compiled = fxloom.compile(labelled, backend=backend)
    assert torch.equal(compiled(torch.ones(2)), labelled(torch.ones(2)))
    assert within(labelled) == ["aten::sin"]
    assert "aten::sin" in within(compiled)
