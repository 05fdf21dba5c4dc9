"""Models of conversions to text and to numbers, which may call methods written in Python.

In: a call of `str`, `repr`, `format`, `bool`, `int`, `float` or `complex`. Out: the converted value, by way of the class's own
method where it is written in Python. A tensor's number stays in the graph where only a `raise` depends on it
(`semantics.predictions`).
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.interpreter import special_methods
from fxloom_dynamo.interpreter.model_tables import CLASSES, Args, Kwargs, Model, constructor, function, method
from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_dynamo.semantics import texts
from fxloom_dynamo.semantics.predictions import number_of, truth_decides
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@constructor(str)
def _str(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and not kwargs:
        return texts.to_text(ev, args[0])
    return ev.native(str, *args, **kwargs)


@function(builtins.repr, arity=(1, 1))
def _repr(ev: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return texts.to_text(ev, args[0], "__repr__")


@function(builtins.format, arity=(1, 2))
def _format(ev: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return texts.format_value(ev, args[0], args[1] if len(args) > 1 else "")


@method(str, "format")
def _str_format(ev: Interpreter, args: Args, kwargs: Kwargs) -> str:
    shown = [texts.printable(ev, value) for value in args[1:]]
    named = {name: texts.printable(ev, value) for name, value in kwargs.items()}
    return str(ev.native(str.format, *args[:1], *shown, **named))


@constructor(bool, arity=(0, 1))
def _bool(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args and type(args[0]) is FakeTensor and truth_decides(ev, "bool") and args[0].dim() == 0:
        return args[0]
    return ev.truth(args[0]) if args else False


def _number(target: type, *names: str) -> Model:
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if args and type(args[0]) is FakeTensor:
            exact = target is float or target is int and not args[0].is_floating_point()
            number = number_of(ev, args[0], target.__name__) if exact and len(args) == 1 else None
            return ev.torch_native(target, *args) if number is None else number
        if args:
            for name in names:
                found = special_methods.python_method(ev, args[0], name)
                if found is not ABSENT:
                    number = special_methods.answered(args[0], name, ev.call(found, [args[0]]))
                    return ev.native(target, number, *args[1:], **kwargs)
                if hasattr(type(args[0]), name):  # a subclass's, of a type written in C
                    break
        return ev.native(target, *args, **kwargs)

    return model


CLASSES[int] = _number(int, "__int__", "__index__", "__trunc__")
CLASSES[float] = _number(float, "__float__", "__index__")
CLASSES[complex] = _number(complex, "__complex__", "__float__", "__index__")
