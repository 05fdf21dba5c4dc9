"""`contextvars.ContextVar`: what the program gets is guarded, what it sets is kept aside and set once the graph has run.

In: a call of `get`, `set` or `reset`. Out: the variable's value as the program sees it, or a `Token` for the real one; what was
set lies in `Interpreter.context_variables`. Invariant: the real variable keeps its value while capturing.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.guard.guards import GuardKind
from fxloom_dynamo.objects.sentinels import ABSENT, UNREAD, Raised
from fxloom_interfaces.sources import CallSource

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]
_UNSET = object()


class Token:
    """Stands for the token of a `set` that was made while capturing."""

    __slots__ = ("old_value", "used", "var")

    def __init__(self, var: Any, old_value: Any) -> None:
        """old_value: UNREAD when the variable had not been set while capturing."""
        self.var = var
        self.old_value = old_value
        self.used = False


def get(ev: Interpreter, args: list[Any], kwargs: Kwargs) -> Any:
    """The model of `ContextVar.get`."""
    variable, *default = args
    if kwargs or len(default) > 1:
        return ev.native(contextvars.ContextVar.get, *args, **kwargs)  # raises
    value = ev.context_variables.get(id(variable), (variable, UNREAD))[1]
    if value is not UNREAD:
        return value
    known = ev.heap.source_of(variable)
    is_set = variable.get(_UNSET) is not _UNSET
    ev.heap.guard(CallSource(known, getter=_is_set, label="{} is set"), GuardKind.TRUTH, is_set)
    if not is_set and default:
        return default[0]
    try:
        found = variable.get()
    except LookupError as error:
        raise Raised(ev.clean(error)) from None
    return ev.heap.translate(found, CallSource(known, getter=contextvars.ContextVar.get, label="{}.get()"))


def put(ev: Interpreter, args: list[Any], kwargs: Kwargs) -> Any:
    """The model of `ContextVar.set`."""
    if kwargs or len(args) != 2:
        return ev.native(contextvars.ContextVar.set, *args, **kwargs)  # raises
    variable, value = args
    token = Token(variable, ev.context_variables.get(id(variable), (variable, UNREAD))[1])
    ev.context_variables[id(variable)] = (variable, value)
    return ev.heap.add_fresh(token)


def reset(ev: Interpreter, args: list[Any], kwargs: Kwargs) -> None:
    """The model of `ContextVar.reset`."""
    if kwargs or len(args) != 2 or type(args[1]) is not Token:
        graph_break("native_call", "ContextVar.reset with a token from before")
    variable, token = args
    if token.var is not variable:
        graph_break("native_call", "ContextVar.reset with the token of another variable")
    if token.used:
        raise Raised(RuntimeError(f"{variable!r} has already been used once"))
    token.used = True
    if token.old_value is UNREAD:
        ev.context_variables.pop(id(variable), ABSENT)
    else:
        ev.context_variables[id(variable)] = (variable, token.old_value)


def write(variable: contextvars.ContextVar[Any], value: Any) -> None:
    """Runs in replacement code."""
    variable.set(value)


def _is_set(variable: Any) -> bool:
    return variable.get(_UNSET) is not _UNSET
