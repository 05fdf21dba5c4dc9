"""`eager_compiler`: runs an aten-dialect graph operator by operator. For the backends that stop after aot, and for tests.

In: a graph and its signature. Out: a callable of one list of inputs, which it clears. Autocast is off while it runs: the graph
has autocast's casts in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from fxloom_aot._torch_private import no_autocast
from fxloom_aot.runtime.inference import Compiled
from fxloom_interfaces.signature import GraphSignature


def eager_compiler(gm: torch.fx.GraphModule, signature: GraphSignature) -> Compiled:
    """A callable of one list that runs `gm` as it stands: autocast is off, the graph says what it did."""
    forward = gm.forward

    def run(inputs: list[Any]) -> Sequence[Any]:
        arguments = tuple(inputs)
        inputs.clear()
        with no_autocast():
            result: Sequence[Any] = forward(*arguments)
        return result

    return run
