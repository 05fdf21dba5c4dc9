"""What programs for a GPU are made of, compiled with the Triton code generator where there is no GPU: launches, and what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_stages import EmitsOnly

from fxloom_aot import MinCut, aot_graph
from fxloom_decomp import table
from fxloom_dynamo import capture
from fxloom_inductor_core import CompiledGraph, InductorOptions, compile_graph
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.expr import product
from fxloom_interfaces.meta import get_fake
from fxloom_interfaces.plugins import CODEGENS
from fxloom_interfaces.program import Allocate
from fxloom_shapes import FakeMode

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")


def programs(make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[CompiledGraph]:
    """The forward graph, and the backward graph where there is one, of what `make` returns: a function and its arguments."""
    made: list[CompiledGraph] = []
    codegens = {"cuda": EmitsOnly(CODEGENS.load("triton")), "cpu": EmitsOnly(CODEGENS.load("cpp"))}

    def compiler(gm: Any, signature: Any) -> Any:
        made.append(compile_graph(gm, signature, options=InductorOptions(), codegens=codegens, store=None))  # type: ignore[arg-type]
        return made[-1]

    with FakeMode():
        function, arguments = make()
        found = capture(lambda: function(*arguments))
    assert not found.breaks and len(found.graphs) == 1
    given = [get_fake(node) for node in found.graphs[0].graph.nodes if node.op == "placeholder"]
    aot_graph(found.graphs[0], given, decompositions=table("inductor"), compiler=compiler, partitioner=MinCut())
    assert all(graph.fallbacks == () for graph in made)
    return made


def largest(graph: CompiledGraph) -> int:
    """Bytes of the largest tensor that a program allocates."""
    return max(int(product(step.size)) * dtype_info(step.dtype).nbytes for step in graph.program.steps if isinstance(step, Allocate))


def programs_of(graph: CompiledGraph) -> list[int]:
    """How many programs each kernel has that folds something, where that is known."""
    folds = [source.details for source in graph.kernel_sources if source.details["inner_tile"]]
    return [-(-int(details["outer_count"]) // details["outer_tile"]) for details in folds if details["outer_count"].isdigit()]


def test_a_softmax_of_few_short_rows_is_one_kernel() -> None:
    (graph,) = programs(lambda: (lambda x: x.softmax(-1), (torch.randn(128, 128, device="cuda"),)))
    assert len(graph.program.launches()) == 1


def test_cross_entropy_stores_no_scores() -> None:
    rows, classes = 4096, 50257

    def make() -> Any:
        scores = torch.randn(rows, classes, device="cuda", requires_grad=True)
        labels = torch.randint(0, classes, (rows,), device="cuda")
        return (lambda x, t: F.cross_entropy(x * 2, t)), (scores, labels)

    forward, backward = programs(make)
    stored = [step for step in forward.program.steps if isinstance(step, Allocate) and int(product(step.size)) >= rows * classes]
    assert len(stored) == 1  # what is kept for the backward pass
    assert largest(backward) == rows * classes * 4  # the gradient
    assert len(backward.program.launches()) == 1


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("channels", "extent"), [(64, 56), (256, 14), (2048, 7)])
def test_batch_norm_fills_the_gpu_and_stores_nothing_wide(channels: int, extent: int, channels_last: bool) -> None:
    def make() -> Any:
        form = torch.channels_last if channels_last else torch.contiguous_format
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        x = torch.randn(32, channels, extent, extent, **options).contiguous(memory_format=form).requires_grad_()
        mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
        weight, bias = (torch.ones(channels, device="cuda", requires_grad=True) for _ in range(2))
        return (lambda x: F.relu(F.batch_norm(x, mean, var, weight, bias, training=True))), (x,)

    forward, backward = programs(make)
    nbytes = 32 * channels * extent * extent * 2
    assert largest(forward) == largest(backward) == nbytes
    assert len(forward.program.launches()) <= 4 and len(backward.program.launches()) <= 4
    for graph in (forward, backward):
        assert max(programs_of(graph)) >= 132  # a program for each multiprocessor of an H100 or H200
