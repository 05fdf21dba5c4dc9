"""Shape rules of tensors made from nothing (`zeros`, `arange`), and of tensors like others (`ones_like`, `new_full`).

In: the device and the operator's arguments. Out: a plan of one new tensor, or None to decline, as for layouts other than strided.
"""

from __future__ import annotations

from typing import Any

import torch

from fxloom_shapes.fake.layout import NUMBERS, number_dtype
from fxloom_shapes.fake.plans import Plan
from fxloom_shapes.fake.sizes import assume_size
from fxloom_shapes.rules.registry import fresh, shape_rule
from fxloom_shapes.rules.view import copy_of

aten = torch.ops.aten


def _plain(options: dict[str, Any]) -> bool:
    return options.get("layout") in (None, torch.strided)


@shape_rule(aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.rand.default, aten.randn.default)
def of_size(device: torch.device, size: Any, **options: Any) -> Plan | None:
    if not _plain(options) or options.get("memory_format") not in (None, torch.contiguous_format) or not all(map(assume_size, size)):
        return None
    return fresh(size, options.get("dtype") or torch.get_default_dtype(), device)


@shape_rule(aten.full.default)
def full(device: torch.device, size: Any, value: Any, **options: Any) -> Plan | None:
    if not _plain(options) or not isinstance(value, NUMBERS) or not all(map(assume_size, size)):
        return None
    return fresh(size, options.get("dtype") or number_dtype(value), device)


@shape_rule(aten.scalar_tensor.default)
def scalar_tensor(device: torch.device, value: Any, **options: Any) -> Plan | None:
    return fresh((), options.get("dtype") or torch.get_default_dtype(), device) if _plain(options) else None


@shape_rule(aten.empty_strided.default)
def empty_strided(device: torch.device, size: Any, stride: Any, **options: Any) -> Plan | None:
    return fresh(size, options.get("dtype") or torch.get_default_dtype(), device, stride) if _plain(options) else None


@shape_rule(aten.arange.start_step)
def arange_step(device: torch.device, start: Any, end: Any, step: Any = 1, **options: Any) -> Plan | None:
    if not all(isinstance(value, (int, torch.SymInt)) for value in (start, end, step)) or step == 0:
        return None
    if not isinstance(step, int) or not assume_size((end - start) * step):
        return None
    return fresh((-((start - end) // step),), options.get("dtype") or torch.int64, device) if _plain(options) else None


@shape_rule(aten.arange.default)
def arange(device: torch.device, end: Any, **options: Any) -> Plan | None:
    return arange_step(device, 0, end, 1, **options)


@shape_rule(aten.arange.start)
def arange_start(device: torch.device, start: Any, end: Any, **options: Any) -> Plan | None:
    return arange_step(device, start, end, 1, **options)


@shape_rule(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.rand_like.default, aten.randn_like.default)
def like(device: torch.device, x: Any, **options: Any) -> Plan | None:
    return copy_of(x.desc, options.get("dtype") or x.desc.dtype, device, options.get("memory_format")) if _plain(options) else None


@shape_rule(aten.randint_like.default, aten.full_like.default)
def like_and_number(device: torch.device, x: Any, value: Any, **options: Any) -> Plan | None:
    return like(device, x, **options)


@shape_rule(aten.randint_like.low_dtype)
def randint_like_between(device: torch.device, x: Any, low: Any, high: Any, **options: Any) -> Plan | None:
    return like(device, x, **options)


@shape_rule(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default)
def new_of_size(device: torch.device, x: Any, size: Any, **options: Any) -> Plan | None:
    return fresh(size, options.get("dtype") or x.desc.dtype, device) if _plain(options) else None


@shape_rule(aten.new_full.default)
def new_full(device: torch.device, x: Any, size: Any, value: Any, **options: Any) -> Plan | None:
    return new_of_size(device, x, size, **options)
