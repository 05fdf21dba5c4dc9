"""The trace context of this thread: what all layers share during one compilation.

In: nothing; `context` sets it in a ContextVar. Out: the context, or None; its symbols. Apart from `context`, so that what makes
fakes can ask for it without a cycle of imports.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fxloom_shapes.propagation.context import TraceContext
    from fxloom_shapes.propagation.mode import FakeMode
    from fxloom_shapes.symbols.env import SymbolEnv

CONTEXT: ContextVar[TraceContext | None] = ContextVar("fxloom_trace_context", default=None)


def trace_context() -> TraceContext | None:
    """The context of the compilation that runs in this thread, or None."""
    return CONTEXT.get()


def symbols_of_context(mode: FakeMode | None) -> SymbolEnv | None:
    """The symbols of sizes of `mode`, or of the current context."""
    if mode is not None:
        return mode.env
    context = trace_context()
    return None if context is None else context.env
