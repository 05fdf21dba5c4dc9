"""The table of lowering rules and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxloom_interfaces.errors import InternalError

if TYPE_CHECKING:
    from fxloom_inductor_core.graph import Lowering

#: OpOverload -> `rule(cx, *args, **kwargs)`; a rule may return NotImplemented to decline.
RULES: dict[Any, Callable[..., Any]] = {}


def lowering(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule for overloads; a second rule for one is an error."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            if op in RULES:
                raise InternalError("inductor.lower", f"two lowerings for {op}: {RULES[op].__qualname__} and {rule.__qualname__}")
            RULES[op] = rule
        return rule

    return register


def library_call(cx: Lowering, *args: Any, **kwargs: Any) -> Any:
    """The rule of operators whose eager kernels are a library's: they are called, on complex numbers as well."""
    return cx.eager(cx.current, library=True)
