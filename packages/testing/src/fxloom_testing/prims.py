"""The contract of a compiler of prims. Subclass, define the fixture `compiler` (and `device`, if it isn't "cpu"), run pytest.

Every prim is called in every type that it takes: on ordinary numbers, on tensors without axes and without elements, and floats on NaN,
infinities and signed zeros. The references say what is right, on the CPU.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx

from fxloom_interfaces.dialects import prims_dialect
from fxloom_interfaces.meta import get_fake, set_fake
from fxloom_interfaces.prims import PRIMS, Prim, p
from fxloom_testing.prim_cases import PrimCase, cases

Compiler = Callable[[torch.fx.GraphModule], Callable[..., Any]]


class PrimsContract:
    """What every compiler of graphs of prims does."""

    @pytest.fixture
    def compiler(self) -> Compiler:
        """Takes a graph of the prims dialect, gives a callable of its inputs that returns a tuple of its outputs."""
        raise LookupError("define the fixture `compiler` in your subclass of PrimsContract")

    @pytest.fixture
    def device(self) -> str:
        """Where its graphs run."""
        return "cpu"

    #: Names of prims that are not there yet. What is missing is skipped, by name.
    missing: frozenset[str] = frozenset()

    @pytest.mark.parametrize("name", list(PRIMS))
    def test_prim_computes_what_its_reference_does(self, name: str, compiler: Compiler, device: str) -> None:
        if name in self.missing:
            pytest.skip(f"the compiler has no {name}")
        for case in cases(name):
            self.check(case, compiler, device)

    def check(self, case: PrimCase, compiler: Compiler, device: str) -> None:
        """One case: sizes, types, memory of its own, values."""
        torch.manual_seed(0)
        expected = _tuple(case.prim.reference(*case.arguments("cpu")))
        graph, tensors = graph_of(case.prim, case.arguments(device))
        before = [value.clone() for value in tensors]
        found = compiler(graph)(*tensors)
        assert isinstance(found, (tuple, list)), f"{case}: a compiled graph returns a tuple"
        assert len(found) == len(expected), case
        for mine, right in zip(found, expected, strict=True):
            assert mine.dtype == right.dtype, f"{case}: {mine.dtype}, expected {right.dtype}"
            assert tuple(mine.shape) == tuple(right.shape), f"{case}: {tuple(mine.shape)}, expected {tuple(right.shape)}"
            assert mine.device.type == torch.device(device).type, case
            if mine.numel():
                assert all(mine.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() for value in tensors), f"{case}: aliases"
            if case.compared:
                _assert_close(mine.cpu(), right, case)
        for value, was in zip(tensors, before, strict=True):
            assert torch.equal(value.nan_to_num(), was.nan_to_num()), f"{case}: writes to an operand"

    def test_draws_have_their_distribution(self, compiler: Compiler, device: str) -> None:
        size = (200, 200)
        for prim, arguments, mean, deviation in (
            (p.uniform, (size, torch.float32, device), 0.5, 12**-0.5),
            (p.normal, (size, torch.float32, device), 0.0, 1.0),
            (p.randint, (size, 2, 6, torch.int64, device), 3.5, (15 / 12) ** 0.5),
        ):
            if prim.name in self.missing:
                continue
            graph, _ = graph_of(prim, arguments)
            run = compiler(graph)
            first, second = run()[0].double(), run()[0].double()
            assert not torch.equal(first, second), f"{prim}: each call draws anew"
            assert abs(first.mean().item() - mean) < 5 * deviation / 200, prim
            assert abs(first.std().item() - deviation) < 0.03 * deviation, prim

    @pytest.mark.parametrize("name", ["gather", "index_select", "gather_nd", "scatter", "scatter_nd"])
    def test_an_index_out_of_range_raises(self, name: str, compiler: Compiler, device: str) -> None:
        """On the CPU; a device may stop the process's kernels, which no test should."""
        if name in self.missing or torch.device(device).type != "cpu":
            pytest.skip(f"no {name} on the CPU")
        x, inside, outside = torch.ones(3), torch.tensor([2, 0]), torch.tensor([3, 0])
        graph, tensors = graph_of(PRIMS[name], _indexed(name, x, inside))
        run = compiler(graph)
        tensors = [outside if value is inside else value for value in tensors]
        with pytest.raises((IndexError, RuntimeError)):
            run(*tensors)

    def test_graphs_of_several_prims(self, compiler: Compiler, device: str) -> None:
        """Results of results, two outputs, an input that is an output, one that is not used."""
        made = torch.fx.Graph()
        x, y, unused = (torch.randn(4, 5, device=device) for _ in range(3))
        a, b, _ = nodes = [made.placeholder(name) for name in ("x", "y", "unused")]
        for node, value in zip(nodes, (x, y, unused), strict=True):
            set_fake(node, value)
        total = _call(made, p.add, a, b)
        both = _call(made, p.var_mean, total, (1,), 1)
        variance = made.call_function(operator.getitem, (both, 0))
        set_fake(variance, get_fake(both)[0])
        made.output((_call(made, p.exp, total), variance, a))
        graph = torch.fx.GraphModule(torch.nn.Module(), made)
        prims_dialect.verify(graph)
        found = compiler(graph)(x, y, unused)
        torch.testing.assert_close(found[0], torch.exp(x + y))
        torch.testing.assert_close(found[1], torch.var(x + y, 1))
        torch.testing.assert_close(found[2], x)


def _indexed(name: str, x: torch.Tensor, index: torch.Tensor) -> tuple[Any, ...]:
    source = torch.zeros(index.shape)
    return {
        "gather": (x, 0, index),
        "index_select": (x, index, 0),
        "gather_nd": (x, [index]),
        "scatter": (x, 0, index, source),
        "scatter_nd": (x, [index], source),
    }[name]


def _call(graph: torch.fx.Graph, prim: Prim, *args: Any) -> torch.fx.Node:
    node = graph.call_function(prim, args)
    set_fake(node, prim.reference(*[get_fake(value) if isinstance(value, torch.fx.Node) else value for value in args]))
    return node


def graph_of(prim: Prim, arguments: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A graph that calls `prim`, and its inputs: the tensors among the arguments, lists of them included."""
    made = torch.fx.Graph()
    tensors: list[torch.Tensor] = []

    def placed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = made.placeholder(f"x{len(tensors)}")
            set_fake(node, value)
            tensors.append(value)
            return node
        if isinstance(value, list):
            return [placed(item) for item in value]
        return value

    call = made.call_function(prim, tuple(placed(value) for value in arguments))
    results = prim.reference(*arguments)
    set_fake(call, results)
    outputs: list[torch.fx.Node] = [call]
    if isinstance(results, tuple):
        outputs = [made.call_function(operator.getitem, (call, number)) for number in range(len(results))]
        for node, value in zip(outputs, results, strict=True):
            set_fake(node, value)
    made.output(tuple(outputs))
    graph = torch.fx.GraphModule(torch.nn.Module(), made)
    prims_dialect.verify(graph)
    return graph, tensors


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


#: of results that are rounded: how far from the reference, relative and absolute
_TOLERANCES = {torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 8e-3), torch.float32: (2e-5, 2e-6), torch.float64: (1e-9, 1e-12)}


def _assert_close(mine: torch.Tensor, right: torch.Tensor, case: PrimCase) -> None:
    rtol, atol = _TOLERANCES.get(right.dtype, (0.0, 0.0))
    torch.testing.assert_close(mine, right, rtol=rtol, atol=atol, equal_nan=True, msg=lambda message: f"{case}: {message}")
