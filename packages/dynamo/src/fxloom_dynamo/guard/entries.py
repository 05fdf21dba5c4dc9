"""What capture takes and gives: a frame that has not started, its replacement, or the reason why it runs as it is.

`code_cache` makes a `FrameView` when no entry of the cache fits; `evaluation` answers with a `CapturedFrame` or a `Skip`, which
`code_cache` acts upon.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxloom_dynamo import _native
from fxloom_dynamo.guard.guards import Guard

#: The extra local of replacement code that the hook sets to the tuple of the graph's inputs.
INPUTS_LOCAL = "__fxloom_inputs"


@dataclass(frozen=True, slots=True)
class FrameView:
    """A frame that has not started. locals: its bound parameters; closure: its function's cells."""

    code: types.CodeType
    function: types.FunctionType
    locals: dict[str, Any]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    closure: tuple[types.CellType, ...]


@dataclass(frozen=True, slots=True)
class CapturedFrame:
    """What the evaluator makes of a frame.

    code: same parameters, flags and free variables as the original; may have the local INPUTS_LOCAL.
    inputs: read at entry and handed over in INPUTS_LOCAL, in order.
    guards: all the trace depended on, other than torch's global state, which is always guarded.
    info: graphs, breaks and whatever else `explain` reports.
    """

    code: types.CodeType
    inputs: tuple[Any, ...]
    guards: tuple[Guard, ...]
    info: Any = None


@dataclass(frozen=True, slots=True)
class Skip:
    """The frame runs as it is.

    for_good: its code is never looked at again, in any region; closed: what it calls is not either. this_call: the next call
    may be another matter. report: the break for which it was given up, if it was. fault: the kind of `telemetry.RanEager` where
    that does not come from the program, of which the user is warned.
    """

    reason: str
    report: Any = None
    fault: str = ""
    for_good: bool = False
    closed: bool = False
    this_call: bool = False


def without_capture(function: Callable[..., Any], graph_of: str = "") -> Callable[..., Any]:
    """A callable that runs `function` with the frame hook off. graph_of: it is a compiled graph, of this function of the program."""
    call = _native.Uncaptured(function)
    if graph_of:
        call.graph_of = graph_of
    return call  # type: ignore[no-any-return]  # a C type


#: kinds of functions whose frames go on later, elsewhere
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
