"""torch's optimizers, every class with every option of its database: one graph a step, no recompilation, few kernels, eager's values."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves

import fxloom

SHAPES = ((3, 4), (5,), (2, 3, 2), (7,), ())
#: calls backward within its step, or takes sparse gradients only
LEFT_TO_EAGER = ("LBFGS", "SparseAdam")
#: torch can't differentiate a step of the first: it writes to what the derivative needs. The second asks how large a step count is
BREAKS_WHERE_DIFFERENTIABLE = ("ASGD", "RAdam")


def cases(every: bool) -> Iterator[Any]:
    for info in optim_db:
        name = info.optim_cls.__name__
        if name in LEFT_TO_EAGER:
            continue
        inputs = info.optim_inputs_func(device="cpu")
        for number, given in enumerate(inputs if every else inputs[:1]):
            ways: list[dict[str, Any]] = [{}]
            known = inspect.signature(info.optim_cls).parameters
            if "foreach" in known:
                ways = [{"foreach": False}, {"foreach": True}]
                ways += [{**way, "capturable": True} for way in ways] if "capturable" in known and "capturable" not in given.kwargs else []
            if "fused" in info.supported_impls and "cpu" in getattr(info, "supports_fused_on", ()):
                ways.append({"fused": True})
            if "differentiable" in known and name not in BREAKS_WHERE_DIFFERENTIABLE:
                ways.append({"differentiable": True})
            for way in ways:
                yield pytest.param(info.optim_cls, {**given.kwargs, **way}, id=f"{name} {number} {' '.join(way)}{'' if way.get('foreach', True) else ' off'}")


def optimizer_for(cls: type, options: dict[str, Any]) -> tuple[torch.optim.Optimizer, list[torch.Tensor], list[torch.Tensor]]:
    """(an optimizer, its parameters, the leaves behind them)"""
    torch.manual_seed(0)
    shapes = [shape for shape in SHAPES if cls.__name__ != "Muon" or len(shape) == 2]
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    params = [leaf * 1 for leaf in leaves] if options.get("differentiable") else leaves
    return cls(params, **copy.deepcopy(options)), params, leaves


def run(cls: type, options: dict[str, Any], compiled: bool, steps: int = 4) -> tuple[list[Any], list[int]]:
    """(parameters and states after each step and, at the end, the gradients of the leaves, compilations so far)"""
    optimizer, params, leaves = optimizer_for(cls, options)
    if not compiled:
        for group in optimizer.param_groups:
            group["capturable"] = False  # in eager for GPUs only
    step: Callable[[], Any] = fxloom.compile(lambda: optimizer.step(), fullgraph=True) if compiled else optimizer.step
    seen, compiles = [], []
    for number in range(steps):
        generator = torch.Generator().manual_seed(number)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        step()
        compiles.append(fxloom.stats().compiles)
        seen += [p.detach().clone() for p in params]
        seen += [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in tree_leaves([optimizer.state[p] for p in params])]
    if options.get("differentiable"):
        try:
            seen += torch.autograd.grad(sum((p * p).sum() for p in params), leaves)
        except RuntimeError as error:  # of several steps of Adamax or AMSGrad, say
            assert "modified by an inplace operation" in str(error)
    return seen, compiles


def check(cls: type, options: dict[str, Any]) -> None:
    expected, _ = run(cls, options, compiled=False)
    fxloom.reset()
    got, compiles = run(cls, options, compiled=True)
    assert (fxloom.stats().graph_breaks, dict(fxloom.stats().fallbacks)) == (0, {})
    assert fxloom.stats().graphs == compiles[-1]  # one graph each
    if not options.get("differentiable"):  # a state may then have a history or none
        assert compiles[1:] == compiles[1:2] * 3 and compiles[1] <= 2, "it is compiled when it makes its state, and when it has one"
    assert compiles[-1] <= 3
    assert len(got) >= len(expected)  # eager may refuse gradients that a graph has
    for mine, eager in zip(got, expected, strict=False):
        if isinstance(eager, torch.Tensor):
            torch.testing.assert_close(mine, eager, rtol=2e-5, atol=2e-6)
            assert mine.stride() == eager.stride()
        else:
            assert mine == eager


@pytest.mark.parametrize(("cls", "options"), list(cases(every=False)))
def test_a_step_is_one_graph(cls: type, options: dict[str, Any]) -> None:
    check(cls, options)


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "options"), list(cases(every=True)))
def test_a_step_with_every_option(cls: type, options: dict[str, Any]) -> None:
    check(cls, options)


def kernels_of_a_step(cls: type, count: int, **options: Any) -> int:
    """Kernels of the step of an optimizer that has its state, over tensors of several shapes."""
    torch.manual_seed(0)
    params = [torch.randn(SHAPES[number % 4], requires_grad=True) for number in range(count)]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = cls(params, **options)
    optimizer.step()
    fxloom.reset()
    fxloom.compile(lambda: optimizer.step(), fullgraph=True)()
    assert fxloom.stats().compiles == 1
    return fxloom.stats().kernels["cpp"]


@pytest.mark.parametrize(
    ("cls", "options", "most"),
    [
        (torch.optim.Adam, {"foreach": True}, 2),
        (torch.optim.Adam, {"foreach": False}, 2),
        (torch.optim.Adam, {"fused": True}, 2),
        (torch.optim.AdamW, {"amsgrad": True, "lr": torch.tensor(0.1)}, 2),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.Adagrad, {}, 2),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, 2),
        (torch.optim.NAdam, {}, 3),
        (torch.optim.RAdam, {}, 3),
        (torch.optim.Adafactor, {}, 25),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else " ".join(value) if isinstance(value, dict) else "",
)
def test_fifty_parameters_take_a_few_kernels(cls: type, options: dict[str, Any], most: int) -> None:
    assert kernels_of_a_step(cls, 50, **options) <= most


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.SGD])
def test_a_rate_that_changes_compiles_once_more_at_most(cls: type, options: dict[str, Any]) -> None:
    results = []
    for compiled in (False, True):
        optimizer, params, _ = optimizer_for(cls, {**options, "lr": 0.1})
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        fxloom.reset()
        step = fxloom.compile(lambda: optimizer.step(), fullgraph=True) if compiled else optimizer.step  # noqa: B023  # called within
        for number in range(6):
            for param in params:
                param.grad = torch.sin(param.detach() * number)
            step()
            schedule.step()
        results.append(params)
    assert fxloom.stats().compiles <= 3
    for mine, eager in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager)


def test_gradients_are_clipped_in_one_graph() -> None:
    params = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    for param in params:
        param.grad = torch.randn_like(param)
    before = [param.grad.clone() for param in params]
    fxloom.reset()
    norm = fxloom.compile(lambda: torch.nn.utils.clip_grad_norm_(params, 0.5, foreach=True), fullgraph=True)()
    assert (fxloom.stats().graphs, dict(fxloom.stats().fallbacks)) == (1, {})
    assert fxloom.stats().kernels["cpp"] <= 5
    torch.testing.assert_close(norm, torch.cat([grad.flatten() for grad in before]).norm())
    torch.testing.assert_close(torch.cat([param.grad.flatten() for param in params]).norm(), torch.tensor(0.5), rtol=1e-4, atol=0)
