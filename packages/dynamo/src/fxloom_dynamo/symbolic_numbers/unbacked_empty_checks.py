"""Rules for functions that raise for tensors without elements, called with unbacked sizes.

In: arguments as torch's function takes them. Out: NotImplemented always, torch does the rest; but first a check for run time that
there are elements. torch's kernels raise themselves; generated ones, for which an empty reduction is as good as another, don't.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxloom_dynamo.symbolic_numbers.registry import Rule, rule
from fxloom_interfaces import symbolic_math
from fxloom_shapes.fake.sizes import is_unbacked

_WHOLE = "{}(): Expected reduction dim to be specified for input.numel() == 0."
_HOW = " Specify the reduction dim with the 'dim' argument."
#: functions that have no result of no elements -> the exception for all axes at once and its text, what is said of one axis
_REDUCTIONS: dict[str, tuple[str, str, str]] = {
    **{name: ("RuntimeError", _WHOLE.format(name) + _HOW, f"{name}()") for name in ("max", "min", "amax", "amin")},
    **{name: ("IndexError", _WHOLE.format(name), f"{name}()") for name in ("argmax", "argmin")},
    "aminmax": (
        "RuntimeError", "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.", "aminmax",
    ),
}  # fmt: skip


def _reduction(error: str, text: str, prefix: str) -> Rule:
    def expect_elements(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        axes = [dim] if type(dim) is int else list(dim) if isinstance(dim, (list, tuple)) else []
        if isinstance(dim, Tensor) or not is_unbacked(*input.shape) or not all(-input.dim() <= axis < input.dim() for axis in axes):
            return NotImplemented
        if not axes:
            symbolic_math.check(math.prod(input.shape) != 0, text, error)
        for axis in axes:
            if is_unbacked(input.shape[axis]):
                only = f"{prefix}: Expected reduction dim {axis % input.dim()} to have non-zero size."
                symbolic_math.check(input.shape[axis] != 0, only, "IndexError")
        return NotImplemented

    return expect_elements


for _name, _said in _REDUCTIONS.items():
    rule(getattr(torch, _name), getattr(Tensor, _name), any_size=True)(_reduction(*_said))
