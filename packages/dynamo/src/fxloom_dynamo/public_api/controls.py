"""What a program says about how it is captured: `disable`, `skip`, `graph_break`, `allow_in_graph`, ...; also `run`, `reset`.

In: a function, method or module. Out: itself, noted in `directives` or as skipped; `disable` and `run` give a wrapper. Outside of
a compiled region all of them behave like the function itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fxloom_dynamo import _native, directives
from fxloom_dynamo.code_cache.compiled_region import live_regions
from fxloom_dynamo.code_cache.misses import only_compiled, skipped
from fxloom_dynamo.directives import Directive
from fxloom_dynamo.guard.entries import without_capture
from fxloom_dynamo.interpreter import budget
from fxloom_dynamo.traced.optimized_module import OptimizedModule

F = TypeVar("F", bound=Callable[..., Any])


def disable(fn: F) -> F:
    """`fn`, never captured: a call of it inside of a compiled region is a graph break, and what it calls runs eager too.

    A module gives a module that shares its parameters, buffers and hooks. TypeError for what can't be called.
    """
    if not callable(fn):
        raise TypeError(f"fxloom.disable takes a callable, got {type(fn).__name__}")
    if isinstance(fn, torch.nn.Module):
        return OptimizedModule(fn, without_capture)  # type: ignore[return-value]  # what users take for their module
    return _named(without_capture(fn), fn)


def skip(fn: F) -> F:
    """`fn` itself; its own frame is never captured from now on, what it calls may be. TypeError for what is no function."""
    code = getattr(fn, "__code__", None)
    if code is None:
        raise TypeError(f"fxloom.skip takes a Python function, got {type(fn).__name__}")
    skipped.add(code)
    _native.skip_code(code)
    return fn


def _no_op() -> None:
    """Does nothing: running uncaptured is the point."""


_break_here = without_capture(_no_op)


def graph_break() -> None:
    """Split the graph here. Does nothing when run in eager."""
    _break_here()


def allow_in_graph(fn: F) -> F:
    """`fn` itself; from now on a call of it is one node of the graph, and what happens inside is not looked at.

    Its arguments and results have to be tensors, numbers, strings and nests of them, and it must do nothing else than
    compute its results from them. The backend gets it as it is: `eager` calls it, others trace its operators.
    """
    directives.set_directive(_function(fn, "allow_in_graph"), Directive.ALLOW)
    return fn


def disallow_in_graph(fn: F) -> F:
    """`fn` itself (it may be torch's or written in C); from now on a call of it is a graph break, and it runs in eager."""
    directives.set_directive(_function(fn, "disallow_in_graph"), Directive.DISALLOW)
    return fn


def assume_constant_result(fn: F) -> F:
    """`fn` itself; from now on it is called while capturing, and its result is a constant of the compiled code.

    Nothing guards that: that the result stays the same is a promise.
    """
    directives.set_directive(_function(fn, "assume_constant_result"), Directive.CONSTANT)
    return fn


def _function(fn: Any, asked: str) -> Any:
    if not callable(fn):
        raise TypeError(f"fxloom.{asked} takes a function, got {type(fn).__name__}")
    return getattr(fn, "__func__", fn)


def run(fn: F) -> F:
    """`fn`, which uses what was compiled before and compiles nothing new: frames without an entry that fits run in eager."""

    def use(*args: Any, **kwargs: Any) -> Any:
        with only_compiled():
            return fn(*args, **kwargs)

    return _named(use, fn)  # type: ignore[no-any-return]  # with the signature of fn


def reset() -> None:
    """Forget everything that was compiled in this process; compiled callables compile again when they are called."""
    budget.reset()
    for region in live_regions():
        region.reset()


def _named(wrapper: Any, fn: Any) -> Any:
    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(fn, name):
            setattr(wrapper, name, getattr(fn, name))
    return wrapper
