"""The benchmark of fakes against torch's operator database, on a sample of every operator."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "fake_metadata.py"
SPEC = importlib.util.spec_from_file_location("benchmark_fake_metadata", PATH)
assert SPEC is not None and SPEC.loader is not None
fake_metadata = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fake_metadata)

#: sparse results and operands; an operator that reads a tensor in C++ before any fake is asked
KNOWN = {"sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse", "tensor_split"}


@pytest.mark.parametrize("samples", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_metadata_of_fakes_is_eagers(samples: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = fake_metadata.run(None, samples)
    assert (tally.wrong.keys() | tally.unanswered.keys()) <= KNOWN, tally.text()
    assert tally.share() >= 0.99
    assert len(tally.right) > 640
