"""The table of lowering rules and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxloom_interfaces.errors import InternalError

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
