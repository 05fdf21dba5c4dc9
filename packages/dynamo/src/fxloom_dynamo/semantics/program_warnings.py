"""Warnings: the program's are delayed and made at their places; what C code warns of while capturing is noticed.

In: calls of `warnings.warn` by the program, and whatever else warns in this thread while it is captured. Out: calls that
replacement code makes, with the file, line and registry of the program's own call; breaks.

Invariant: while capturing nothing is shown, raised or counted as shown that the program did not call for itself then.
"""

from __future__ import annotations

import functools
import re
import sys
import types
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.interpreter.state import DelayedCall
from fxloom_dynamo.interpreter.warning_filter import WarningFilter
from fxloom_dynamo.libraries import files
from fxloom_dynamo.objects import program_changes
from fxloom_dynamo.objects.sentinels import Raised, RestartCapture
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.semantics import output
from fxloom_interfaces.sources import CallSource

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter

#: Python functions of torch that have warned: evaluated from then on, so that the warning is the program's
_WARNING_CODES: dict[int, types.CodeType] = {}


def has_warned(code: types.CodeType) -> bool:
    return id(code) in _WARNING_CODES


def refuse(ev: Interpreter) -> None:
    """Break: C code has warned, in the place of the instruction that called it."""
    found, _ = ev.warnings.filter.take()
    text, category = found[0]
    graph_break("warns", f"{category.__name__}: {text}")


def of_torch(ev: Interpreter) -> None:
    """torch has warned: its Python code is evaluated instead of run, and warns for the program; its C++ code has warned now."""
    found, codes = ev.warnings.filter.take()
    new = [code for code in codes if not has_warned(code)]
    if new:
        _WARNING_CODES.update((id(code), code) for code in new)
        raise RestartCapture(new[0].co_qualname)
    issue(ev, found)


def issue(ev: Interpreter, found: Sequence[tuple[str, type[Warning]]]) -> None:
    """Warn now, in the program's place, of what is not warned of again: libraries keep what they made, or warn once a process."""
    frame = ev.frames[-1]
    site = frame.site()
    for text, category in found:
        if (text, category) in ev.warnings.issued:  # an earlier attempt at this capture did
            continue
        ev.warnings.issued.add((text, category))
        with ev.warnings.filter.passing():
            warnings.warn_explicit(text, category, site.file, site.line, _module(frame), _registry(frame.globals))


# ------------------------------------------------------------------ the program's own


def warn(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> None:
    """The model of `warnings.warn`."""
    given = dict(zip(("message", "category", "stacklevel", "source"), args)) | kwargs
    message, category, level = given.get("message"), given.get("category"), given.get("stacklevel", 1)
    known = given.keys() <= {"message", "category", "stacklevel", "source"} and len(args) <= 4
    if not known or given.get("source") is not None or type(level) is not int or not _is_shown_unchanged(ev, message):
        graph_break("warns", "warnings.warn with more than a text, a category and a stacklevel")
    if isinstance(message, Warning):
        category = type(message)
    elif category is None:
        category = UserWarning
    if not isinstance(category, type) or not issubclass(category, Warning) or ev.heap.is_fresh(category):
        graph_break("warns", "warnings.warn of a category that is no class of warnings, or that was made inside")
    level = max(level, 1)
    outside = level > len(ev.frames)
    frame = ev.frames[0 if outside else -level]
    place = (None, None) if outside else (_module(frame), frame.site().line)
    if not _is_shown(ev, message, category, *place):
        return
    at = level - len(ev.frames) + 2 if outside else 1  # beside the frame of the call that is delayed
    ev.delayed.after_graph.append(DelayedCall(output.caller_at(frame), warnings.warn, (message, category, at), {}))


def warn_explicit(ev: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> None:
    """The model of `warnings.warn_explicit`, without a registry."""
    values = (*args, *kwargs.values())
    known = len(args) >= 4 and type(args[0]) is str and type(args[2]) is str and type(args[3]) is int and kwargs.keys() <= {"module"}
    if not known or len(args) > 5 or not all(type(value) in LITERALS or isinstance(value, type) for value in values):
        graph_break("warns", "warnings.warn_explicit with more than a text, a category and a place")
    message, category, filename, line = args[:4]
    module = args[4] if len(args) > 4 else kwargs.get("module")
    module = module if module is not None else filename.removesuffix(".py") or "<unknown>"
    if not isinstance(category, type) or not issubclass(category, Warning) or ev.heap.is_fresh(category):
        graph_break("warns", "warnings.warn_explicit of a category that is no class of warnings, or that was made inside")
    if _is_shown(ev, message, category, module, line):
        output.delay(ev, warnings.warn_explicit, args, kwargs)


def _is_shown_unchanged(ev: Interpreter, message: Any) -> bool:
    if type(message) is str:
        return True
    if not isinstance(message, Warning) or not all(type(arg) in LITERALS for arg in message.args):
        return False
    return ev.heap.class_lookup(type(message), "__str__") is BaseException.__str__


def _is_shown(ev: Interpreter, message: Any, category: type[Warning], module: str | None, line: int | None) -> bool:
    """Whether the program goes on and somebody may see the warning; raises what it is where warnings are errors."""
    filters = _programs_filters(ev)
    action = action_of(ev.warnings.filter.filters if filters is None else filters, str(message), category, module, line)
    if filters is None:
        asks = functools.partial(_acts, text=str(message), category=category, module=module, line=line, as_error=action == "error")
        name = f"{category.__name__} ({message}) is {'' if action == 'error' else 'not '}an error in {{}}"
        ev.heap.guard(CallSource(ev.heap.object_source(warnings), getter=asks, label=name), GuardKind.TRUTH, True)
    if action == "error":
        raise Raised(message if isinstance(message, Warning) else ev.call(category, [message]))
    if filters is None:
        if "stderr" in ev.heap.namespace(vars(sys)).written:
            graph_break("warns", "a warning while sys.stderr is redirected")
        if files.is_program_code(warnings.showwarning):
            graph_break("warns", "a warning that a function of the program's shows (warnings.showwarning)")
        output.check_stream(ev, "stderr", "a warning")
        return True
    if action != "ignore":
        graph_break("warns", "a warning within a block that changes how warnings are shown")
    return False


def _programs_filters(ev: Interpreter) -> list[Any] | None:
    """The filters that the program has set; None where they, and what shows a warning, are as they were before."""
    namespace = ev.heap.namespace(vars(warnings))
    changed = {id(record.proxy) for record, _ in program_changes.changed_records(ev.heap)}

    def is_old(name: str) -> bool:
        value = namespace.values[name]
        record = ev.heap.record(value)
        old = ev.warnings.filter.filters if name == "filters" else namespace.real.get(name)
        return (value is old or record is not None and record.original is old) and id(value) not in changed

    if all(map(is_old, namespace.written)) and ("filters" not in namespace.values or is_old("filters")):
        return None
    filters = ev.heap.name_get(namespace, "filters")
    if type(filters) is not list:
        graph_break("warns", "warnings.filters is no list")
    ev.heap.fill(filters)
    if not all(type(entry) is tuple and len(entry) == 5 for entry in filters):
        graph_break("warns", "warnings.filters holds something else than filters")
    return filters


def action_of(filters: Sequence[Any], text: str, category: type[Warning], module: str | None, line: int | None) -> str:
    """What `warnings` does with a warning (CPython's `get_filter`). module, line: None where they are not known: a break."""
    for action, pattern, kind, of_module, at in filters:
        if isinstance(pattern, WarningFilter):
            continue
        if not _matches(pattern, text) or not issubclass(category, kind):
            continue
        if (of_module is not None or at) and module is None:
            graph_break("warns", "a filter of warnings asks for the module or line of a caller outside of the region")
        if (of_module is None or _matches(of_module, module or "")) and (not at or at == line):
            return str(action)
    return str(warnings.defaultaction)  # type: ignore[attr-defined]  # the stubs lack it


def _matches(pattern: Any, text: str) -> bool:
    if type(pattern) is str:
        return pattern == text
    return pattern is None or isinstance(pattern, re.Pattern) and pattern.match(text) is not None


def _acts(_: Any, text: str, category: type[Warning], module: str | None, line: int | None, as_error: bool) -> bool:
    return (action_of(warnings.filters, text, category, module, line) == "error") is as_error


def _module(frame: Frame) -> str:
    return str(frame.globals.get("__name__") or "<string>")


def _registry(global_names: dict[str, Any]) -> dict[Any, Any]:
    registry: dict[Any, Any] = global_names.setdefault("__warningregistry__", {})
    return registry
