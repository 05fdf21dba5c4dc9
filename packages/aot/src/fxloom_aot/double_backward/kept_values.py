"""The values that a call has to keep so that its gradients can always be differentiated (`double_backward=True`).

In: the program and the numbers of a call. Out: values of the program's log from which all that eager's nodes save can be had.
Invariant: they are in the log's order, each once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fxloom_aot.double_backward.log_matching import match_logs
from fxloom_aot.double_backward.retrace import REFUSALS, NotDifferentiable, retrace
from fxloom_aot.functional.functional_log import inputs_of
from fxloom_aot.nests import values_of
from fxloom_aot.trace_result import Program
from fxloom_shapes import FakeTensor


def saved_in_eager(program: Program, symbols: Mapping[str, Any], numbers: Sequence[Any]) -> list[FakeTensor]:
    """The values of the program's log from which all that eager's nodes save can be had; nothing where that can't be worked out.

    symbols, numbers: of a call, by name, and by input.
    """
    try:
        retraced = retrace(program, symbols, numbers, {})
        matched = match_logs(program, retraced.state.log, retraced.found.values, symbols, ())
    except (NotDifferentiable, *REFUSALS):
        return []
    retraced.recording.close()
    log, old = retraced.state.log, program.log
    values = [*old.placeholders, *[value for call in old.calls for value in values_of([call.out])]]
    back = {id(matched[id(value)]): value for value in reversed(values) if id(value) in matched}
    found: dict[int, FakeTensor] = {}
    seen: set[int] = set()
    todo = [value for value in retraced.saved if value is not None]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        original = back.get(id(value))
        if original is not None:
            found[id(original)] = original
        elif log.origins[id(value)].call >= 0:  # a view, for example
            todo += inputs_of(log, log.origins[id(value)].call)
    return [value for value in values if id(value) in found]
