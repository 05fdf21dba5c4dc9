"""Types as values of a program: `list[int] | None`, `Literal["a"]`, `TypeVar("T")`. The `typing` module makes the real ones.

In: a call of a function, class or operator of `typing`. Out: whether it may run as it is (`runs_untraced`), and its result. The
functions of `typing` keep what they made in caches of the process, so nothing of a capture may reach them: they run as they are
where all their arguments are types and constants that existed before, and so do the constructors of type variables. What they
give is a constant, except for type variables, which are other ones at each call.
"""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.objects.value_types import LITERALS

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter

_FILE = typing.__file__
#: made anew by each call
VARIABLES: tuple[type, ...] = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)
_ARGUMENTS = (type, types.GenericAlias, types.UnionType, *VARIABLES)
#: functions that look into classes and functions, which may change
_LOOK_INSIDE = frozenset({"get_type_hints", "get_overloads", "overload", "final", "override", "runtime_checkable", "dataclass_transform"})

#: methods of what `typing` made, that make more of it or compare it
_OPERATORS = frozenset({"__getitem__", "__or__", "__ror__", "__eq__", "__hash__", "__repr__"})


def is_value(value: Any) -> bool:
    """True for what `typing` made, type variables included."""
    return type(value).__module__ == "typing"


def variables_of(value: Any) -> tuple[Any, ...]:
    """The type variables in a type."""
    if type(value) in (types.GenericAlias, types.UnionType) or is_value(value) and not isinstance(value, VARIABLES):
        return getattr(value, "__parameters__", ())
    return ()


def are_arguments(ev: Interpreter, values: Any) -> bool:
    """Whether all of these are types and constants, none of them of the capture's own making."""
    for value in values:
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            if not are_arguments(ev, value):
                return False
        elif type(value) not in LITERALS and (ev.heap.is_fresh(value) or not (isinstance(value, _ARGUMENTS) or is_value(value))):
            return False
    return True


def runs_untraced(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """True for calls of functions of `typing` that only look at their arguments, and for operators of what it made."""
    if fn.__code__.co_filename != _FILE or fn.__name__ in _LOOK_INSIDE:
        return False
    return bool(args) and is_value(args[0]) and fn.__name__ in _OPERATORS or are_arguments(ev, [*args, *kwargs.values()])


def call(ev: Interpreter, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """fn(*args, **kwargs), for a function or class of `typing`."""
    ev.heap.fill_deep(args)
    made = ev.run_stdlib(fn, *args, **kwargs)
    if isinstance(made, VARIABLES) and isinstance(fn, type):
        made.__module__ = str(ev.frames[-1].globals.get("__name__"))  # which the constructor finds in its caller's frame
        ev.note_made(made)
    return made
