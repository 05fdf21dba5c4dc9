"""`list.extend` and `dict.update`, which operators (`+=`, `|=`), opcodes and methods have in common.

In: the container to change and what is added, as the evaluator holds them. Out: the container is changed in place; nothing is returned.
Invariant: what the program can see of it happens in CPython's order: methods of its own (`keys`, `__iter__`, `__getitem__`) are
evaluated, and each item is in the container before the next one is asked for.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.interpreter import special_methods
from fxloom_dynamo.interpreter.model_tables import Args, Kwargs
from fxloom_dynamo.objects.sentinels import ABSENT
from fxloom_dynamo.semantics import subscripts
from fxloom_dynamo.traced import polyfills

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.protocol import Interpreter


def dict_update(ev: Interpreter, target: Any, args: Args, kwargs: Kwargs) -> None:
    """dict.update"""
    for other in args:
        if isinstance(other, dict) and special_methods.python_method(ev, other, "keys") is ABSENT:
            if special_methods.python_method(ev, other, "__getitem__") is ABSENT or type(other).__iter__ is dict.__iter__:
                ev.heap.fill(other)
                ordered = isinstance(target, collections.OrderedDict)
                if not ordered or special_methods.python_method(ev, target, "__setitem__") is ABSENT:
                    ev.native(collections.OrderedDict.update if ordered else dict.update, target, other)
                    continue
        ev.call(polyfills.dict_update, [target, other])
    for key, value in kwargs.items():
        subscripts.store_subscript(ev, target, key, value)


def extend_list(ev: Interpreter, target: Any, items: Any) -> None:
    """list.extend, item by item, so that what the iterable does meanwhile is seen."""
    ev.heap.fill(target)
    if isinstance(items, (list, tuple)) and special_methods.python_method(ev, items, "__iter__") is ABSENT:
        ev.heap.fill(items)
        ev.native(list.extend, target, items)
        return
    iterator = ev.iter(items)
    while (item := ev.next(iterator)) is not ABSENT:
        list.append(target, item)
