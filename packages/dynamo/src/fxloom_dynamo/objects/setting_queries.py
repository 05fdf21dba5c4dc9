"""What the program asks torch about its settings: an answer that was folded in has to be the same at the next call.

In: a call of a function of torch's that was made while capturing, with its answer. Out: a guard that asks again. What the
program can change for a part of itself while it is captured (grad mode, autocast, devices) is followed elsewhere and compared
with the other state at the entry; what stays for the life of a process is not asked again.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_interfaces.sources import CallSource

if TYPE_CHECKING:
    from fxloom_dynamo.objects.shadow_heap import ShadowHeap

_QUERY = re.compile(r"_?(get|is|are|has)_|.*_(enabled|count)$")
#: followed while capturing
_FOLLOWED = frozenset(
    {"is_grad_enabled", "is_inference_mode_enabled", "get_default_device", "is_autocast_enabled", "is_autocast_cpu_enabled",
     "get_autocast_dtype", "get_autocast_gpu_dtype", "get_autocast_cpu_dtype", "is_autocast_cache_enabled", "get_default_dtype",
     "is_compiling", "is_dynamo_compiling"}
)  # fmt: skip
_FIXED = frozenset({"is_available", "is_built", "is_scripting", "device_count", "is_tensor", "is_storage"})


def guard_answer(heap: ShadowHeap, fn: Any, args: Sequence[Any], kwargs: dict[str, Any], answer: Any) -> None:
    """Guard the answer of `fn(*args, **kwargs)` if it is one about torch's settings."""
    name = getattr(fn, "__name__", "")
    if answer is None or type(answer) not in LITERALS or name in _FOLLOWED or name in _FIXED:
        return
    if not all(type(value) in LITERALS for value in (*args, *kwargs.values())) or not (_QUERY.match(name) or not (args or kwargs)):
        return
    if args or kwargs:
        given = tuple(args)
        source = CallSource(heap.object_source(fn), getter=lambda fn: fn(*given, **kwargs), label=f"{{}}(*{given}, **{kwargs})")
    else:
        source = CallSource(heap.object_source(fn), getter=operator.call, label="{}()")
    heap.guard(source, GuardKind.EQUALITY, answer)
