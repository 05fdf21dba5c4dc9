"""The first pass over values that outlive the graph: what they refer to, and whether replacement code can make them again.

In: the roots, values as the evaluator holds them. Out: how often each object is referred to, which tensors and numbers the graph
has to return, which cells of the frame are needed; or a break at the place where an object was made that can't be made again.
"""

from __future__ import annotations

import enum
import functools
import gc
import inspect
import itertools
import re
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch

from fxloom_dynamo.breaks import graph_break
from fxloom_dynamo.libraries.numpy_numbers import DTYPES
from fxloom_dynamo.objects import iterators
from fxloom_dynamo.objects.array_values import Array
from fxloom_dynamo.objects.program_changes import change_of, slot_value, slots_of
from fxloom_dynamo.objects.sentinels import ABSENT, Sentinel, own_dict
from fxloom_dynamo.objects.unguarded import AppendOnly
from fxloom_dynamo.objects.value_types import LITERALS, can_shadow, exception_state, ordered_keys
from fxloom_dynamo.semantics import type_values
from fxloom_dynamo.semantics.context_variables import Token
from fxloom_dynamo.symbolic_numbers.values import has_symbolic, unbacked
from fxloom_dynamo.traced import polyfills
from fxloom_shapes import FakeTensor
from fxloom_shapes.symbols.numbers import SYMBOLIC

if TYPE_CHECKING:
    from fxloom_dynamo.interpreter.frame import Frame
    from fxloom_dynamo.interpreter.protocol import Interpreter


_CONSTANTS = (
    type, types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType, enum.Enum,
    types.CodeType, torch.finfo, torch.iinfo, re.Pattern, re.Match, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType,
)  # fmt: skip
_PLAIN_CONTAINERS = frozenset({tuple, list, dict, set, frozenset, deque, OrderedDict, types.MethodType})
#: polyfill -> the builtin that it stands for, in objects that outlive the graph
_GENERATOR_BUILTINS: dict[Any, Any] = {
    polyfills.map_: map, polyfills.filter_: filter, polyfills.groupby_: itertools.groupby, polyfills.accumulate_: itertools.accumulate,
    polyfills.starmap_: itertools.starmap, polyfills.takewhile_: itertools.takewhile, polyfills.dropwhile_: itertools.dropwhile,
    polyfills.filterfalse_: itertools.filterfalse, polyfills.iterate_until: iter, polyfills.iterate_by_index: iter,
    polyfills.reverse_by_index: reversed,
}  # fmt: skip


class ValueSurvey:
    """See the module's docstring. One per replacement code."""

    def __init__(self, ev: Interpreter, frame: Frame) -> None:
        self.ev = ev
        self.frame = frame
        self.outputs: dict[int, tuple[int, Any]] = {}
        self.needed_cells: dict[str, None] = {}
        self._counts: dict[int, int] = {}
        self._keep_alive: list[Any] = []
        self._own_cells = {id(frame.locals[name]): name for name in frame.code.co_cellvars if name in frame.locals}

    def scan(self, value: Any) -> None:
        """Count references to what has an identity; called for every root before anything is emitted."""
        cls = value if issubclass(type(value), type) else type(value)
        if self.ev.heap.is_fresh(cls):
            self._blame(cls)
            graph_break("class_definition", f"{cls.__qualname__} or an object that refers to it outlives the call's graph")
        if cls is Token:
            self._blame(value)
            graph_break("cannot_rebuild", f"the token of a set() of {value.var!r}")
        for variable in type_values.variables_of(value):
            if id(variable) in self.ev.origins.steps:
                self._blame(variable)
                graph_break("cannot_rebuild", f"a type with the type variable {variable!r}, which is another one at each call")
        if is_constant(value) or issubclass(type(value), Sentinel) or id(value) in self.ev.heap.namespaces:
            return
        if type(value) in SYMBOLIC:
            if unbacked(value) and id(value) not in self.outputs:
                self.outputs[id(value)] = (len(self.outputs), value)
                self._keep_alive.append(value)
            return
        count = self._counts.get(id(value), 0)
        self._counts[id(value)] = count + 1
        self._keep_alive.append(value)
        if count:
            return
        if type(value) is FakeTensor:
            if id(value) not in self.ev.recorder.input_info:
                self.outputs.setdefault(id(value), (len(self.outputs), value))
                for attribute in self.ev.tensors.dicts.get(id(value), (value, {}))[1].values():
                    self.scan(attribute)
            return
        if self.ev.heap.record(value) is not None:
            return
        if id(value) in self._own_cells:
            self.need_cell(self._own_cells[id(value)])
            return
        for part in self._parts(value):
            self.scan(part)

    def lingers(self, value: Any) -> bool:
        """True when the program could notice how long `value` lives, and keeping it costs no output of the graph."""
        found: list[Any] = []
        return self._can_keep(value, found, set()) and bool(found)

    def _can_keep(self, value: Any, found: list[Any], around: set[int]) -> bool:
        """Whether `value` can be made again without more outputs; what has an end that can be noticed goes to `found`."""
        heap, cls = self.ev.heap, type(value)
        if issubclass(type(value), Sentinel) or id(value) in heap.namespaces or cls in SYMBOLIC:
            return False
        if is_constant(value):
            return True
        if cls is FakeTensor:
            found.append(value)
            return id(value) in self.ev.recorder.input_info or id(value) in self.outputs
        if heap.record(value) is not None or id(value) in self._counts or id(value) in self._own_cells:
            found.append(value)
            return True
        if heap.is_fresh(cls) or id(value) in around:
            return False
        if cls not in _PLAIN_CONTAINERS:
            if not heap.is_fresh(value) or not (cls in (types.FunctionType, types.CellType) or can_shadow(cls)):
                return False
            found.append(value)
        return all(self._can_keep(part, found, around | {id(value)}) for part in self._parts(value))

    def _blame(self, value: Any) -> None:
        """`value` is why the frame can't end here: the next attempt breaks where it was made."""
        step = self.ev.origins.steps.get(id(value))
        if step is not None:
            self.ev.origins.not_rebuilt.append(step)

    def need_cell(self, name: str) -> None:
        if name not in self.needed_cells:
            self.needed_cells[name] = None
            content = self.ev.heap.cell_get(self.frame.locals[name])
            if content is not ABSENT:
                self.scan(content)

    def _parts(self, value: Any) -> list[Any]:
        """What an object made while capturing refers to."""
        cls = type(value)
        if cls is types.FunctionType and not self.ev.heap.is_fresh(value):
            return []
        if cls is types.FunctionType:
            return [*(value.__closure__ or ()), *self._function_state(value).values()]
        if cls is types.CellType:
            content = self.ev.heap.cell_get(value)
            return [] if content is ABSENT else [content]
        if cls is types.MethodType and type(value.__self__) in (Array, AppendOnly):
            return [value.__self__]
        if cls is types.MethodType:
            own = type(value.__self__).__name__ == "TracedGenerator"
            return [value.__self__] if own else [value.__func__, value.__self__]
        if cls is types.BuiltinFunctionType or cls is types.MethodWrapperType:
            return [value.__self__]
        if cls is functools.partial:
            return [value.func, *value.args, *value.keywords.values()]
        if cls is super:
            return [value.__thisclass__, value.__self__]
        if cls.__name__ in iterators.REBUILT:
            return list(self._reduced(value)[1:])
        if cls is weakref.ReferenceType:
            return [value()]
        if cls is slice:
            return [value.start, value.stop, value.step]
        if cls is Array:
            return [value.tensor]
        if cls.__name__ == "TracedGenerator":
            if value.started:
                return []
            function, args, named = self._generator_call(value)
            return [function, *args, *named.values()]
        parts: list[Any] = []
        if issubclass(type(value), dict):
            for key, item in dict.items(value):
                parts += (key, item)
            if issubclass(type(value), defaultdict):
                parts.append(value.default_factory)
        elif issubclass(type(value), (list, set, frozenset, deque)):
            parts += list(value) if not issubclass(type(value), list) else list.__iter__(value)
        elif issubclass(type(value), tuple):
            parts += tuple.__iter__(value)
        elif issubclass(type(value), (staticmethod, classmethod)):
            parts.append(value.__func__)
        elif issubclass(type(value), BaseException):
            parts += [*value.args, value.__cause__, value.__context__]
            parts += [held for _, held in exception_state(value)]
            if issubclass(type(value), BaseExceptionGroup):
                parts += [value.message, value.exceptions]
        if cls.__dictoffset__ and not issubclass(type(value), (type, types.ModuleType)):
            parts += own_dict(value).values()
        for slot in slots_of(cls):
            held = slot_value(slot, value)
            if held is not ABSENT:
                parts.append(held)
        return parts

    def _function_state(self, fn: types.FunctionType) -> dict[str, Any]:
        state: dict[str, Any] = {"__name__": fn.__name__, "__qualname__": fn.__qualname__}
        if fn.__defaults__:
            state["__defaults__"] = fn.__defaults__
        if fn.__kwdefaults__:
            state["__kwdefaults__"] = fn.__kwdefaults__
        if fn.__annotations__:
            state["__annotations__"] = fn.__annotations__
        if fn.__doc__ is not None:
            state["__doc__"] = fn.__doc__
        state["__module__"] = fn.__module__
        state.update(fn.__dict__)
        return state

    def _reduced(self, value: Any) -> tuple[Any, Any, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reduced = value.__reduce__()
            except RuntimeError as error:  # what it goes over has changed, which the program may still find out
                graph_break("cannot_rebuild", f"a {type(value).__qualname__}: {error}")
        place = self._place(value, reduced[1][0])
        if place is not None:
            return iterators.iterator_at, place, ABSENT
        # None is no state, as for pickle: from 3.12 on a range's iterator says so
        state = reduced[2] if len(reduced) > 2 and reduced[2] is not None else ABSENT
        return reduced[0], tuple(reduced[1]), state

    def _place(self, value: Any, rest: Any) -> tuple[Any, ...] | None:
        """For an iterator of a dict or set that still is one: its kind, the container, and how many items it has given.

        A copy of the rest would do, were it not that changing the container has to be noticed at the next item.
        """
        kind = type(value).__name__
        if kind not in iterators.ITERATORS:
            return None
        container = next((held for held in gc.get_referents(value) if issubclass(type(held), (dict, set, frozenset))), None)
        if container is None:
            return None  # it has ended
        record = self.ev.heap.by_proxy.get(id(container))
        if record is not None and issubclass(type(container), dict) and ordered_keys(container) != record.keys:
            graph_break("cannot_rebuild", f"a {kind} over what has changed since")
        if kind == "set_iterator":
            if type(container) is frozenset:
                return None
            if record is None or change_of(record) is not None or list(record.original) != list(container):
                graph_break("cannot_rebuild", "a set_iterator over a set that the program made or changed")
        return kind, container, len(container) - len(rest)

    def _generator_call(self, value: Any) -> tuple[Any, list[Any], dict[str, Any]]:
        """The call that made a generator which has not started: function, positional and keyword arguments."""
        frame = value.frame
        code = frame.code

        def held(name: str) -> Any:
            content = frame.locals[name]
            return self.ev.heap.cell_get(content) if name in code.co_cellvars else content

        names = code.co_varnames
        count, keyword_only = code.co_argcount, code.co_kwonlyargcount
        args = [held(name) for name in names[:count]]
        named = {name: held(name) for name in names[count : count + keyword_only]}
        at = count + keyword_only
        if code.co_flags & inspect.CO_VARARGS:
            args += held(names[at])
            at += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named.update(held(names[at]))
        return _GENERATOR_BUILTINS.get(frame.function, frame.function), args, named


def is_constant(value: Any) -> bool:
    """True for what may stand in the constants of replacement code."""
    if type(value) is types.BuiltinFunctionType:
        owner = value.__self__
        return owner is None or issubclass(type(owner), (types.ModuleType, type)) or type(owner).__name__.startswith("pybind11_")
    if type(value) is torch.Size:
        return not has_symbolic(value)
    if type_values.is_value(value) and not isinstance(value, type_values.VARIABLES):
        return True
    return type(value) in LITERALS or issubclass(type(value), (*_CONSTANTS, *DTYPES))
