"""Folds that are cut in two: chunks cover every element once, and are as many as the device wants."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxloom_inductor_core.lowering.reduction import _identity
from fxloom_inductor_core.lowering.split import split_fold
from fxloom_interfaces.codegen import Capabilities
from fxloom_interfaces.expr import product as numel

WIDE = Capabilities(parallelism=64, enough_rows=16, column_tile=8, uneven_chunks=True)
PLAIN = Capabilities(parallelism=16)


def positions(split, reduced):
    """The positions in the fold's axes that the chunks visit, in order."""
    for index in product(*(range(extent) for extent in (*split.chunks, *split.rest))):
        at = split.place(index)
        if split.cut is None or at[split.cut] < reduced[split.cut]:
            yield tuple(at)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 16, 25, 31, 64, 101, 512]), min_size=1, max_size=3),
    st.sampled_from([1, 3, 16, 100]), st.booleans(), st.sampled_from([WIDE, PLAIN]), st.booleans(),
)  # fmt: skip
def test_chunks_cover_every_element_once(reduced, outer, columns, able, even):
    if numel(reduced) > 1 << 16:
        reduced = reduced[:2]
    split = split_fold(able, (outer,), tuple(reduced), columns, even=even)
    if split is None:
        return
    if even or not able.uneven_chunks:
        assert split.cut is None
    seen = list(positions(split, reduced))
    assert seen == sorted(seen) or split.columns
    assert sorted(seen) == list(product(*(range(extent) for extent in reduced)))


@pytest.mark.parametrize("reduced", [(2, 33), (600,), (512, 1)])
def test_one_chunk_is_none(reduced):
    able = Capabilities(parallelism=4, enough_rows=64, column_tile=8, uneven_chunks=True)
    for outer in (0, 1, 31, 60, 500):
        for columns in (False, True):
            split = split_fold(able, (outer,), reduced, columns)
            assert split is None or numel(split.chunks) > 1


@pytest.mark.parametrize(
    ("outer", "reduced", "columns", "chunks"),
    [
        (64, (32, 56, 56), True, 64 * 8 // 64),  # channels-last: 8 channels in a program
        (2, (32, 56, 56), False, 32),
        (1, (1 << 16,), False, 16),
        (1, (65_537,), False, 17),  # a prime: the last chunk is shorter
        (4, (2, 1009, 16), False, 16),
    ],
)
def test_few_points_are_split_among_processors(outer, reduced, columns, chunks):
    split = split_fold(WIDE, (outer,), reduced, columns)
    assert split is not None and numel(split.chunks) == chunks


@pytest.mark.parametrize(
    ("outer", "reduced"),
    [(16, (1 << 16,)), (1, (4096,)), ("n", (1 << 16,)), (1, ("n",))],
    ids=["enough points", "few elements", "points unknown", "elements unknown"],
)
def test_others_are_left_whole(outer, reduced):
    from fxloom_interfaces.expr import symbol

    named = lambda extent: symbol(extent) if isinstance(extent, str) else extent  # noqa: E731
    assert split_fold(WIDE, (named(outer),), tuple(map(named, reduced)), False) is None


def test_without_masks_a_prime_is_left_whole():
    assert split_fold(PLAIN, (1,), (65_537,), False) is None
    assert split_fold(WIDE, (1,), (65_537,), False, even=True) is None


@pytest.mark.parametrize("count", [2, 3, 7, 64, 1000])
@pytest.mark.parametrize("value", [0.1, -7.7, 123.456, 1e-30])
def test_equal_elements_deviate_by_nothing(count, value):
    """A deviation of the last place would be divided by in the gradient."""
    from core_graphs import compiled

    x = torch.full((3, count), value)
    run = compiled(lambda x: torch.ops.aten.var.correction(x, [1], correction=1), x)
    assert run.call([x])[0].tolist() == [0.0] * 3 and run.fallbacks == ()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("kind", ["max", "min", "sum", "prod", "any", "all"])
def test_what_pads_the_last_chunk_changes_no_fold(kind, dtype):
    kind, dtype = (kind, dtype) if kind in ("max", "min") or dtype != "bool" else ({"sum": "any", "prod": "all"}.get(kind, kind), "bool")
    values = torch.tensor([0, 1, 7]).to(getattr(torch, dtype))
    for value in values:
        padded = torch.stack([value, torch.tensor(_identity(kind, dtype)).to(value.dtype)])
        found = getattr(padded, {"max": "amax", "min": "amin"}.get(kind, kind))(0)
        assert found == (value.bool() if kind in ("any", "all") else value)
