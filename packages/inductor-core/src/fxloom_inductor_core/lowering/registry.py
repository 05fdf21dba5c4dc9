"""The registry of lowering rules and the decorator that fills it.

In: rules, `rule(cx, *args, **kwargs)` of an overload's arguments as lowered values. Out: `RULES`. Invariant: an overload has one
rule, and this module knows none of the families that register here (see `load_all`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fxloom_interfaces.errors import InternalError

if TYPE_CHECKING:
    from fxloom_inductor_core.lowering.context import LoweringContext

Rule: TypeAlias = Callable[..., Any]

#: OpOverload -> `rule(cx, *args, **kwargs)`; a rule may return NotImplemented to decline.
RULES: dict[Any, Rule] = {}


def lowering(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule for overloads; a second rule for one is an error."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            if op in RULES:
                raise InternalError("inductor.lower", f"two lowerings for {op}: {RULES[op].__qualname__} and {rule.__qualname__}")
            RULES[op] = rule
        return rule

    return register


def library_call(cx: LoweringContext, *args: Any, **kwargs: Any) -> Any:
    """The rule of operators whose eager kernels are a library's: they are called, on complex numbers as well."""
    return cx.eager(cx.current, library=True)
