"""Samples of what `benchmarks/fake_metadata.py` and `benchmarks/size_guards.py` run whole."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from benchmark_modules import load

#: sparse results and operands; an operator that reads a tensor in C++ before any fake is asked
KNOWN = {"sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse", "tensor_split"}


@pytest.mark.parametrize("samples", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_metadata_of_fakes_is_eagers(samples: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(1) as pool:  # each sample has torch walk the stack of whoever takes it, and pytest's is deep
            tally = pool.submit(load("fake_metadata").run, None, samples).result()
    assert (tally.wrong.keys() | tally.unanswered.keys()) <= KNOWN, tally.text()
    assert tally.share() >= 0.99
    assert len(tally.right) > 640


def test_guards_on_sizes_reject_little_that_they_need_not() -> None:
    accepted, _, needlessly, wrongly = load("size_guards").run_questions(60, 4)
    assert not wrongly and accepted > 1000
    assert needlessly <= 0.01 * accepted


@pytest.mark.parametrize("name", ["pairs", "branch", "convolution"])
def test_a_size_is_traced_anew_only_for_another_graph(name: str) -> None:
    benchmark = load("size_guards")
    benchmark.SIZES = benchmark.SIZES[::7]
    _, _, needlessly = benchmark.run_program(name)
    assert needlessly == 0
