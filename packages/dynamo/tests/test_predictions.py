"""Branches on a tensor's values of which one side only raises: one graph, and Python's own behaviour where it raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import prediction_programs
import pytest
import torch
from prediction_programs import catches, compares_item, conversions, dropout_before, equals_item, raises_if, two_conditions, writes

import fxloom_dynamo


def _outcome(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """What a call returned or raised, with the line that raised, and the state of the generator after it."""
    torch.manual_seed(3)
    try:
        result: tuple[Any, ...] = ("returned", fn(*args))
    except Exception as error:
        traceback = error.__traceback__
        lines = []
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename in (__file__, prediction_programs.__file__):
                lines.append(traceback.tb_lineno)
            traceback = traceback.tb_next
        result = ("raised", type(error), str(error), lines[1:])
    return (*result, torch.get_rng_state().tolist())


def _same(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    compiled = fxloom_dynamo.optimize("eager", fullgraph=True)(fn)
    for args in calls:
        expected, got = _outcome(fn, *args), _outcome(compiled, *args)
        assert repr(got) == repr(expected)


ORDINARY, NEGATIVE, NAN = torch.arange(4.0), torch.arange(4.0) - 9, torch.tensor([1.0, float("nan"), 2.0, 3.0])


@pytest.mark.parametrize("fn", [raises_if, two_conditions, dropout_before, conversions])
def test_whole_and_as_python(fn: Callable[..., Any]) -> None:
    """Right and wrong predictions in turn, each with Python's result, message, line and random numbers."""
    _same(fn, (ORDINARY,), (NEGATIVE,), (NAN,), (ORDINARY,))


def test_numbers_to_compare_with() -> None:
    _same(compares_item, (ORDINARY, 3), (ORDINARY, 2), (NAN, 7), (ORDINARY.double(), 3), (ORDINARY.long(), 2), (ORDINARY > 0, 0))


@pytest.mark.parametrize("value", [0.1, 16777217.0])
def test_item_compares_as_a_python_number(value: float) -> None:
    """A float32 tensor compared with a number compares in float32; its item() does not."""
    _same(equals_item, (torch.tensor(value), value), (torch.tensor(value), float(torch.tensor(value))))


def test_effects_and_handlers() -> None:
    """The effects before the branch happen once, those behind it do not; a handler in the function catches."""
    log: list[str] = []
    fn = functools.partial(catches, log)
    compiled = fxloom_dynamo.optimize("eager", fullgraph=True)(fn)
    for x, expected in ((ORDINARY + 1, ["before", "after"]), (ORDINARY, ["before", "caught"])):
        log.clear()
        assert torch.equal(compiled(x), x + 1 if "after" in expected else x - 1)
        assert log == expected


def test_in_an_inlined_call_and_behind_a_break() -> None:
    class Checked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.isfinite(x).all():
                raise ValueError("not finite")
            return x * 2

    module = Checked()

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = module(x + 1)
        x = x + x.sum().item()  # a break
        return module(x)

    report = fxloom_dynamo.explain(fn, ORDINARY)
    assert len(report.graphs) == 2 and [found.key for found in report.breaks] == ["data_dependent"]
    compiled = fxloom_dynamo.optimize("eager")(fn)
    for x in (ORDINARY, NAN, torch.full((4,), 3e38), ORDINARY):
        assert repr(_outcome(compiled, x)[:3]) == repr(_outcome(fn, x)[:3])


def test_a_graph_that_writes_breaks() -> None:
    report = fxloom_dynamo.explain(writes, ORDINARY.clone())
    assert [found.key for found in report.breaks] == ["data_dependent"] and len(report.graphs) == 2
    compiled = fxloom_dynamo.optimize("eager")(writes)
    for start in (0.0, 9.0):
        mine, theirs = torch.full((2,), start), torch.full((2,), start)
        assert repr(_outcome(compiled, mine)[:3]) == repr(_outcome(writes, theirs)[:3])
        assert torch.equal(mine, theirs)


def test_other_branches_still_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    assert [found.key for found in fxloom_dynamo.explain(fn, ORDINARY).breaks] == ["data_dependent"]


def test_torchs_own_checks_of_values_stay_in_the_graph() -> None:
    """A loss that raises for negative variances is evaluated, since it asks for a value; the check is made by the graph."""
    graphs: list[object] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: object) -> object:
        graphs.append(gm)
        return gm.forward

    loss = fxloom_dynamo.optimize(keep, fullgraph=True)(torch.nn.functional.gaussian_nll_loss)
    x, variance = torch.randn(5, 3), torch.rand(5, 3) + 1
    torch.testing.assert_close(loss(x, x + 1, variance), torch.nn.functional.gaussian_nll_loss(x, x + 1, variance))
    with pytest.raises(ValueError, match="var has negative"):
        loss(x, x + 1, -variance)
    assert len(graphs) == 1
