"""Tensor-scalar overloads: the same results and derivatives as with plain numbers; which operators have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxloom_ops.assertions import CHECK
from fxloom_ops.scalar_overloads import accepts, scalar_overload
from fxloom_ops.script_definitions import definitions

aten = torch.ops.aten
CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.cdist.default, (torch.rand(3, 4), torch.rand(2, 4), 1.5), {}),
    (aten.cdist.default, (torch.rand(3, 4), torch.rand(2, 4)), {"p": 3}),
    (aten.pairwise_distance.default, (torch.rand(3, 4), torch.rand(3, 4)), {"eps": 0.5}),
    (aten.round.decimals, (torch.rand(3),), {"decimals": 2}),
    (aten.upsample_nearest1d.default, (torch.rand(1, 2, 4), [6], 1.5), {}),
    (aten.renorm.default, (torch.rand(3, 4), 2.0, 0, 0.5), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES, ids=[str(op) for op, _, _ in CASES])
def test_the_overload_does_the_same(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    results = []
    for run in (op, scalar_overload(op, differentiated=True)):
        given = [value.clone().requires_grad_() if isinstance(value, torch.Tensor) else value for value in args]
        made = run(*given, **kwargs)
        leaves = [value for value in given if isinstance(value, torch.Tensor)]
        results.append([made, *torch.autograd.grad((made * made.detach()).sum(), leaves)])
    torch.testing.assert_close(results[1], results[0])
    assert accepts(op, args, kwargs)


def test_what_torch_has_no_derivative_by_is_not_differentiated() -> None:
    x, labels, weight = torch.rand(5, 3, requires_grad=True), torch.tensor([0, 2, 1, 1, 0]), torch.rand(3)
    found = []
    for run in (aten.cross_entropy_loss.default, scalar_overload(aten.cross_entropy_loss.default, differentiated=True)):
        found.append(torch.autograd.grad(run(x, labels, weight, label_smoothing=0.2), x))
    torch.testing.assert_close(*found)


def test_floats_are_scalars_and_everything_else_is_as_it_was() -> None:
    made = scalar_overload(aten.cdist.default, differentiated=False)
    assert str(made._schema) == "fxloom::aten_cdist(Tensor x1, Tensor x2, Scalar p=2., int? compute_mode=None) -> Tensor"
    assert scalar_overload(aten.cdist.default, differentiated=True) is made


@pytest.mark.parametrize(
    ("op", "differentiated"),
    [
        (aten.bernoulli.p, True),  # drawn again, it would be another one
        (aten.nan_to_num_.default, True),
        (aten.dropout.default, False),  # gives back its argument for 0
        (aten.arange.default, False),  # the result's size goes by the number
        (aten.instance_norm.default, False),  # writes into running statistics, and its schema doesn't say so
        (aten.native_batch_norm.default, True),
        (aten.view.default, False),
        (aten.add.out, False),
    ],
    ids=str,
)
def test_what_has_no_scalar_overload(op: Any, differentiated: bool) -> None:
    assert scalar_overload(op, differentiated) is None


def test_random_ones_draw_the_same_numbers() -> None:
    drawn = []
    for run in (aten.bernoulli.p, scalar_overload(aten.bernoulli.p, differentiated=False)):
        torch.manual_seed(0)
        drawn.append(run(torch.empty(50), 0.3))
    assert torch.equal(*drawn)


def test_a_check_raises_what_it_says() -> None:
    CHECK(True, "never {}", "IndexError", [1])
    with pytest.raises(IndexError, match="^index 5 of 3$"):
        CHECK(False, "index {} of {}", "IndexError", [5, 3])
    with pytest.raises(RuntimeError, match="^as it is {}$"):
        CHECK(False, "as it is {}", "RuntimeError", [])


def test_scripts_define_what_they_call() -> None:
    name = str(scalar_overload(aten.cdist.default, differentiated=False))
    assert definitions([name, "aten.add.Tensor", "torch.ops.fxloom.recurrent.default", f"torch.ops.{name}"]) == [
        "from fxloom_ops.scalar_overloads import scalar_overload",
        "scalar_overload(torch.ops.aten.cdist.default, differentiated=False)",
        "import fxloom_ops.recurrent",
    ]
