"""Drop the part of gradients that came by way of a boundary: an earlier stage adds it.

In: the functional log, gradients, tangents, and `upstream`: values that stand in the recorded pass for gradients that reached a
boundary. Out: the gradients as if the boundary's incoming gradient were zero. A value computed from upstream gradients alone is
dropped; where autograd added it to another gradient, that gradient takes the place of the sum; elsewhere zeros do.
Invariant: with what the earlier stage computes from its upstream gradient added, each gradient is the one of the whole program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxloom_aot.functional.functional_log import FunctionalLog
from fxloom_aot.nests import values_of
from fxloom_shapes import FakeTensor

aten = torch.ops.aten


class _Upstream:
    """Stands for a value that is computed from upstream gradients alone."""


_ONLY_UPSTREAM = _Upstream()


def drop_upstream_part(
    log: FunctionalLog, gradients: Sequence[FakeTensor | None], tangents: Sequence[FakeTensor], upstream: Sequence[FakeTensor],
    effects: Sequence[int],
) -> tuple[list[FakeTensor | None], list[int]]:  # fmt: skip
    """See the module's docstring; None for a gradient of which nothing is left.

    effects: numbers of the recorded calls that count beyond their result. Those that remain are returned beside the gradients.
    """
    flows = {id(value) for value in [*tangents, *upstream]}  # what depends on gradients
    now: dict[int, Any] = {id(value): _ONLY_UPSTREAM for value in upstream}  # what stands for a value that depends on upstream
    remaining = set(effects)
    for number in log.calls_for(list(gradients), effects):
        call = log.calls[number]
        used = list(values_of([call.args, call.kwargs]))
        made = list(values_of([call.out]))
        if any(id(value) in flows for value in used):
            flows.update(id(value) for value in made)
        if not any(id(value) in now for value in used):
            continue
        left = [now.get(id(value), value) for value in used if id(value) in flows and now.get(id(value)) is not _ONLY_UPSTREAM]
        is_sum = call.op is aten.add.Tensor and len(used) == 2 and not call.kwargs
        if not left and is_sum:
            # derivatives are linear: what is added to a gradient is another, here one that depends on no tangent
            left = [value for value in used if id(value) not in flows]
        if not left:
            now.update((id(value), _ONLY_UPSTREAM) for value in made)
            remaining.discard(number)
        elif is_sum and len(left) < len(used):
            now[id(made[0])] = left[0]
        else:
            with log.at(call.node, True, call.region, call.checkpoint), torch.no_grad():
                changed = log.emit(call.op, _put(log, call.args, now), _put(log, call.kwargs, now))
            now.update((id(old), new) for old, new in zip(made, values_of([changed]), strict=True))
            if number in remaining:
                remaining.remove(number)
                remaining.add(len(log.calls) - 1)
    result = [None if gradient is None else now.get(id(gradient), gradient) for gradient in gradients]
    return [None if isinstance(gradient, _Upstream) else gradient for gradient in result], sorted(remaining)


def _put(log: FunctionalLog, nest: Any, now: dict[int, Any]) -> Any:
    """A nest of arguments with what stands for its values now."""
    if isinstance(nest, (tuple, list)):
        return type(nest)([_put(log, item, now) for item in nest])
    if isinstance(nest, dict):
        return {name: _put(log, item, now) for name, item in nest.items()}
    if type(nest) is not FakeTensor:
        return nest
    value = now.get(id(nest), nest)
    if value is not _ONLY_UPSTREAM:
        return value
    options = {"dtype": nest.dtype, "device": nest.desc.device, "pin_memory": False}
    return log.emit(aten.full.default, (list(nest.desc.size), 0), options)
