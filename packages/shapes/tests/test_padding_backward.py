"""Strides of what flows back through padding: on the CPU those that the padded tensor suggests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxloom_shapes import FakeMode
from fxloom_shapes.propagation.propagate import propagate

aten = torch.ops.aten


@pytest.mark.parametrize("name", ["reflection", "replication"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_padding_backward(name: str, axes: int) -> None:
    x = torch.randn(2, 3, 6, 5, 4)[(slice(None),) * 2 + (slice(None),) * axes + (0,) * (3 - axes)].contiguous()
    padding = [1, 2, 1, 1, 1, 1][: 2 * axes]
    layouts = [x, x.transpose(0, -1).contiguous().transpose(0, -1), x[0]]
    if axes > 1:
        layouts.append(x.to(memory_format=torch.channels_last if axes == 2 else torch.channels_last_3d))
    op: Any = getattr(aten, f"{name}_pad{axes}d_backward").default
    for given in layouts:
        padded = getattr(aten, f"{name}_pad{axes}d")(given, padding)
        for grad in (padded, padded.contiguous()):
            mode = FakeMode()
            fake = propagate(op, (mode.from_tensor(grad), mode.from_tensor(given), padding), {}, mode)
            assert fake.stride() == op(grad, given, padding).stride()
