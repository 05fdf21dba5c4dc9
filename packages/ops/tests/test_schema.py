"""What schemas say of operators, and the functional variants of those that write."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxloom_ops.functional_variants import functional_variant, own_results
from fxloom_ops.schema import draws_numbers, schema_info
from fxloom_ops.value_checks import may_raise
from fxloom_ops.wide_numbers import takes_wide_number

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "writes"),
    [
        (aten.add.Tensor, ()),
        (aten.add_.Tensor, ((0, "self", False),)),
        (aten.add.out, ((3, "out", True),)),
        (aten._foreach_add_.Scalar, ((0, "self", False),)),
    ],
    ids=str,
)
def test_writes_are_those_of_the_schema(op: Any, writes: tuple[Any, ...]) -> None:
    assert schema_info(op).writes == writes


def test_only_operators_that_advance_a_generator_draw_numbers() -> None:
    assert draws_numbers(aten.bernoulli.default)
    assert not draws_numbers(aten.add.Tensor)
    assert not draws_numbers(aten._scaled_dot_product_flash_attention_backward.default)  # is given the seed


@pytest.mark.parametrize(
    ("op", "variant", "own"),
    [
        (aten.add_.Tensor, aten.add.Tensor, 0),
        (aten.add.out, aten.add.Tensor, 0),
        (aten.copy_.default, aten.copy.default, 0),
        (aten.__iand__.Tensor, aten.__and__.Tensor, 0),
        (aten._fused_moving_avg_obs_fq_helper.default, aten._fused_moving_avg_obs_fq_helper_functional.default, 2),
    ],
    ids=str,
)
def test_the_variant_returns_what_the_operator_writes(op: Any, variant: Any, own: int) -> None:
    assert functional_variant(op) is variant
    assert own_results(op, variant) == own


def test_a_librarys_operator_gets_a_variant_that_works_on_copies() -> None:
    library = torch.library.Library("fxloom_ops_tests", "DEF")
    library.define("count(Tensor x, Tensor(a!) counter) -> Tensor")

    def count(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        counter += x.numel()
        return x + 1

    library.impl("count", count, "CompositeExplicitAutograd")
    op = torch.ops.fxloom_ops_tests.count.default
    variant = functional_variant(op)
    assert variant is not None and not variant._schema.is_mutable
    assert own_results(op, variant) == 1
    counter = torch.zeros(())
    made, after = variant(torch.ones(3), counter)
    assert (made.tolist(), float(after), float(counter)) == ([2, 2, 2], 3, 0)


def test_what_looks_at_values_may_raise() -> None:
    assert may_raise(aten.gather.default, torch.empty(2))
    assert may_raise(aten.remainder.Tensor, torch.empty(2, dtype=torch.int64))
    assert not may_raise(aten.remainder.Tensor, torch.empty(2))
    assert not may_raise(aten.add.Tensor, torch.empty(2))


def test_numbers_beside_halves_are_rounded_by_device() -> None:
    assert takes_wide_number("mul", 1, "cpu") and not takes_wide_number("add", 1, "cpu")
    assert takes_wide_number("add", 1, "cuda:0")
