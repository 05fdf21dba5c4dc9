"""The table of rules for functions of torch that are called with symbolic numbers.

In: the arguments of `torch.linspace(0, 1, n)`, `F.layer_norm(x, shape, eps=e)`, `x.roll(n)` and their kind, with a symbolic
number that torch's C++ code would ask for its value, so that every value would be compiled for apart. Out: the result, computed
by operators that leave the number symbolic, or NotImplemented where a combination is not covered, and C++ asks.
Invariant: rules are written from the operators' documentation; results differ from the kernels' by rounding at most. `load_all`
imports the modules that register rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fxloom_shapes.symbols.numbers import SYMBOLIC

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
#: rules that serve where a size of a tensor is symbolic, too, and those that serve every call
ANY_SIZE: set[Any] = set()
ALWAYS: set[Any] = set()


def rule(*targets: Any, any_size: bool = False, always: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of functions. any_size, always: it serves calls with no symbolic number among the arguments, too."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        if any_size:
            ANY_SIZE.update(targets)
        if always:
            ALWAYS.update(targets)
        return function

    return register


def find(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rule | None:
    """The rule for a call; None where it needs none."""
    try:
        found = RULES.get(func)
    except TypeError:  # not hashable
        return None
    if found is None or func in ALWAYS or holds_symbolic(args) or holds_symbolic(kwargs.values()):
        return found
    return found if func in ANY_SIZE and _is_sized(args) else None


def holds_symbolic(values: Any) -> bool:
    return any(type(v) in SYMBOLIC or isinstance(v, (list, tuple)) and holds_symbolic(v) for v in values)


def _is_sized(args: tuple[Any, ...]) -> bool:
    tensors = itertools.chain.from_iterable(arg if isinstance(arg, (list, tuple)) else (arg,) for arg in args)
    return any(isinstance(arg, Tensor) and holds_symbolic(arg.shape) for arg in tensors)
