"""The suites themselves: they pass for what is right and fail for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fxloom_interfaces.backend import eager
from fxloom_interfaces.prims import PRIMS
from fxloom_interfaces.replayer import FlatCallable, ReplaySignature
from fxloom_interfaces.versions import REPLAYER, Version
from fxloom_testing import CASES, BackendContract, PrimsContract, ReplayerContract
from fxloom_testing.backend import alias, graph_of, mutation
from fxloom_testing.prim_cases import cases


class TestEager(BackendContract):
    @pytest.fixture
    def backend(self) -> Any:
        return eager


class RunsAsIs:
    name = "as-is"
    interface: Version = REPLAYER
    device_types = ("cpu",)

    def wrap(self, fn: FlatCallable, signature: ReplaySignature) -> FlatCallable:
        return fn


class ReplaysTheFirst(RunsAsIs):
    """Wrong: gives the first call's results for ever."""

    def wrap(self, fn: FlatCallable, signature: ReplaySignature) -> FlatCallable:
        first: list[Any] = []

        def replay(inputs: list[Any]) -> Any:
            if not first:
                first.append(fn(inputs))
            return first[0]

        return replay


class TestAsIs(ReplayerContract):
    @pytest.fixture
    def replayer(self) -> Any:
        return RunsAsIs()


def test_replayer_suite_notices_stale_results() -> None:
    with pytest.raises(AssertionError):
        ReplayerContract().test_results_are_those_of_the_callable_and_stay_valid(ReplaysTheFirst(), "cpu")


def copies_first(gm: Any, inputs: Any) -> Any:
    """Wrong: works on copies, so that mutation and aliasing are lost."""
    return lambda *args: gm.forward(*(arg.clone() for arg in args))


@pytest.mark.parametrize("build", [mutation, alias], ids=lambda f: f.__name__)
def test_backend_suite_notices_lost_mutation_and_aliasing(build: Any) -> None:
    with pytest.raises(AssertionError):
        BackendContract().test_graph_has_eagers_results(build, copies_first)


class TestReferencesOfPrims(PrimsContract):
    @pytest.fixture
    def compiler(self) -> Any:
        return lambda gm: gm.forward


def wrong_prims() -> list[tuple[str, Any]]:
    """Mistakes that a compiler of prims makes: the prim, and what it computes in its place."""
    return [
        ("maximum", torch.fmax),  # loses NaN
        ("add", lambda x, y: x.add_(y)),  # writes to an operand
        ("permute", lambda x, dims: x.permute(dims)),  # aliases
        ("argmax", lambda x, dim: torch.argmax(x.flip(dim), dim)),
        ("sum", lambda x, dims: torch.sum(x, dims)),  # promotes integers
        ("gather_nd", lambda x, indices: x[tuple(index.clamp(min=0) for index in indices)]),  # no place from the end
    ]


@pytest.mark.parametrize(("name", "mistake"), wrong_prims(), ids=lambda value: str(value)[:12])
def test_prims_suite_notices_a_mistake(name: str, mistake: Any) -> None:
    def compiler(gm: torch.fx.GraphModule) -> Any:
        for node in gm.graph.nodes:
            if node.op == "call_function" and node.target is PRIMS[name]:
                node.target = mistake
        gm.recompile()
        return gm.forward

    with pytest.raises(AssertionError):
        PrimsContract().test_prim_computes_what_its_reference_does(name, compiler, "cpu")


def test_every_prim_has_cases_in_some_type() -> None:
    assert all(next(cases(name), None) is not None for name in PRIMS)


def test_cases_have_names_of_their_own_and_expect_what_they_write(tmp_path: Path) -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        buffers = case.make()
        assert len(buffers) == len(case.kernel.arguments)
        written = [b for b in case.kernel.arguments if b.role in ("out", "inout")]
        expected = case.expected(buffers)
        assert [str(t.dtype).removeprefix("torch.") for t in expected] == [b.dtype for b in written]


def test_graph_without_meta_runs() -> None:
    gm = graph_of(alias, 2)
    view, _ = gm.forward(torch.zeros(2, 2), torch.zeros(1))
    assert view.shape == (4,)
