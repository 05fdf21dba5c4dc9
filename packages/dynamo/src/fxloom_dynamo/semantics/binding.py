"""Binding: a call's arguments, defaults and closure cells become the variables of a frame, as CPython binds them.

In: a function and the arguments of a call. Out: parameters by name, and the proxies of its cells.
Invariant: defaults and cells that existed before have sources, so reading them is guarded; where CPython would raise a TypeError,
that very error is raised.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.interpreter.model_tables import Kwargs
from fxloom_dynamo.objects.sentinels import Raised
from fxloom_dynamo.traced import polyfills
from fxloom_interfaces.errors import InternalError

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def closure_of(ev: Interpreter, fn: types.FunctionType) -> tuple[types.CellType, ...]:
    """Proxies of a function's cells."""
    cells = fn.__closure__
    if not cells:
        return ()
    heap = ev.heap
    if id(fn) in heap.fresh:
        return cells
    source = heap.source_of(fn)
    closure_source = heap.attr_source(source, "__closure__")
    found = []
    for index, cell in enumerate(cells):
        if id(cell) in heap.fresh or id(cell) in heap.by_proxy:
            found.append(cell)
            continue
        cell_source = heap.item_source(closure_source, index)
        found.append(heap.translate_cell(cell, cell_source, heap.attr_source(cell_source, "cell_contents")))
    return tuple(found)


def bind_arguments(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> dict[str, Any]:
    """Parameters by name, as CPython binds them; TypeError where it would raise one."""
    code = fn.__code__
    names = code.co_varnames
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    given = len(args)
    values = dict(zip(names[:count], args))  # missing ones are filled in below
    total = count + keyword_only
    star = total if code.co_flags & inspect.CO_VARARGS else -1
    if star >= 0:
        values[names[star]] = tuple(args[count:])
    elif given > count:
        raise _binding_error(ev, fn, args, kwargs)
    extra: Kwargs | None = None
    if code.co_flags & inspect.CO_VARKEYWORDS:
        extra = values[names[total + (star >= 0)]] = {}
    if kwargs:
        allowed = names[code.co_posonlyargcount : total]
        for name, value in kwargs.items():
            if name in allowed:
                if name in values:
                    raise _binding_error(ev, fn, args, kwargs)
                values[name] = value
            elif extra is not None:
                extra[name] = value
            else:
                raise _binding_error(ev, fn, args, kwargs)
    if given < count and not _fill_defaults(ev, fn, names, given, count, values):
        raise _binding_error(ev, fn, args, kwargs)
    if keyword_only and not _fill_keyword_defaults(ev, fn, names[count:total], values):
        raise _binding_error(ev, fn, args, kwargs)
    return values


_NOTHING = (lambda: None).__code__


def _binding_error(ev: Interpreter, fn: types.FunctionType, args: list[Any], kwargs: Kwargs) -> Raised:
    """The TypeError of a call that does not fit, from the interpreter: a function of the same signature that does nothing."""
    code = fn.__code__.replace(
        co_code=_NOTHING.co_code, co_consts=(None,), co_exceptiontable=b"", co_cellvars=(), co_freevars=(),
        co_flags=fn.__code__.co_flags & ~(inspect.CO_GENERATOR | ASYNC),
    )  # fmt: skip
    probe = types.FunctionType(code, {}, fn.__name__, fn.__defaults__)
    probe.__kwdefaults__ = fn.__kwdefaults__
    probe.__qualname__ = fn.__qualname__
    try:
        ev.run_untraced(lambda: probe(*args, **kwargs))
    except TypeError as exc:
        return Raised(ev.clean(exc))
    raise InternalError("dynamo.calls", f"arguments of {fn.__qualname__} could not be bound and the interpreter binds them")


def _fill_defaults(
    ev: Interpreter, fn: types.FunctionType, names: tuple[str, ...], given: int, count: int, values: Kwargs
) -> bool:
    """Add the defaults of positional parameters; False if one has none."""
    defaults = fn.__defaults__ or ()
    first = count - len(defaults)
    if any(names[i] not in values for i in range(min(given, count), first)):
        return False
    heap = ev.heap
    fresh = id(fn) in heap.fresh or fn.__module__ == polyfills.__name__
    for index in range(max(given, first), count):
        name = names[index]
        if name not in values:
            value = defaults[index - first]
            if not fresh:
                source = heap.attr_source(heap.source_of(fn), "__defaults__")
                value = heap.translate(value, heap.item_source(source, index - first))
            values[name] = value
    return True


def _fill_keyword_defaults(ev: Interpreter, fn: types.FunctionType, names: tuple[str, ...], values: Kwargs) -> bool:
    """Add the defaults of keyword-only parameters; False if one has none."""
    heap = ev.heap
    for name in names:
        if name in values:
            continue
        defaults = fn.__kwdefaults__ or {}
        if name not in defaults:
            return False
        value = defaults[name]
        if id(fn) not in heap.fresh and fn.__module__ != polyfills.__name__:
            source = heap.attr_source(heap.source_of(fn), "__kwdefaults__")
            value = heap.translate(value, heap.key_source(source, name))
        values[name] = value
    return True
