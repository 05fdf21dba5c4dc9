"""Margin losses and draws whose derivatives have no Meta kernel in torch: whole graphs, eager's results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Beta, Binomial, Chi2, Dirichlet, Gamma

import fxloom

classes = torch.tensor([1, 0, 3])
labels = torch.tensor([[1, 0, -1, 2], [3, -1, 0, 0], [-1, 0, 1, 2]])
PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, classes, p=2, weight=torch.ones(4)),
    "multi_margin_loss, each": lambda x: F.multi_margin_loss(x, classes, reduction="none"),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, labels),
    "multilabel_margin_loss, transposed": lambda x: F.multilabel_margin_loss(x.t().contiguous().t(), labels, reduction="none"),
    "gamma": lambda x: Gamma(x, torch.ones(3, 4), validate_args=False).rsample(),
    "beta": lambda x: Beta(x, x + 1, validate_args=False).rsample(),
    "dirichlet": lambda x: Dirichlet(x, validate_args=False).rsample(),
    "chi2": lambda x: Chi2(x, validate_args=False).rsample(),
    "binomial": lambda x: x * Binomial(10, x.detach().clamp(max=1), validate_args=False).sample(),
    "fractional_max_pool3d": lambda x: F.fractional_max_pool3d(
        x.expand(1, 6, 3, 4) * 1.0, 2, output_size=(3, 1, 2), _random_samples=torch.full((1, 1, 3), 0.3)
    ),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_training(name: str, backend: str) -> None:
    fxloom.reset()
    function, x = PROGRAMS[name], (torch.rand(3, 4) + 0.5).requires_grad_()
    found = []
    for call in (function, fxloom.compile(function, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        result = call(x)
        found.append((result, torch.autograd.grad(result.square().sum(), x)[0]))
    (wanted, slope), (result, gradient) = found
    assert (result.stride(), gradient.stride()) == (wanted.stride(), slope.stride())
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(gradient, slope)
    assert fxloom.stats().graphs == 1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_row_with_a_target_of_one_element(reduction: str) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, target, weight, reduction=reduction)

    compiled = fxloom.compile(loss, fullgraph=True)
    weight = torch.rand(5)
    for target in (torch.tensor([2]), torch.tensor(3)):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x, target, weight), loss(x, target, weight))
