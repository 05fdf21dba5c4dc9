"""The runtime of a graph without backward part: hand the caller's inputs to the compiled graph, write new values back, rebuild aliases.

In: the caller's flat inputs. Out: the flat outputs of the program, aliasing as in eager. The signature is read once, when
the wrapper is made; a call does only what this graph needs. Lifetimes: inputs stay the caller's; the list given to the
compiled graph is made for each call and may be cleared by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import below_autograd, set_grad_enabled
from fxloom_aot.runtime.inputs import input_gatherer
from fxloom_aot.runtime.write_back import finishers
from fxloom_aot.storages import StorageCheck
from fxloom_interfaces.signature import FromInput, FromOutput, FromResult, GraphSignature, Result

Compiled = Callable[[list[Any]], Sequence[Any]]


def inference_wrapper(
    compiled: Compiled, signature: GraphSignature, checks: Sequence[StorageCheck] = (), *, starts_with_grad: bool = True
) -> Callable[..., list[Any]]:
    """The callable for a graph without a backward part.

    starts_with_grad: False for a graph that is entered with grad mode off; where it turns it on, views that it makes of inputs
    have a history.
    """
    gather = input_gatherer(signature, checks)
    finish = finishers(signature, {})
    tracks = not starts_with_grad and any(map(_is_tracked_view, signature.results))
    count = len(signature.results)
    # nothing here is for autograd to see: an input may require grad where no output does
    quiet = set_grad_enabled

    def run(*args: Any) -> list[Any]:
        inputs = gather(args)
        grad_mode = torch.is_grad_enabled()
        if grad_mode:
            quiet(False)
        try:
            with below_autograd():  # an output that is a view of a tensor inside of the graph must not be one for autograd
                outputs = compiled(inputs)
        finally:
            if grad_mode:
                quiet(True)
        if finish is None:
            return list(outputs)
        results: list[Any] = [None] * count
        if tracks:
            with torch.enable_grad():
                finish[0](args, outputs, results)
        else:
            finish[0](args, outputs, results)
        return results

    return run


def _is_tracked_view(result: Result) -> bool:
    return isinstance(result, (FromInput, FromOutput, FromResult)) and bool(result.steps) and result.requires_grad
