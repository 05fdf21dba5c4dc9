"""A sample of what `benchmarks/capture_models.py` and `benchmarks/databases.py` run whole."""

from __future__ import annotations

import warnings

import pytest
from benchmark_modules import load


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "mixtral", "convnext", "hubert"])
def test_an_architecture_is_one_correct_graph_in_both_modes(name):
    pytest.importorskip("transformers")
    models = load("capture_models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = models.check(next(item for item in models.ARCHITECTURES if item.name == name))
    assert outcome.correct, outcome.error
    assert not outcome.breaks
    assert outcome.graphs == {"eval": 1, "train": 1}


_OPERATORS = {
    "add", "addmm", "cat", "chunk", "clamp", "conj", "cumsum", "einsum", "expand", "gather", "index_put", "linalg.svd", "masked_fill",
    "nn.functional.conv2d", "nn.functional.cross_entropy", "nn.functional.interpolate",
    "nn.functional.triplet_margin_with_distance_loss", "signal.windows.gaussian", "sort", "sum", "topk", "view_as_complex", "where",
}  # fmt: skip


def test_samples_of_operators_are_captured_and_equal():
    databases = load("databases")
    tally = databases.Tally()
    for label, name, fn, args, kwargs in databases.operator_samples(_OPERATORS, 3, every_dtype=False):
        databases.check(tally, label, name, fn, args, kwargs)
    assert not tally.wrong
    assert not tally.breaks
    assert tally.captured > 60


def test_samples_of_modules_are_captured_and_equal():
    databases = load("databases")
    tally = databases.Tally()
    wanted = {"nn.Linear", "nn.BatchNorm2d", "nn.Embedding", "nn.LayerNorm", "nn.MultiheadAttention", "nn.GRUCell", "nn.TransformerEncoderLayer"}
    for label, name, fn, args, kwargs in databases.module_samples(wanted):
        databases.check(tally, label, name, fn, args, kwargs)
    assert not tally.wrong
    # a cumulative average (momentum=None) divides by float(num_batches_tracked), the value of a tensor
    assert [(key.split(":")[0], names) for key, names in tally.breaks.items()] == [("data_dependent", ["nn.BatchNorm2d"])]
    assert tally.captured > 20
