"""What a user's directive about a function (allow_in_graph, disallow_in_graph, a constant result) does to a call of it.

In: the function, its directive and the call's arguments. Out: the node's result, a graph break, or the result of a real call as a
constant.
Invariant: a function that is called while capturing gets real objects, never proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.directives import Directive
from fxloom_dynamo.objects.value_types import LITERALS, is_plain
from fxloom_interfaces.regions import GraphFunction

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

Kwargs = dict[str, Any]


def call_as_directed(ev: Interpreter, fn: Any, directive: Directive, args: list[Any], kwargs: Kwargs) -> Any:
    """A call of a function of which the program said how it is to be captured."""
    name = getattr(fn, "__qualname__", repr(fn))
    if directive is Directive.DISALLOW:
        graph_break("asked_for", f"{name} is not to be in graphs (disallow_in_graph)")
    values = [*args, *kwargs.values()]
    if directive is Directive.ALLOW:
        if not all(map(is_plain, values)):
            graph_break("asked_for", f"{name} (allow_in_graph) gets more than tensors, numbers and nests of them")
        return ev.record_call(GraphFunction(fn, name), *args, **kwargs)
    real = [_real_value(ev, value, name) for value in values]
    result = ev.run_real(fn, *real[: len(args)], **dict(zip(kwargs, real[len(args) :], strict=True)))
    return result if type(result) in LITERALS else ev.heap.adopt(result)


def _real_value(ev: Interpreter, value: Any, name: str) -> Any:
    """What a proxy stands for, where the program has not changed it."""
    if type(value) in LITERALS:
        return value
    record = ev.heap.record(value)
    if record is None:
        graph_break("asked_for", f"{name} (assume_constant_result) gets a {type(value).__qualname__} that was made inside")
    return record.original
