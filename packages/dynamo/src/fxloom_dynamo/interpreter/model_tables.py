"""Where models are registered: functions, classes, methods written in C, calls of objects and of metaclasses.

In: a model and what it stands for. Out: tables that `semantics` looks a callee up in; a model gets the evaluator and the call's
arguments and gives its result. The modules of `models` fill the tables when `models.load_all` is imported, which capture does.
Invariant: nothing below imports a model. Where a model declares its arity, other numbers of arguments raise the real callee's own
error.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.objects.sentinels import Raised
from fxloom_interfaces.errors import InternalError

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


Args = list[Any]
Kwargs = dict[str, Any]
Model = Callable[["Interpreter", Args, Kwargs], Any]
FUNCTIONS: dict[Any, Model] = {}
#: functions of modules that capture does not import, by module and qualified name
NAMED: dict[tuple[str, str], Model] = {}
#: functions that a library makes inside of others, by their code: the model gets the function first
INNER: dict[types.CodeType, Callable[..., Any]] = {}
CLASSES: dict[type, Model] = {}
METHODS: dict[tuple[type, str], Model] = {}
OBJECT_CALLS: dict[type, Callable[..., Any]] = {}
METACLASS_CALLS: dict[type, Callable[..., Any]] = {}
OPERATOR_FUNCTIONS: dict[str, Model] = {}
#: parameters of the functions of `operator` that have a model; all are positional
OPERATOR_ARITY: dict[str, int] = {}
#: builtin function -> method that decides for Python classes
DUNDER_OF = {
    "abs": "__abs__", "round": "__round__", "divmod": "__divmod__", "pow": "__pow__", "index": "__index__", "floor": "__floor__",
    "ceil": "__ceil__", "trunc": "__trunc__", "bin": "__index__", "hex": "__index__", "oct": "__index__",
}  # fmt: skip


def function(*targets: Any, arity: tuple[int, int] | None = None) -> Callable[[Model], Model]:
    """Register the model of functions. arity: least and most positional arguments, no keywords; others are TypeErrors."""

    return _registrar(FUNCTIONS, {target: target for target in targets}, arity)


def _registrar(table: dict[Any, Model], targets: dict[Any, Any], arity: tuple[int, int] | None) -> Callable[[Model], Model]:
    """A decorator that enters a model into `table`. targets: key -> the real callee."""

    def register(model: Model) -> Model:
        for key, target in targets.items():
            table[key] = model if arity is None else _checked(model, target, arity)
        return model

    return register


def _checked(model: Model, target: Any, arity: tuple[int, int]) -> Model:
    """`model` behind a check of the number of arguments; the real callee words the error."""

    def checked(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if kwargs or not arity[0] <= len(args) <= arity[1]:
            ev.native(target, *args, **kwargs)
            raise InternalError("dynamo.models", f"{target!r} took {len(args)} arguments, the model allows {arity}")
        return model(ev, args, kwargs)

    return checked


def constructor(*targets: type, arity: tuple[int, int] | None = None) -> Callable[[Model], Model]:
    """Register the model of calls of classes."""

    return _registrar(CLASSES, {target: target for target in targets}, arity)


def method(owner: type, *names: str, arity: tuple[int, int] | None = None) -> Callable[[Model], Model]:
    """Register the model of methods written in C; the receiver counts as an argument."""

    return _registrar(METHODS, {(owner, name): getattr(owner, name) for name in names}, arity)


def take(args: Args, kwargs: Kwargs, *names: str, defaults: tuple[Any, ...] = ()) -> list[Any]:
    """Arguments by position or keyword, for models whose callee has a simple signature."""
    values = list(args)
    for index in range(len(args), len(names)):
        if names[index] in kwargs:
            values.append(kwargs[names[index]])
        else:
            at = index - (len(names) - len(defaults))
            if at < 0:
                raise Raised(TypeError(f"missing argument {names[index]!r}"))
            values.append(defaults[at])
    return values
