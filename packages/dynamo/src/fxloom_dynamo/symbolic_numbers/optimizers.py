"""Rules for fused optimizers with a learning rate that changes: their kernels take it as a tensor as well.

In: arguments as torch's function takes them. Out: as for `registry`, whose rules these are; NotImplemented where another number
changes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxloom_dynamo._torch_private import FUSED_OPTIMIZERS
from fxloom_dynamo.symbolic_numbers.registry import holds_symbolic, rule
from fxloom_shapes.symbols.numbers import SYMBOLIC


def _with_rate_as_tensor(function: Callable[..., None]) -> Callable[..., Any]:
    def call(params: Any, *args: Any, **options: Any) -> Any:
        rate: Any = options.get("lr")
        if type(rate) not in SYMBOLIC or holds_symbolic(value for name, value in options.items() if name != "lr"):
            return NotImplemented
        return function(params, *args, **{**options, "lr": torch.scalar_tensor(rate, dtype=torch.float64, device=params[0].device)})

    return call


for _function in FUSED_OPTIMIZERS:
    rule(_function)(_with_rate_as_tensor(_function))
