"""Split a joint log into a forward and a backward part.

In: the functional log, the forward outputs, the gradients, the tangents. Out: which calls run forward, which run backward,
and which values are saved in between. The plain rule: what does not depend on a tangent runs forward and what backward
needs of it is saved; views are made again from what they are views of, and a recomputation (checkpoint) stays backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fxloom_aot.log import FunctionalLog, has_effect, values_of
from fxloom_interfaces.errors import InternalError
from fxloom_shapes import FakeTensor
from fxloom_shapes.operators import Op, facts_of


@dataclass(frozen=True, slots=True)
class Partition:
    """forward, backward: call numbers in order. saved: values that the forward part hands to the backward part."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    saved: tuple[FakeTensor, ...]


def save_all(
    log: FunctionalLog, forward_outputs: Sequence[Any], gradients: Sequence[Any], tangents: Sequence[FakeTensor]
) -> Partition:
    """The plain partition; see the module's docstring."""
    needed = log.live_calls(list(gradients))
    tangent_ids = {id(value) for value in tangents}
    backward: set[int] = set()
    for number in needed:
        call = log.calls[number]
        inputs = list(values_of([call.args, call.kwargs]))
        # the program's own random calls are forward whatever needs them
        if (
            call.region
            or (call.backward and has_effect(call.op))
            or any(id(value) in tangent_ids or log.origins[id(value)].call in backward for value in inputs)
        ):
            if call.region and facts_of(call.op).seeded:
                raise InternalError("aot partition", "a recomputed region draws random numbers", node=str(call.op))
            backward.add(number)
    only_backward = frozenset(backward)
    saved: dict[int, FakeTensor] = {}
    todo = [value for number in sorted(backward) for value in values_of([log.calls[number].args, log.calls[number].kwargs])]
    todo += list(values_of(list(gradients)))
    for value in todo:
        if id(value) in tangent_ids:
            continue
        origin = log.origins[id(value)]
        if origin.call in backward or id(value) in saved:
            continue
        if origin.call >= 0 and is_view(log.calls[origin.call].op):
            call = log.calls[origin.call]
            backward.add(origin.call)
            todo.extend(values_of([call.args, call.kwargs]))
        elif origin.call >= 0 and _is_constant(log, origin.call):
            backward.add(origin.call)
        elif origin.call >= 0 or origin.placeholder >= 0:
            saved[id(value)] = value
    forward = [number for number in log.live_calls([*forward_outputs, *saved.values()]) if number not in only_backward]
    return Partition(tuple(forward), tuple(sorted(backward)), tuple(saved.values()))


def is_view(op: Op) -> bool:
    """True when the result of `op` is its first argument seen otherwise, so making it again costs nothing."""
    returned = op._schema.returns
    return len(returned) == 1 and returned[0].alias_info is not None and not facts_of(op).writes


def _is_constant(log: FunctionalLog, number: int) -> bool:
    """True for a call that needs no input (a filled or counted tensor): making it again is as good as saving it."""
    call = log.calls[number]
    return not any(True for _ in values_of([call.args, call.kwargs])) and not facts_of(call.op).seeded
