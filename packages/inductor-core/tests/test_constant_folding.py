"""What is folded, what is not worth it or must not be, and that the program then reads the very values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_graphs import check, compiled, record
from torch import Tensor

from fxloom_inductor_core import InductorOptions
from fxloom_inductor_core.passes.constant_folding import fold_constants
from fxloom_inductor_core.passes.dead_calls import remove_dead_calls
from fxloom_interfaces import telemetry
from fxloom_interfaces.dialects.aten_dialect import verify

X = torch.randn(6, 6)
OPTIONS = InductorOptions()


def buckets() -> Tensor:
    """As in T5: of positions, logarithmic from some distance on."""
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    far = 2 + (distance.abs().clamp(min=1).float() / 2).log().mul(3).long()
    return torch.where(distance.abs() < 2, distance.abs(), far.clamp(max=5))


FOLDED: dict[str, Callable[[Tensor], Any]] = {
    "buckets": lambda x: x + buckets(),
    "an index": lambda x: x[buckets()[0]],
    "a sum": lambda x: x * torch.arange(6).cumsum(0),
    "by an index, which might have been out of range": lambda x: x + torch.arange(6)[torch.arange(6).flip(0)],
    "one element": lambda x: x * torch.arange(6).sum(),
    "of other strides": lambda x: x @ torch.eye(6).mul(2).cumsum(0).t(),
    "expanded": lambda x: x @ torch.arange(6.0).exp().expand(6, 6),
    "overlapping": lambda x: x @ torch.arange(11.0).exp().unfold(0, 6, 1),
    "one of two results": lambda x: x + torch.arange(6).flip(0).sort()[1],
    "infinite": lambda x: x + torch.zeros(6, 6).masked_fill(torch.arange(36).view(6, 6).cumsum(0) > 20, -torch.inf),
}
LEFT: dict[str, Callable[[Tensor], Any]] = {
    "cheap in the kernel that reads it": lambda x: torch.where(torch.arange(6)[None] <= torch.arange(6)[:, None], x, 0.0),
    "the program's own": lambda x: (x + 1, torch.arange(6).cumsum(0)),
    "a view of the program's own": lambda x: (x + (c := torch.arange(6).cumsum(0)), c[:2]),
    "drawn": lambda x: x * torch.rand(6).cumsum(0),
    "large": lambda x: x.sum() + torch.arange(1 << 17).cumsum(0),
    "not known": lambda x: x + torch.empty(6).cumsum(0) * 0,
    "of an input": lambda x: x + x.long().cumsum(0),
}


@pytest.mark.parametrize("case", FOLDED)
def test_what_takes_long_is_folded(case: str) -> None:
    gm = record(FOLDED[case], X)
    assert fold_constants(gm.graph, OPTIONS) == 1
    verify(gm)
    assert not remove_dead_calls(gm.graph, OPTIONS)
    assert torch.equal(gm(X)[0], FOLDED[case](X))
    assert not fold_constants(gm.graph, OPTIONS)
    found = check(FOLDED[case], X)
    assert found([X])[0].stride() == FOLDED[case](X).stride()


@pytest.mark.parametrize("case", LEFT)
def test_other_values_are_made_by_the_program(case: str) -> None:
    gm = record(LEFT[case], X)
    assert not fold_constants(gm.graph, OPTIONS)


def test_a_constant_is_never_written_over() -> None:
    found = compiled(lambda x: torch.arange(6).cumsum(0).mul(2.0) + x.sum(0), X)
    first = found([X])[0].clone()
    found([X])[0].zero_()
    assert torch.equal(found([X])[0], first)


def test_the_printed_program_holds_its_constants() -> None:
    texts: dict[str, str] = {}

    def keep(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.ArtifactWritten):
            texts[event.name] = event.text

    with telemetry.listen(keep, artifacts=True):
        compiled(FOLDED["infinite"], X)
    scope: dict[str, Any] = {}
    exec(compile(texts["output_code.py"].split("# The kernels as loop IR:")[0], "output_code.py", "exec"), scope)
    (name,) = [name for name in scope if name.startswith("constant")]
    assert torch.equal(X + scope[name], FOLDED["infinite"](X))
