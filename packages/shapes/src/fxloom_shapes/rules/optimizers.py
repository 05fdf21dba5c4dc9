"""Shape rules of fused optimizers that torch has no Meta kernel for.

In: the device and the operator's lists of tensors. Out: a plan: nothing for an operator in place, copies of the lists for a
functional one.
Invariant: their kernels look at little of what they are given, so lists that don't fit together are declined (None): no graph
holds a call that would read or write beyond its memory.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.plans import Fresh, Nest, Number, Plan
from fxloom_shapes.fake.tensor import FakeTensor
from fxloom_shapes.rules.registry import shape_rule

aten = torch.ops.aten


def _fit(*lists: Any) -> bool:
    """True when the lists are of one length, with tensors of the same size and type at each place."""
    if len({len(values) for values in lists}) != 1:
        return False
    return all(len({(x.desc.size, x.desc.dtype, x.desc.device) for x in place}) == 1 for place in zip(*lists, strict=True))


def _copies(values: Any) -> Plan:
    return Nest(tuple(Fresh(value.desc) for value in values), list)


@shape_rule(aten._fused_adam_.tensor_lr, aten._fused_adamw_.tensor_lr)
def fused_adam_(
    device: torch.device, params: Any, grads: Any, averages: Any, squares: Any, largest: Any, steps: Any, **options: Any
) -> Plan | None:
    lists = (params, grads, averages, squares, *([largest] if options["amsgrad"] else []))
    return Number(None) if _fit(*lists) and len(steps) == len(params) else None


@shape_rule(aten._fused_adam.tensor_lr, aten._fused_adamw.tensor_lr)
def fused_adam(
    device: torch.device, params: Any, grads: Any, averages: Any, squares: Any, largest: Any, steps: Any, **options: Any
) -> Plan | None:
    if fused_adam_(device, params, grads, averages, squares, largest, steps, **options) is None:
        return None
    return Nest(tuple(map(_copies, (params, grads, averages, squares, largest))), tuple)


@shape_rule(aten._fused_sgd_.default, aten._fused_sgd_.tensor_lr)
def fused_sgd_(device: torch.device, params: Any, grads: Any, buffers: Any, **options: Any) -> Plan | None:
    fit = _fit(params, grads, buffers) if options["momentum"] or buffers else _fit(params, grads)
    return Number(None) if fit else None


@shape_rule(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def fused_sgd(device: torch.device, params: Any, grads: Any, buffers: Any, **options: Any) -> Plan | None:
    if fused_sgd_(device, params, grads, buffers, **options) is None:
        return None
    return Nest((_copies(params), _copies(grads), _copies(buffers)), tuple)


@shape_rule(aten._fused_adagrad_.default, aten._fused_adagrad_.tensor_lr)
def fused_adagrad_(device: torch.device, params: Any, grads: Any, sums: Any, steps: Any, **options: Any) -> Plan | None:
    return Number(None) if _fit(params, grads, sums) and len(steps) == len(params) else None


@shape_rule(aten._fused_adagrad.default, aten._fused_adagrad.tensor_lr)
def fused_adagrad(device: torch.device, params: Any, grads: Any, sums: Any, steps: Any, **options: Any) -> Plan | None:
    if fused_adagrad_(device, params, grads, sums, steps, **options) is None:
        return None
    changed = (params, grads, sums) if isinstance(options["lr"], FakeTensor) else (params, grads, sums, steps)
    return Nest(tuple(map(_copies, changed)), tuple)
