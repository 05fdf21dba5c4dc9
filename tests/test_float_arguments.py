"""Floats of the call that change and are parameters of operators: one compilation for all, where operators can do it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom

Program = Callable[[Tensor, float], Tensor]
LABELS = torch.tensor([0, 2, -100, 1])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])
PROGRAMS: dict[str, Program] = {
    "cross_entropy": lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p),
    "cross_entropy_sum": lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p, reduction="sum"),
    "cross_entropy_none": lambda x, p: F.cross_entropy(x, LABELS, label_smoothing=p, reduction="none"),
    "margin_ranking_loss": lambda x, p: F.margin_ranking_loss(x[:, 0], x[:, 1], SIGNS, margin=p),
    "hinge_embedding_loss": lambda x, p: F.hinge_embedding_loss(x[:, 0], SIGNS, margin=p),
    "triplet_margin_loss": lambda x, p: F.triplet_margin_loss(x, x * 2, x + 1, margin=p, swap=True),
    "pad": lambda x, p: F.pad(x, (1, 2), value=p) * 2,
    "nan_to_num": lambda x, p: torch.nan_to_num(x.masked_fill(x > 0.5, torch.nan) / x.masked_fill(x < 0, 0), nan=p, posinf=p),
    "isclose": lambda x, p: torch.isclose(x, x * 1.2, rtol=p).to(x.dtype) + x,
    "logit": lambda x, p: torch.logit(x.sigmoid(), eps=p),
    "normal": lambda x, p: torch.normal(0.0, p, (4, 3)) + x,
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_that_changes_is_compiled_for_once(name: str, backend: str) -> None:
    if (name, backend) == ("normal", "inductor"):
        pytest.skip("draws numbers of its own, unless told otherwise")
    f = PROGRAMS[name]
    fxloom.reset()
    compiled = fxloom.compile(f, backend=backend, fullgraph=True)
    for p in (0.1, 0.2, 0.3, 0.4, 0.15):
        torch.manual_seed(1)
        x = torch.randn(4, 3, requires_grad=True)
        torch.manual_seed(2)
        expected = f(x, p)
        torch.manual_seed(2)
        got = compiled(x, p)
        torch.testing.assert_close(got, expected, equal_nan=True)
        torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (got, expected)], equal_nan=True)
    assert fxloom.stats().compiles == 2
