"""The trace context: what all layers share during one compilation. Found through a ContextVar.

In: a fake mode and a symbol environment, or nothing. Out: the context of the block. Dynamo makes one per compilation and
activates it; AOT takes over the active one and makes its own only when there is none.
Invariant: while a context is active, the user's hooks on saved tensors are off: what a trace saves are fakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fxloom_shapes._torch_private import saved_tensors_hooks_active
from fxloom_shapes.propagation.active_context import CONTEXT
from fxloom_shapes.propagation.mode import FakeMode
from fxloom_shapes.symbols.env import SymbolEnv


class TraceContext:
    """fake_mode: makes and runs fakes. env: the symbols of sizes; None when every size is a plain integer."""

    __slots__ = ("env", "fake_mode")

    def __init__(self, fake_mode: FakeMode | None = None, env: SymbolEnv | None = None) -> None:
        self.env = env
        self.fake_mode = fake_mode if fake_mode is not None else FakeMode(env)

    @contextmanager
    def activate(self) -> Iterator[TraceContext]:
        """Make this the current context for a block."""
        token = CONTEXT.set(self)
        try:
            with saved_tensors_hooks_off():
                yield self
        finally:
            CONTEXT.reset(token)


@contextmanager
def saved_tensors_hooks_off() -> Iterator[None]:
    """The user's hooks on saved tensors are for the real run: what a trace saves are fakes."""
    if not saved_tensors_hooks_active():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


@contextmanager
def use_trace_context() -> Iterator[TraceContext]:
    """The current context; a new, active one where there is none."""
    current = CONTEXT.get()
    if current is not None:
        yield current
        return
    with TraceContext().activate() as made:
        yield made
