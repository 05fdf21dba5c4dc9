"""What torch.fx keeps of a graph's generated code goes when the graph does."""

from __future__ import annotations

import gc
import linecache
import traceback

import pytest
import torch
import torch.fx.graph_module
from torch import nn

from fxloom_dynamo import optimize


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
    assert len(kept) == before
    assert len(linecache.cache) == lines


def test_a_live_graph_shows_its_source() -> None:
    compiled = optimize("eager")(lambda x, index: x[index])
    compiled(torch.ones(2), torch.tensor([1]))
    with pytest.raises(IndexError) as caught:
        compiled(torch.ones(2), torch.tensor([5]))
    assert any("eval_with_key" in entry.filename and entry.line for entry in traceback.extract_tb(caught.value.__traceback__))
