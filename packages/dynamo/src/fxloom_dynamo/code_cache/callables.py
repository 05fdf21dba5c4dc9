"""The callables that users hold: a function, method or module together with the region that captures its frames.

In: what the user wants compiled, and the configuration. Out: a C callable that makes its region live and calls the function; a
module gives an `OptimizedModule`. It copies, pickles and answers for attributes as the function itself does.
Invariant: what was compiled for a callable dies with it, and never leaves its process by copying or pickling.
"""

from __future__ import annotations

import copy
import functools
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo.code_cache.compiled_region import CompiledRegion
from fxloom_dynamo.code_cache.misses import MissCallback, skipped
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.guard.dynamic_shapes import by_parameter
from fxloom_dynamo.guard.entries import GENERATORS, without_capture
from fxloom_dynamo.traced.optimized_module import OptimizedModule


def compile_callable(function: Callable[..., Any], config: CaptureConfig) -> Callable[..., Any]:
    """A callable that runs `function` with its Python frames captured; itself a descriptor, so it works as a method.

    A module gives an OptimizedModule. The region is the attribute `fxloom_region`; when the callable dies, all that was
    compiled for it is freed. TypeError for what can't be called.
    """
    if not callable(function):
        raise TypeError(f"fxloom compiles functions, methods, modules and other callables, got {type(function).__name__}")
    if config.dynamic_shapes:
        config = replace(config, dynamic_shapes=by_parameter(function, config.dynamic_shapes))
    if isinstance(function, torch.nn.Module):
        return OptimizedModule(function, functools.partial(_compiled, config=config))
    return _compiled(function, config)


def compile_calls(cls: type, config: CaptureConfig) -> type:
    """The class, whose instances are compiled when they are called, like those of its subclasses."""
    call = next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)
    if call is None:
        text = f"{cls.__qualname__} has no __call__, so nothing of it is compiled: compile its methods, or functions that use it"
        warnings.warn(text, stacklevel=3)
    else:
        cls.__call__ = _compiled(call, config)  # type: ignore[method-assign]  # what a class decorator does
    return cls


def _compiled(function: Callable[..., Any], config: CaptureConfig) -> Callable[..., Any]:
    # Not at the top, as in `misses`; the evaluator is loaded here, before a frame needs it.
    import fxloom_dynamo.evaluation.attempts  # noqa: F401
    from fxloom_dynamo.evaluation.break_events import report_uncaptured

    root = getattr(function, "__code__", None)
    if isinstance(root, types.CodeType) and root.co_flags & GENERATORS:  # a call of it makes an object, no frame
        report_uncaptured(root, config, "a generator or coroutine")
    if isinstance(root, types.CodeType) and root not in skipped:
        _native.look_at_code(root)  # a library's, perhaps met before inside another region, which runs those as they are
    region = CompiledRegion(config, root, MissCallback)
    compiled = _native.CompiledCallable(function, region.native)
    compiled.fxloom_region = region
    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(function, name):
            setattr(compiled, name, getattr(function, name))
    return compiled  # type: ignore[no-any-return]  # a C type


def _deepcopy(compiled: Any, memo: dict[int, Any]) -> Any:
    """A function is its own copy; a method's is that of the copy of its object."""
    method = compiled.__wrapped__
    if not isinstance(method, types.MethodType):
        return compiled
    copied = copy.deepcopy(method, memo)
    return _compiled(copied, compiled.fxloom_region.config) if compiled.region is not None else without_capture(copied)


def _pickled(compiled: Any) -> str:
    """By its name, as functions are: what was compiled stays in its process."""
    name: str = compiled.__qualname__
    return name


def _of_the_function(compiled: Any, name: str) -> Any:
    """Attributes that the callable itself lacks (`__defaults__`, `__code__`, what the program has set) are its function's."""
    if name.startswith("__") and name in _OF_THE_CALLABLE:
        raise AttributeError(f"{type(compiled).__name__!r} object has no attribute {name!r}")
    return getattr(compiled.__wrapped__, name)


def _shown(call: Any) -> str:
    """In a dump of replacement code the constant that is called is the compiled graph."""
    graph_of = vars(call).get("graph_of")
    return f"<compiled graph of {graph_of}>" if graph_of else f"<{call.__wrapped__!r}, run without capture>"


#: how the function itself would be copied, pickled or shown
_OF_THE_CALLABLE = frozenset({"__wrapped__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__set_name__"})


_kinds: tuple[Any, ...] = (_native.CompiledCallable, _native.Uncaptured)
for _kind in _kinds:
    _kind.__copy__ = lambda compiled: compiled
    _kind.__deepcopy__ = _deepcopy
    _kind.__reduce__ = _pickled
    _kind.__getattr__ = _of_the_function
_uncaptured: Any = _native.Uncaptured
_uncaptured.__repr__ = _shown
