"""The random generators that a graph draws from: kept, and set back where the graph is dropped and its function runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from fxloom_interfaces import meta
from fxloom_shapes import FakeTensor
from fxloom_shapes.propagate import statistics

if TYPE_CHECKING:
    from fxloom_dynamo.recorder import Recorder


def draws(recorder: Recorder) -> bool:
    """Whether running the graph may draw random numbers. Custom operators may, whatever their tags say."""
    if statistics.draws != recorder.draws_before:
        return True
    targets: list[Any] = [node.target for node in recorder.graph.nodes]
    kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    return any(isinstance(target, kinds) and not str(target).startswith(("aten.", "prims.")) for target in targets)


def generators(recorder: Recorder) -> list[torch.Generator]:
    """Those of the devices of the graph's tensors; the CPU's is always one."""
    found = [meta.get_fake(node) for node in recorder.graph.nodes]
    devices = {fake.device for fake in found if isinstance(fake, FakeTensor)}
    indices = sorted({torch.cuda.current_device() if device.index is None else device.index for device in devices if device.type == "cuda"})
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in indices)]


def set_back(compiled: Callable[..., Any], of: Iterable[torch.Generator]) -> Callable[..., Any]:
    """`compiled`, which leaves the generators as they were where it raises."""
    of = tuple(of)

    def run(*inputs: Any) -> Any:
        states = [generator.get_state() for generator in of]
        try:
            return compiled(*inputs)
        except Exception:
            for generator, state in zip(of, states, strict=True):
                generator.set_state(state)
            raise

    return run
