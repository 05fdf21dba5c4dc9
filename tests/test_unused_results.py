"""Calls whose result nobody uses: what they raise for the values in their tensors is raised all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fxloom
from fxloom_aot import aot_export

BACKENDS = ["aot_eager", "inductor"]

#: x: floats, i: 0, 1, 2. Each raises in eager
CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "getitem": lambda x, i: x[i + 9],
    "setitem": lambda x, i: x.clone().__setitem__(i + 9, 1.0),
    "gather": lambda x, i: x.gather(0, i + 9),
    "scatter": lambda x, i: x.clone().scatter_(0, i + 9, 1.0),
    "index_select": lambda x, i: (x * 1).index_select(0, i + 9),
    "index_add": lambda x, i: x.index_add(0, i + 9, x),
    "take": lambda x, i: x.take(i + 9),
    "embedding": lambda x, i: F.embedding(i + 99, x[:, None]),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None] + 9, x[:, None]),
    "cross_entropy": lambda x, i: F.cross_entropy(x[None], i[:1] + 77),
    "one_hot": lambda x, i: F.one_hot(i - 5),
    "floordiv": lambda x, i: i // (i - i),
    "remainder": lambda x, i: i % (i - i),
    "eigh": lambda x, i: torch.linalg.eigh(x[:, None] * float("nan") * torch.ones(3, 3)),
    "inverse": lambda x, i: torch.linalg.inv(torch.zeros(3, 3) * x),
    "lu_solve": lambda x, i: torch.linalg.lu_solve(torch.zeros(3, 3), i.int() + 9, x[:, None]),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 0, x[:1]),
    "batch_norm": lambda x, i: F.batch_norm(x, None, None, training=True),
}


def raised(run: Callable[[], Any]) -> type[BaseException] | None:
    try:
        run()
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.cpu_only("an index out of range ends the process on CUDA, in eager too")
def test_errors_of_unused_calls(name: str, requires_grad: bool, backend: str) -> None:
    fxloom.reset()

    def program(x: Tensor, i: Tensor) -> Tensor:
        CALLS[name](x, i)
        return x + 1

    x, i = torch.ones(3, requires_grad=requires_grad), torch.arange(3)
    compiled = fxloom.compile(program, backend=backend)
    wanted = raised(lambda: program(x, i))
    assert wanted is not None
    got = raised(lambda: compiled(x, i))
    kinds = {wanted, RuntimeError} if backend == "inductor" and name == "cross_entropy" else {wanted}  # as where it is used
    assert got in kinds


@pytest.mark.parametrize("backend", BACKENDS)
def test_unused_calls_that_raise_nothing(backend: str) -> None:
    """One that is fine runs for nothing; arithmetic is dropped."""
    fxloom.reset()
    def program(x: Tensor, i: Tensor) -> Tensor:
        x.exp().gather(0, i)
        x.sin()
        return x + 1

    x, i = torch.ones(3), torch.arange(3)
    torch.testing.assert_close(fxloom.compile(program, backend=backend, fullgraph=True)(x, i), program(x, i))
    called = [node.target for node in aot_export(program, [x, i]).forward.gm.graph.nodes if node.op == "call_function"]
    aten = torch.ops.aten
    assert called == [aten.exp.default, aten.gather.default, aten.add.Tensor]
