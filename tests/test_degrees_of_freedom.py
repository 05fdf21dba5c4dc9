"""Variances and deviations of too few elements: eager's values, and its warning at the program's line, at every call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "std": lambda x: torch.std(x, 0),
    "var, a method": lambda x: x.var(0, keepdim=True),
    "std of all": lambda x: x[:, :1].std(),
    "std_mean": lambda x: torch.std_mean(x, (0,)),
    "var_mean": lambda x: torch.var_mean(x, dim=-1, correction=4),
    "a correction": lambda x: torch.var(x, dim=1, correction=3.5),
    "enough": lambda x: torch.var(x, dim=1),
    "no correction": lambda x: torch.std(x, 0, unbiased=False),
}


def outcome(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> tuple[list[torch.Tensor], list[tuple[str, str, int]]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        results = torch.utils._pytree.tree_leaves([call(x), call(x)])
    # torch adds where in its own source the warning comes from
    return results, [(str(each.message).partition(" (Triggered internally")[0], each.filename, each.lineno) for each in found]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.cpu_only("a default device moves warnings into torch's own file")
def test_values_and_warnings(name: str, backend: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        fxloom.reset()
        x = torch.randn(1, 3).to(dtype)
        (wanted, said), (found, told) = outcome(CALLS[name], x), outcome(fxloom.compile(CALLS[name], backend=backend, fullgraph=True), x)
        assert told == said
        for mine, theirs in zip(found, wanted, strict=True):
            assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
            torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert fxloom.stats().graph_breaks == 0
