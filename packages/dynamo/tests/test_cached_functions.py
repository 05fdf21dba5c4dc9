"""`functools.lru_cache`: a cached answer is used while the cache holds it, and asked for again when the program clears it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from programs import check

from fxloom_dynamo import graph_break
from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig

SETTINGS = {"scale": 2, "runs": 0}


@functools.cache
def scale(n: int) -> int:
    SETTINGS["runs"] += 1
    return SETTINGS["scale"] * n


@functools.cache
def table(n: int) -> torch.Tensor:
    return torch.arange(float(n)) * SETTINGS["scale"]


@functools.cache
def names(n: int) -> list[int]:
    return [SETTINGS["scale"]] * n


def program(x: torch.Tensor) -> torch.Tensor:
    return x * scale(3) + table(2) + names(2)[1]


def test_a_cleared_cache_is_asked_again() -> None:
    frames: list[Any] = []
    compiled = compile_callable(program, CaptureConfig(fullgraph=True, on_capture=frames.append))
    x = torch.ones(2)
    try:
        for value in (2, 5):
            SETTINGS["scale"] = value
            for cached in (scale, table, names):
                cached.cache_clear()
            expected = program(x)
            for _ in range(3):
                assert torch.equal(compiled(x), expected)
        assert len(frames) == 2
    finally:
        SETTINGS["scale"] = 2


def test_a_cached_answer_stays_though_what_it_was_made_from_changes() -> None:
    compiled = compile_callable(program, CaptureConfig())
    x = torch.ones(2)
    for cached in (scale, table, names):
        cached.cache_clear()
    expected = compiled(x)
    SETTINGS["scale"] = 7
    try:
        assert torch.equal(program(x), expected)
        assert torch.equal(compiled(x), expected)
    finally:
        SETTINGS["scale"] = 2


def test_the_function_behind_a_cache_runs_as_often_as_in_eager() -> None:
    def counts(x: torch.Tensor) -> Any:
        scale.cache_clear()
        return x * scale(3)

    check(counts, torch.ones(2))
    scale.cache_clear()
    SETTINGS["runs"] = 0
    compiled = compile_callable(program, CaptureConfig())
    for _ in range(3):
        compiled(torch.ones(2))
    assert SETTINGS["runs"] == 1


def test_the_cache_counts_the_calls_of_the_program() -> None:
    @functools.lru_cache
    def double(n: int) -> int:
        return n * 2

    def counts(x: torch.Tensor) -> Any:
        y = x * double(3) + double(3)
        graph_break()
        return y * double(4)

    def run(fn: Any) -> list[Any]:
        double.cache_clear()
        found = []
        for _ in range(3):
            fn(torch.ones(2))
            found.append(double.cache_info())
        return found

    frames: list[Any] = []
    assert run(compile_callable(counts, CaptureConfig(on_capture=frames.append))) == run(counts)
    assert [frame.info.graph is not None for frame in frames] == [True, True]
