"""Nothing of a graph is left when it is dropped, and calls leave no references behind."""

from __future__ import annotations

import gc
import linecache
import sys
import traceback
import weakref
from typing import Any

import pytest
import torch
import torch.fx.graph_module
from torch import nn

from fxloom_dynamo import graph_break, optimize
from fxloom_dynamo.bytecode import continuations


def test_dropped_graphs_leave_no_source() -> None:
    def cycle() -> None:
        compiled = optimize("eager")(nn.Linear(2, 2))
        compiled(torch.ones(2)).sum().backward()

    cycle()
    gc.collect()
    kept = torch.fx.graph_module._loader.eval_cache
    before, lines = len(kept), len(linecache.cache)
    for _ in range(5):
        cycle()
    gc.collect()
    assert len(kept) <= before
    assert len(linecache.cache) <= lines


@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_a_live_graph_shows_its_source() -> None:
    compiled = optimize("eager")(lambda x, index: x[index])
    compiled(torch.ones(2), torch.tensor([1]))
    with pytest.raises(IndexError) as caught:
        compiled(torch.ones(2), torch.tensor([5]))
    assert any("eval_with_key" in entry.filename and entry.line for entry in traceback.extract_tb(caught.value.__traceback__))


def test_code_that_dies_leaves_no_continuation() -> None:
    """Code that is made at run time (exec, generated classes, cells of notebooks) breaks graphs, too."""
    text = "def f(x):\n    y = x + 1\n    graph_break()\n    return y * 2 if y.sum() > 0 else y"

    def cycle() -> list[Any]:
        names: dict[str, Any] = {"graph_break": graph_break}
        exec(text, names)
        frames: list[Any] = []
        assert optimize("eager", on_capture=frames.append)(names["f"])(torch.ones(1)).item() == 4
        return [weakref.ref(names["f"].__code__), *(weakref.ref(frame.code) for frame in frames)]

    references = [reference for _ in range(3) for reference in cycle()]
    gc.collect()
    assert len(references) >= 9
    assert [reference() for reference in references] == [None] * len(references)
    assert all(found.origin.co_filename != "<string>" for found in continuations._by_code.values())


def test_dropped_graphs_of_dynamic_sizes_leave_nothing() -> None:
    def cycle() -> None:
        compiled = optimize("eager")(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        for rows in (2, 3, 5):
            compiled(torch.ones(rows, 4)).sum().backward()

    for _ in range(4):
        cycle()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5):
        cycle()
    gc.collect()
    assert len(gc.get_objects()) < before + 100


def program(x: torch.Tensor, names: dict[str, float], index: torch.Tensor) -> Any:
    y = x * names["scale"]
    try:
        return y + names["absent"], x[index]
    except KeyError:
        graph_break()
    try:
        return x[index]
    except IndexError:
        return None


def test_reference_counts_of_calls() -> None:
    """What calls touch, hits, breaks and graphs that raise, has as many references afterwards."""
    compiled = optimize("eager")(program)
    x, names, index = torch.ones(4), {"scale": 2.0}, torch.tensor([9])
    touched = [None, True, False, (), x, names, index, program, compiled, "scale", torch.Tensor, dict, KeyError, IndexError]

    def counts(calls: int) -> list[int]:
        for _ in range(calls):
            compiled(x, names, index)
        gc.collect()
        return [sys.getrefcount(value) for value in touched]

    counts(20)
    assert counts(0) == counts(200)
