"""Regions that a profiler shows by name: `torch.profiler.record_function`, as a context manager or a decorator.

In: the region's `__enter__` or `__exit__`. Out: nothing, or a node of the graph. Regions change nothing but a profile. So they
leave no trace in graphs that are captured while no profiler runs, which is guarded; while one runs the region's ends are nodes,
between which the operators run. A backend that fuses operators rejects such a graph: there the region's begin and end are graph
breaks. With `fullgraph` there are none, and the user is told.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fxloom_dynamo._torch_private import profiler_enabled
from fxloom_dynamo.objects import setting_queries
from fxloom_interfaces import regions

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]


def are_seen(ev: Interpreter) -> bool:
    """Whether a profiler runs that would show a region."""
    running = profiler_enabled()
    setting_queries.guard_answer(ev.heap, profiler_enabled, (), {}, running)
    if running and ev.config.fullgraph:
        _report(ev)
        return False
    return running


def _report(ev: Interpreter) -> None:
    text = "a profile does not show record_function regions within a function that is compiled with fullgraph"
    if (text, RuntimeWarning) not in ev.warnings.issued:
        ev.warnings.issued.add((text, RuntimeWarning))
        site = ev.site()
        with ev.warnings.filter.passing():
            warnings.warn_explicit(text, RuntimeWarning, site.file if site else __file__, site.line if site else 1)


def enter(ev: Interpreter, args: list[Any], kwargs: Kwargs) -> Any:
    """The model of `record_function.__enter__`."""
    ev.recorder.begin_region()  # one that is left for real has to be entered for real
    if are_seen(ev):
        name, more = ev.getattr(args[0], "name"), ev.getattr(args[0], "args")
        ev.recorder.profiler_regions.append(ev.recorder.add_effect(regions.begin_label, name, more))
    return args[0]


def leave(ev: Interpreter, args: list[Any], kwargs: Kwargs) -> None:
    """The model of `record_function.__exit__`."""
    ev.recorder.end_region()
    if are_seen(ev):
        ev.recorder.add_effect(regions.end_label, ev.recorder.profiler_regions.pop())
