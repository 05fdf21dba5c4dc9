"""The entry object of the CUDA graphs replayer: a name, an interface version, and `wrap`, which loads `recording` at first use.

In: a compiled callable and its `ReplaySignature`. Out: a callable of the same convention. Invariant: importing this does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from fxloom_interfaces.replayer import FlatCallable, ReplaySignature
from fxloom_interfaces.versions import REPLAYER, Version


@dataclass(frozen=True, slots=True)
class CudaGraphs:
    """Records a callable's launches once per set of shapes and replays them. See `recording`."""

    name: str = "cudagraphs"
    interface: Version = REPLAYER
    device_types: tuple[str, ...] = ("cuda",)

    def wrap(self, fn: FlatCallable, signature: ReplaySignature) -> FlatCallable:
        """A callable of the same convention. What can't be replayed soundly runs `fn`, said once by `ReplaySkipped`."""
        from fxloom_cudagraphs.device import CudaDevice
        from fxloom_cudagraphs.recording import wrap

        return wrap(fn, signature, CudaDevice)


PLUGIN = CudaGraphs()
