"""What a program says about how it is captured: `disable`, `skip`, `graph_break`; and `reset`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from fxloom_dynamo import _native
from fxloom_dynamo.runtime import live_regions, without_capture

F = TypeVar("F", bound=Callable[..., Any])


def disable(fn: F) -> F:
    """`fn`, never captured: a call of it inside of a compiled region is a graph break, and what it calls runs eager too."""
    return _named(without_capture(fn), fn)


def skip(fn: F) -> F:
    """`fn` itself; its own frame is never captured from now on, what it calls may be. TypeError for what is no function."""
    code = getattr(fn, "__code__", None)
    if code is None:
        raise TypeError(f"fxloom.skip takes a Python function, got {type(fn).__name__}")
    _native.skip_code(code)
    return fn


def _no_op() -> None:
    """Does nothing: running uncaptured is the point."""


_break_here = without_capture(_no_op)


def graph_break() -> None:
    """Split the graph here. Does nothing when run in eager."""
    _break_here()


def reset() -> None:
    """Forget everything that was compiled in this process; compiled callables compile again when they are called."""
    for region in live_regions():
        region.reset()


def _named(wrapper: Any, fn: Any) -> Any:
    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(fn, name):
            setattr(wrapper, name, getattr(fn, name))
    return wrapper
