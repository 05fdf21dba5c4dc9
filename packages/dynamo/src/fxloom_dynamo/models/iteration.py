"""Models of builtins that iterate or call back for each item: len, iter, next, any, max, sum, sorted, reversed, map, itertools.

In: a call of such a builtin on values of the program. Out: its result. C code runs where it meets no methods of the program's, or
only calls back Python functions, which are then evaluated; otherwise a polyfill of the builtin, written in Python, is evaluated.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.interpreter import special_methods
from fxloom_dynamo.interpreter.model_tables import CLASSES, FUNCTIONS, Args, Kwargs, Model, constructor, function, method
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.objects.value_types import LITERALS
from fxloom_dynamo.semantics import numbers, operators
from fxloom_dynamo.symbolic_numbers.values import are_alike
from fxloom_dynamo.traced import polyfills
from fxloom_shapes import FakeTensor

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


@function(builtins.len, arity=(1, 1))
def _len(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    return operators.length(ev, args[0])


@function(builtins.iter, arity=(1, 2))
def _iter(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 2:
        if isinstance(args[0], (types.FunctionType, types.MethodType)):
            return ev.native(iter, *args)
        return ev.call(polyfills.iterate_until, args)
    return ev.iter(args[0])


@function(builtins.next, arity=(1, 2))
def _next(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) == 1 and type(args[0]).__name__ == "TracedGenerator":
        return args[0].advance(None)
    item = ev.next(args[0])
    if item is not ABSENT:
        return item
    if len(args) > 1:
        return args[1]
    raise Raised(StopIteration())


def _use(polyfill: Callable[..., Any]) -> Model:
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        return ev.call(polyfill, args, kwargs)

    return model


function(builtins.any, arity=(1, 1))(_use(polyfills.any_))
function(builtins.all, arity=(1, 1))(_use(polyfills.all_))
function(functools.reduce, arity=(2, 3))(_use(polyfills.reduce_))
CLASSES[map] = _use(polyfills.map_)
CLASSES[filter] = _use(polyfills.filter_)
CLASSES[itertools.groupby] = _use(polyfills.groupby_)
CLASSES[itertools.accumulate] = _use(polyfills.accumulate_)
CLASSES[itertools.starmap] = _use(polyfills.starmap_)
CLASSES[itertools.takewhile] = _use(polyfills.takewhile_)
CLASSES[itertools.dropwhile] = _use(polyfills.dropwhile_)
CLASSES[itertools.filterfalse] = _use(polyfills.filterfalse_)


def _literals(ev: Interpreter, values: Any) -> bool:
    if not isinstance(values, (list, tuple)):
        return False
    ev.heap.fill(values)
    return all(type(item) in LITERALS for item in values)


def _extreme(native: Callable[..., Any], polyfill: Callable[..., Any]) -> Model:
    def model(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not kwargs and args and (_literals(ev, args) if len(args) > 1 else _literals(ev, args[0])):
            return ev.native(native, *args)
        if not kwargs and len(args) == 1 and are_alike(args[0]):
            return numbers.call(ev, native, list(args[0]), {})
        return ev.call(polyfill, args, kwargs)

    return model


FUNCTIONS[builtins.max] = _extreme(max, polyfills.max_)
FUNCTIONS[builtins.min] = _extreme(min, polyfills.min_)


@function(builtins.sum)
def _sum(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args or len(args) > 2:
        return ev.native(sum, *args, **kwargs)
    if not kwargs and _literals(ev, args[0]):
        return ev.native(sum, *args)
    return ev.call(polyfills.sum_, args, kwargs)


@function(builtins.sorted)
def _sorted(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        return ev.native(sorted, *args, **kwargs)
    items = ev.list_of(args[0])
    _sort(ev, items, kwargs)
    return items


@method(list, "sort")
def _list_sort(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        return ev.native(list.sort, *args, **kwargs)
    ev.heap.fill(args[0])
    _sort(ev, args[0], kwargs)
    return None


def _sort(ev: Interpreter, items: Any, kwargs: Kwargs) -> None:
    """list.sort; a key that is no Python function is called here, so that builtins have their models."""
    reverse = ev.truth(kwargs.get("reverse", False))
    key = kwargs.get("key")
    if key is None or isinstance(key, types.FunctionType):
        ev.heap.fill_deep(items)
        ev.native(list.sort, items, key=key, reverse=reverse)
        return
    ev.call(polyfills.sort_list, [items, key, reverse])


@constructor(reversed, arity=(1, 1))
def _reversed(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    found = special_methods.python_method(ev, value, "__reversed__")
    if found is not ABSENT:
        return ev.call(found, [value])
    if special_methods.is_pure_instance(value):
        ev.heap.fill(value)
        return ev.native(reversed, value)
    if type(value) is FakeTensor:
        return ev.torch_native(reversed, value)
    if special_methods.python_method(ev, value, "__getitem__") is not ABSENT:
        return ev.call(polyfills.reverse_by_index, [value])
    return ev.native(reversed, value)
