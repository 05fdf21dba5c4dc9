"""Models of the constructors and methods of list, tuple, dict, set and OrderedDict that look at keys or share items.

In: the evaluator and the arguments of the call. Out: what the call returns, or its exception as `Raised`; what the answer depends on is
guarded. The real function is not called where it would see a proxy or a fake for what it is. `load_all` imports this module, which fills
the tables of `interpreter.model_tables`.
"""

from __future__ import annotations

import collections
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.interpreter.model_tables import Args, Kwargs, constructor, function, method, take
from fxloom_dynamo.objects import unguarded
from fxloom_dynamo.objects.sentinels import ABSENT, Raised
from fxloom_dynamo.semantics import subscripts
from fxloom_dynamo.semantics.container_updates import dict_update, extend_list
from fxloom_dynamo.semantics.numbers import binary
from fxloom_dynamo.symbolic_numbers.values import has_symbolic

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


_MISSING = object()


@constructor(list, arity=(0, 1))
def _list(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.list_of(args[0]) if args else []


@constructor(tuple, arity=(0, 1))
def _tuple(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        return ()
    return args[0] if type(args[0]) is tuple else tuple(ev.list_of(args[0]))


@constructor(dict)
def _dict(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1:
        return ev.native(dict, *args, **kwargs)
    result: dict[Any, Any] = {}
    dict_update(ev, result, args, kwargs)
    return result


@constructor(collections.OrderedDict)
def _ordered_dict(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1:
        return ev.native(collections.OrderedDict, *args, **kwargs)
    result: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    dict_update(ev, result, args, kwargs)
    return result


@constructor(set, arity=(0, 1))
def _set(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    items = ev.list_of(args[0]) if args else []
    return ev.native(set, [subscripts.hashable(ev, item) for item in items])


@constructor(frozenset, arity=(0, 1))
def _frozenset(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return frozenset(_set(ev, args, kwargs))


@function(unguarded.append)
def _append(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    args[0].added.append(args[1])


@function(unguarded.extend)
def _extend(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    args[0].added.extend(ev.list_of(args[1]))


@method(dict, "update")
def _dict_update(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 2:
        ev.native(dict.update, *args, **kwargs)
    ev.heap.know_keys(args[0])
    dict_update(ev, args[0], args[1:], kwargs)


@method(dict, "get", arity=(2, 3))
def _dict_get(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = subscripts.dict_get(ev, args[0], args[1])
    if value is not ABSENT:
        return value
    return args[2] if len(args) > 2 else None


@method(dict, "__getitem__", arity=(2, 2))
def _dict_getitem(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return subscripts.dict_subscript(ev, args[0], args[1])


@method(dict, "__contains__", arity=(2, 2))
def _dict_contains(ev: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return subscripts.dict_contains(ev, args[0], args[1])


@method(dict, "pop", arity=(2, 3))
def _dict_pop(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _popped(ev, dict, *args)


@method(collections.OrderedDict, "pop")
def _ordered_pop(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return _popped(ev, collections.OrderedDict, *take(args, kwargs, "self", "key", "default", defaults=(_MISSING,)))


def _popped(ev: Interpreter, kind: type[dict[Any, Any]], target: Any, key: Any, default: Any = _MISSING) -> Any:
    key = subscripts.hashable(ev, key)
    value = subscripts.dict_get(ev, target, key)
    if value is not ABSENT:
        ev.heap.note_deletion(target, key)
        ev.native(kind.__delitem__, target, key)
        return value
    if default is _MISSING:
        raise Raised(KeyError(key))
    return default


@method(dict, "setdefault", arity=(2, 3))
def _dict_setdefault(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    key = subscripts.hashable(ev, args[1])
    value = subscripts.dict_get(ev, args[0], key)
    if value is not ABSENT:
        return value
    default = args[2] if len(args) > 2 else None
    ev.native(dict.__setitem__, args[0], key, default)
    return default


@method(dict, "keys", arity=(1, 1))
def _dict_keys(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    ev.heap.know_keys(args[0])
    return ev.native(dict.keys, args[0])


@method(dict, "__iter__", arity=(1, 1))
def _dict_iter(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    ev.heap.know_keys(args[0])
    return ev.native(dict.__iter__, args[0])


@method(dict, "__reversed__", arity=(1, 1))
def _dict_reversed(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    ev.heap.know_keys(args[0])
    return ev.native(dict.__reversed__, args[0])


@method(dict, "__len__", arity=(1, 1))
def _dict_len(ev: Interpreter, args: Args, kwargs: Kwargs) -> int:
    ev.heap.know_keys(args[0])
    return dict.__len__(args[0])


@method(dict, "__setitem__", arity=(3, 3))
def _dict_setitem(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.native(dict.__setitem__, args[0], subscripts.hashable(ev, args[1]), args[2])


@method(list, "__getitem__", arity=(2, 2))
def _list_getitem(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if isinstance(args[1], int):
        try:
            return ev.heap.list_get(args[0], args[1])
        except IndexError as exc:
            raise Raised(exc) from None
    ev.heap.fill(args[0])
    return ev.native(list.__getitem__, *args)


@method(list, "append", arity=(2, 2))
def _list_append(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.native(list.append, *args)


@method(list, "insert", arity=(3, 3))
def _list_insert(ev: Interpreter, args: Args, kwargs: Kwargs) -> None:
    ev.heap.fill(args[0])
    ev.native(list.insert, *args)


@method(list, "extend", arity=(2, 2))
def _list_extend(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    extend_list(ev, args[0], args[1])
    return None


@method(list, "__iadd__", arity=(2, 2))
def _list_iadd(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    extend_list(ev, args[0], args[1])
    return args[0]


@method(str, "join", arity=(2, 2))
def _join(ev: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return str(ev.native(str.join, args[0], ev.list_of(args[1])))


@constructor(functools.partial)
def _partial(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return ev.native(functools.partial, *args, **kwargs)


@method(torch.Size, "numel", arity=(1, 1))
def _size_numel(ev: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """The product, symbolic where an extent may change."""
    if not has_symbolic(args[0]):
        return args[0].numel()
    return functools.reduce(lambda count, extent: binary(ev, operator.mul, "*", count, extent), args[0], 1)
