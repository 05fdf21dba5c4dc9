"""Programs for devices that this machine doesn't have: captured, not run; a real call raises what eager raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxloom_dynamo import capture, export, optimize
from fxloom_interfaces.meta import get_fake, has_fake
from fxloom_shapes import FakeMode

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
CUDA = torch.device("cuda:0")


def program(x: Any) -> Any:
    return x.to("cuda") + torch.ones(3, device="cuda") * torch.tensor([1.0, 2.0, 3.0], device="cuda")


def test_export_of_a_program_that_moves_its_input() -> None:
    found = export(program, torch.randn(3))
    given, *made = [get_fake(node) for node in found.graph.graph.nodes if has_fake(node)]
    assert given.is_cpu and {fake.device for fake in made if isinstance(fake, torch.Tensor)} == {CUDA}
    assert found.result is None


def test_a_real_call_raises_what_eager_raises() -> None:
    caught = []
    for run in (program, optimize()(program)):
        with pytest.raises((AssertionError, RuntimeError), match="CUDA enabled|NVIDIA driver") as error:  # by the build of torch
            run(torch.randn(3))
        caught.append((error.type, str(error.value)))
    assert caught[0] == caught[1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.norm(self.linear(x)).relu() + torch.zeros(4, device=x.device), x.is_cuda


def test_a_module_on_fakes() -> None:
    with FakeMode():
        net, x = Net().to("cuda"), torch.randn(2, 3, device="cuda")
        found = capture(net, x)
    assert found.op_count and not found.breaks
    out, on_cuda = found.result
    assert out.device == CUDA and on_cuda and out.requires_grad
    assert export(net, x).op_count == found.op_count
