"""Kernels take no more arguments than their plugin allows: lists are split or given to a library, bodies are stored in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from core_graphs import compare, record
from torch.utils._pytree import tree_leaves

from fxloom_codegen_common.reference import REFERENCE
from fxloom_inductor_core import CompiledGraph, compile_graph


def check_within(limit: int, function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 1e-5) -> CompiledGraph:
    """Compile for a plugin whose kernels take `limit` arguments, look at every kernel, run, compare with eager."""
    plugin = replace(REFERENCE, capabilities=replace(REFERENCE.capabilities, max_arguments=limit))
    graph = compile_graph(record(function, *inputs), codegens={"cpu": plugin}, store=None)
    assert all(len(kernel.arguments) + len(kernel.sizes) <= limit for _, kernel in graph.program.kernels)
    compare(graph([i.clone() for i in inputs]), tree_leaves(function(*inputs)), rtol)
    return graph


def pieces(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3 + number % 2, 4) for number in range(count)]


def total(values: Sequence[torch.Tensor]) -> torch.Tensor:
    result = values[0] * 2
    for value in values[1:]:
        result = result + torch.sin(value)
    return result


LISTS: dict[str, Callable[..., Any]] = {
    "cat": lambda *x: torch.cat(x),
    "cat of computed pieces": lambda *x: torch.cat([torch.tanh(v) * n for n, v in enumerate(x)]) + 1,
    "cat of views": lambda *x: torch.cat([v[1:].t() for v in x], 1),
    "cat along the last axis": lambda *x: torch.cat([v[:3] for v in x], -1).sum(-1),
    "cat with empty pieces": lambda *x: torch.cat([torch.empty(0), *x, torch.empty(0, 4)]),
    "cat of integers and floats": lambda *x: torch.cat([x[0], *(v.long() for v in x[1:])]),
    "stack": lambda *x: torch.stack([v[:3] for v in x]),
    "stack of numbers": lambda *x: torch.stack([v.sum() for v in x]),
    "sum of all": lambda *x: total([v[:3] for v in x]),
    "product of norms": lambda *x: torch.stack(torch._foreach_norm(x)).norm() * x[0],
    "one apart": lambda *x: [v * x[0].sum() for v in x],
    "foreach": lambda *x: torch._foreach_add(torch._foreach_mul(x, 2.0), x, alpha=3),
    "split": lambda *x: [v + 1 for v in torch.cat(x).split(1)],
    "softmax of one with all": lambda *x: torch.softmax(total([v[:3] for v in x]), -1) - total([v[:3] for v in x]),
    "variances": lambda *x: torch.var_mean(total([v[:3] for v in x]), -1),
    "sums along an axis": lambda *x: total([v[:3] for v in x]).cumsum(0),
}


@pytest.mark.parametrize("limit", [4, 5, 13])
@pytest.mark.parametrize("name", LISTS)
def test_lists_fit_their_kernels(name: str, limit: int) -> None:
    graph = check_within(limit, LISTS[name], *pieces(12))
    assert graph.fallbacks == check_within(1024, LISTS[name], *pieces(12)).fallbacks  # operators that are decomposed before


def test_hundreds_of_pieces_are_one_call_of_the_library() -> None:
    graph = check_within(64, LISTS["cat"], *pieces(300))
    assert (graph.library_calls, len(graph.program.launches())) == ((("aten.cat", 1),), 0)


def test_few_pieces_are_computed_where_they_are_read() -> None:
    graph = check_within(64, lambda *x: torch.cat([v * n for n, v in enumerate(x)]) + 1, *pieces(4))
    assert (graph.library_calls, len(graph.program.launches())) == ((), 1)


@pytest.mark.parametrize("limit", [3, 4, 5, 6, 8])
def test_values_that_many_buffers_make_are_stored_in_parts(limit: int) -> None:
    """Values that are computed where they are read, of values that are stored later for another reader."""

    def program(*x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c, d = x[0] + 1, x[0] * 2, x[0] - 3, x[1] * x[0]
        whole = (a * b + c) * d - a
        return whole + x[2] * x[3], torch.mm(a, b), torch.mm(c, d), whole.sum(0)

    torch.manual_seed(0)
    graph = check_within(limit, program, *(torch.randn(4, 4) for _ in range(4)), rtol=1e-4)
    assert graph.fallbacks == ()


def test_one_operator_with_too_many_operands_is_a_counted_call() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (x * 2)[i + 1, j, k] + 1

    index = [torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([1, 1, 0])]
    x = torch.randn(3, 3, 3)
    assert check_within(4, program, x, *index).fallbacks == (("aten.index.Tensor", 1),)
    assert check_within(5, program, x, *index).fallbacks == ()
