"""Two kernels that are neighbours and are not one: there is a reason, and it is the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from core_graphs import record

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import InductorOptions, compile_graph
from fxloom_inductor_core.scheduler.fusion_vetoes import FUSION_VETOES, reason_of
from fxloom_interfaces import telemetry
from fxloom_interfaces.program import Launch

X, W = torch.randn(8, 32), torch.randn(32, 32)


def reasons(
    function: Callable[..., object], *inputs: torch.Tensor, options: InductorOptions | None = None, **capabilities: object
) -> list[telemetry.KernelsKeptApart]:
    found: list[telemetry.KernelsKeptApart] = []
    codegen = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, **capabilities))
    listener = lambda event: found.append(event) if isinstance(event, telemetry.KernelsKeptApart) else None  # noqa: E731
    with telemetry.listen(listener, artifacts=True):
        graph = compile_graph(record(function, *inputs), codegens={"cpu": codegen}, store=None, options=options)
    names = {step.kernel for step in graph.program.steps if isinstance(step, Launch)}
    assert {name for pair in found for name in (pair.first, pair.second)} <= names
    return found


def twice(x: torch.Tensor, then: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A value that is stored, and what is computed from it."""
    e = x.exp()
    return e, then(e)


@pytest.mark.parametrize(
    ("function", "inputs", "reason", "settings"),
    [
        (lambda x, w: torch.exp((x + 1) @ w) + (x + 1), (X, W), "aten.mm runs between them", {}),
        (lambda x: twice(x, lambda e: e[:, :4] * 3), (X,), "no loop nest is both", {}),
        (lambda x: twice(x, lambda e: e.flip(0) * 2), (X,), "is read at other places than where it is written", {}),
        (lambda x: twice(x, lambda e: e.cumsum(1)), (X,), "one of them is a scan, which runs over its axis in order", {}),
        (lambda x: (x.exp(), x.sin()), (X,), "neither reads the other, and the target fuses only what does", {"fusions": frozenset()}),
        (lambda x: twice(x, lambda e: e.sum(0)), (X,), "the target fuses no elementwise loops with reductions", {"fusions": frozenset({"pointwise"})}),
        (lambda x: [x + float(n) for n in range(12)], (X,), "together they have more arguments than the target takes", {"max_arguments": 8}),
        (lambda x: (x.sum(1), x.sum(0)), (X,), "no loop nest is both", {}),
    ],
    ids=["call", "extents", "places", "scan", "horizontal", "reductions", "arguments", "folds"],
)  # fmt: skip
def test_the_reason_is_named(function: Callable[..., object], inputs: tuple[torch.Tensor, ...], reason: str, settings: dict[str, object]) -> None:
    found = reasons(function, *inputs, **settings)
    assert found and all(pair.reason for pair in found)
    assert any(reason in pair.reason for pair in found), [str(pair) for pair in found]


def test_options_are_reasons() -> None:
    chain = lambda x: torch.exp(x).sum(-1, keepdim=True) * x  # noqa: E731
    assert all(pair.reason == "nothing is fused (the option fuse)" for pair in reasons(chain, X, options=InductorOptions(fuse=False)))
    few = reasons(lambda x: [x + float(n) for n in range(5)], X, options=InductorOptions(max_fused_nodes=2))
    assert few and all("max_fused_nodes" in pair.reason for pair in few)


def test_one_kernel_has_no_neighbours() -> None:
    assert reasons(lambda x: torch.softmax(x * 2, -1), X) == []


def test_equal_pairs_are_counted() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.tanh(x @ w) + x
        return x

    (pair,) = reasons(layers, X, W)
    assert pair.count == 5 and str(pair).endswith("(5 times): aten.mm runs between them")


@pytest.mark.parametrize("rule", FUSION_VETOES, ids=lambda rule: rule.__name__)
def test_every_rule_says_why(rule: Callable[..., bool]) -> None:
    assert rule.__doc__ and len(reason_of(rule).split()) >= 5
