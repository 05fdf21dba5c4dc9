"""Programs that set torch's default device: what compiled code allocates lies where it has to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fxloom


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.set_default_device(None)
    fxloom.reset()


def two_kernels(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(-1) @ x).sum(0) + 1


@pytest.mark.parametrize("when", ["before the first call", "between two calls"])
def test_memory_of_cpu_kernels(when: str) -> None:
    """`meta` stands for any other device: with its memory a kernel would write to address 0."""
    x, compiled = torch.randn(8, 8), fxloom.compile(two_kernels, fullgraph=True)
    expected = two_kernels(x)
    if when == "between two calls":
        torch.testing.assert_close(compiled(x), expected)
    torch.set_default_device("meta")
    found = compiled(x)
    assert found.device.type == "cpu"
    torch.set_default_device(None)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
@pytest.mark.parametrize("dynamic", [None, True])
def test_tensors_of_sizes_lie_on_it(make: Any, dynamic: bool | None) -> None:
    program: Any = lambda x: (make(x.shape[0]), make([x.shape[0], 2.5]))  # noqa: E731
    compiled = fxloom.compile(program, backend="aot_eager", fullgraph=dynamic is True, dynamic=dynamic)
    torch.set_default_device("meta")
    for rows in (3, 4, 5):
        x = torch.ones(rows, device="cpu")
        assert [(t.device, t.dtype, t.shape) for t in compiled(x)] == [(t.device, t.dtype, t.shape) for t in program(x)]


def test_a_graph_says_where_it_makes_tensors() -> None:
    """It may run under another default device, and be recorded once more to be differentiated twice."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.set_default_device("meta")
    fxloom.compile(lambda x: x + torch.ones(3) + torch.ones(3, device="meta"), backend=backend, fullgraph=True)(torch.zeros(3))
    made = [node for node in graphs[0].graph.nodes if node.target is torch.ones]
    assert [str(node.kwargs["device"]) for node in made] == ["meta", "meta"]
