"""From the caller's flat inputs to those of the compiled graph: chosen, put in order, constants added, storages made flat.

In: the graph's signature and checks of storages. Out: a function from the caller's inputs to a list of the graph's; it runs the
checks first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fxloom_aot.storages import StorageCheck, whole_storage
from fxloom_interfaces.signature import GraphSignature, InputKind


def input_gatherer(signature: GraphSignature, checks: Sequence[StorageCheck]) -> Callable[[Sequence[Any]], list[Any]]:
    """The function from the caller's inputs to those of the graph."""
    wanted = [spec.index for spec in signature.inputs]
    plain = all(spec.kind not in (InputKind.STORAGE, InputKind.CONSTANT) for spec in signature.inputs)
    if plain and not checks:
        return list if wanted == list(range(signature.caller_inputs)) else lambda args: [args[index] for index in wanted]

    def gather(args: Sequence[Any]) -> list[Any]:
        for check in checks:
            check(args)
        inputs: list[Any] = []
        for spec in signature.inputs:
            if spec.kind is InputKind.CONSTANT:
                inputs.append(spec.constant)
            elif spec.kind is InputKind.STORAGE:
                inputs.append(whole_storage(args[spec.index]))
            else:
                inputs.append(args[spec.index])
        return inputs

    return gather
