"""Models of the functions of the `operator` module, of its getters, and of methods of numbers.

In: a call such as `operator.add(a, b)` or `operator.itemgetter(0)(x)`. Out: what the operator itself gives:
`semantics.operators`, `subscripts` and `numbers` say what that is.
"""

from __future__ import annotations

import functools
import inspect
import operator
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.interpreter.model_tables import FUNCTIONS, OBJECT_CALLS, OPERATOR_ARITY, OPERATOR_FUNCTIONS, Args, Kwargs, Model
from fxloom_dynamo.semantics import numbers, operators, subscripts
from fxloom_dynamo.symbolic_numbers import values

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def _binary_function(text: str) -> Model:
    return lambda ev, args, kwargs: operators.binary(ev, text, args[0], args[1])


for _text, (_function, *_) in operators.BINARY.items():
    OPERATOR_FUNCTIONS[_function.__name__] = _binary_function(_text)


def _compare_function(text: str) -> Model:
    return lambda ev, args, kwargs: operators.compare(ev, text, args[0], args[1])


for _text, (_function, *_) in operators.COMPARISONS.items():
    OPERATOR_FUNCTIONS[_function.__name__] = _compare_function(_text)
OPERATOR_FUNCTIONS.update(
    {
        "getitem": lambda ev, args, kwargs: subscripts.subscript(ev, *args),
        "setitem": lambda ev, args, kwargs: subscripts.store_subscript(ev, *args),
        "delitem": lambda ev, args, kwargs: subscripts.delete_subscript(ev, *args),
        "contains": lambda ev, args, kwargs: operators.contains(ev, args[1], args[0]),
        "not_": lambda ev, args, kwargs: not ev.truth(args[0]),
        "truth": lambda ev, args, kwargs: ev.truth(args[0]),
        "is_": lambda ev, args, kwargs: args[0] is args[1],
        "is_not": lambda ev, args, kwargs: args[0] is not args[1],
        "neg": lambda ev, args, kwargs: operators.unary(ev, "__neg__", args[0]),
        "pos": lambda ev, args, kwargs: operators.unary(ev, "__pos__", args[0]),
        "invert": lambda ev, args, kwargs: operators.unary(ev, "__invert__", args[0]),
    }
)
OPERATOR_ARITY.update({name: len(inspect.signature(getattr(operator, name)).parameters) for name in OPERATOR_FUNCTIONS})


def _itemgetter(ev: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    keys = fn.__reduce__()[1]
    found = [subscripts.subscript(ev, args[0], key) for key in keys]
    return found[0] if len(keys) == 1 else tuple(found)


def _attrgetter(ev: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    found = []
    for path in fn.__reduce__()[1]:
        value = args[0]
        for name in path.split("."):
            value = ev.getattr(value, name)
        found.append(value)
    return found[0] if len(found) == 1 else tuple(found)


def _methodcaller(ev: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    reduced = fn.__reduce__()
    if isinstance(reduced[0], functools.partial):
        name, rest, named = reduced[0].args[0], reduced[1], reduced[0].keywords
    else:
        name, rest, named = reduced[1][0], reduced[1][1:], {}
    return ev.call(ev.getattr(args[0], name), list(rest), dict(named))


OBJECT_CALLS[operator.itemgetter] = _itemgetter
OBJECT_CALLS[operator.attrgetter] = _attrgetter
OBJECT_CALLS[operator.methodcaller] = _methodcaller


def _method_of_number(function: Any) -> Model:
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        return values.settled(ev.torch_native(function, *args, **kwargs))

    return model


FUNCTIONS.update({function: _method_of_number(function) for function in numbers.METHODS.values()})
