"""The random generators that a graph draws from, and how they are set back when the graph raises and eager code runs instead.

In: a recorded graph, the compiled callable. Out: whether the graph may draw numbers, the generators of its devices, and the
callable in a wrapper (`set_back`).
Invariant: after a graph that raised, the generators are as they were before it, so that the function's own code draws eager's
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fxloom_interfaces import meta
from fxloom_shapes import FakeTensor
from fxloom_shapes.propagation.propagate import statistics

if TYPE_CHECKING:
    from fxloom_dynamo.graph.recorder import Recorder


def draws(recorder: Recorder) -> bool:
    """Whether running the graph may draw random numbers. Custom operators may, whatever their tags say."""
    if statistics.draws != recorder.draws_before:
        return True
    targets: list[Any] = [node.target for node in recorder.graph.nodes]
    kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    return any(isinstance(target, kinds) and not str(target).startswith(("aten.", "prims.")) for target in targets)


def generators(recorder: Recorder) -> list[Generator]:
    """Those of the devices of the graph's tensors; the CPU's is always one."""
    found = [meta.get_fake(node) for node in recorder.graph.nodes]
    devices = {fake.device for fake in found if isinstance(fake, FakeTensor)}
    others = sorted((device for device in devices if device.type not in ("cpu", "meta")), key=str)
    return [torch.default_generator, *map(DeviceGenerator, others)]


class Generator(Protocol):
    """What numbers are drawn from."""

    def get_state(self) -> torch.Tensor: ...

    def set_state(self, state: torch.Tensor) -> Any: ...


@dataclass(frozen=True, slots=True)
class DeviceGenerator:
    """The generator that operators on a device draw from, by what `torch.random.fork_rng` asks of the device's module as well."""

    device: torch.device

    def get_state(self) -> torch.Tensor:
        state: torch.Tensor = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        torch.get_device_module(self.device).set_rng_state(state, self.device)


def set_back(compiled: Callable[..., Any], of: Iterable[Generator]) -> Callable[..., Any]:
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
